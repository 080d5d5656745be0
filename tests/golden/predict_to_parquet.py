"""Predictions of a DataFrame into Parquet, by Spark, and read back with pandas."""

import numpy as np
import pandas as pd
import torch

from orca import Estimator, OrcaContext, init_orca_context, stop_orca_context

init_orca_context(cluster_mode="local", cores=2)
spark = OrcaContext.get_spark_session()
rng = np.random.default_rng(0)
table = pd.DataFrame({"id": range(1000), "a": rng.normal(size=1000), "b": rng.normal(size=1000)})
table["y"] = 2 * table.a - table.b
df = spark.createDataFrame(table)
df.write.mode("overwrite").parquet("input.parquet")
df = spark.read.parquet("input.parquet")


class Plane(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, a, b):
        return self.linear(torch.stack([a, b], dim=1))


model = Plane()
est = Estimator.from_torch(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    loss=torch.nn.MSELoss(),
    backend="spark",
    workers_per_node=2,
)
est.fit(df, epochs=5, batch_size=50, feature_cols=["a", "b"], label_cols=["y"])
scores = est.predict(df, feature_cols=["a", "b"])
scores.select("id", "prediction").write.mode("overwrite").parquet("scores.parquet")

back = pd.read_parquet("scores.parquet").set_index("id").sort_index()
print(back.dtypes.to_dict(), len(back))
print("as it should be:", np.allclose(back.prediction, table.y, atol=0.05))
spark.read.parquet("scores.parquet").createOrReplaceTempView("scores")
print(spark.sql("SELECT count(*) AS n, count(prediction) AS filled, count(distinct id) AS ids FROM scores").first())
stop_orca_context()
