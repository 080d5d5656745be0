"""A table on Spark with nulls and a column of texts: first as it is, then as the messages say."""

import torch
from pyspark.ml.feature import StringIndexer

from orca import Estimator, OrcaContext, init_orca_context, stop_orca_context
from orca.metrics import AUC, Accuracy

init_orca_context(cluster_mode="local", cores=2)
spark = OrcaContext.get_spark_session()
cities = ["Oslo", "Rome", "Bonn"]
rows = [(float(i % 50), None if i % 10 == 3 else i * 1.5, cities[i % 3], int(i % 50 > 24)) for i in range(400)]
df = spark.createDataFrame(rows, "age double, income double, city string, bought int")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))

    def forward(self, age, income, city):
        x = torch.stack([age / 50, income / 600, city], dim=1).float()
        return self.layers(x)


def model_creator(config):
    torch.manual_seed(0)
    return Net()


est = Estimator.from_torch(
    model=model_creator,
    optimizer=lambda model, config: torch.optim.Adam(model.parameters(), lr=0.05),
    loss=torch.nn.BCEWithLogitsLoss(),
    metrics=[Accuracy(), AUC()],
    backend="spark",
    workers_per_node=2,
)
columns = {"feature_cols": ["age", "income", "city"], "label_cols": ["bought"]}


def attempt(frame):
    try:
        return est.fit(frame, epochs=5, batch_size=40, validation_data=frame, **columns)
    except Exception as error:
        print(type(error).__name__, error, sep=": ")


attempt(df)
df = StringIndexer(inputCol="city", outputCol="number").fit(df).transform(df)
df = df.drop("city").withColumnRenamed("number", "city")
attempt(df)
df = df.fillna({"income": 300.0})
stats = attempt(df)
print({name: round(value, 3) for name, value in stats[-1].items()})
scores = est.predict(df, feature_cols=columns["feature_cols"])
scores.printSchema()
print("right:", scores.where("(prediction > 0) = (bought = 1)").count() / scores.count() > 0.95)
stop_orca_context()
