"""Programs on DataFrames, as users of the older systems write them: dicts in columns, vectors as predictions."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyspark")

import torch
from torch import nn

ROWS, EPOCHS = 33, 3
DRAW = np.random.default_rng(3)
X = DRAW.random((ROWS, 4), np.float32)
TOTAL, KIND = X.sum(1), X.argmax(1)
PARTS = np.stack([X[:, 0] * 2, X[:, 1] - X[:, 2], X[:, 3]], axis=1)


def in_order(predicted: Any) -> list[Any]:
    return sorted(predicted.collect(), key=lambda row: row.number)


class Ranker(nn.Module):
    """Two heads, answered by name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.total, self.parts = nn.Linear(4, 1), nn.Linear(4, 3)

    def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"total": self.total(features), "parts": self.parts(features)}


def joint_loss(output: Any, target: Any) -> torch.Tensor:
    total = nn.functional.mse_loss(output["total"], target["total"])
    return total + 2 * nn.functional.l1_loss(output["parts"], target["parts"])


@pytest.mark.parametrize(
    ("root", "backend"), [("bigdl", "spark"), pytest.param("zoo", "bigdl", marks=pytest.mark.full)]
)
def test_torch_model_with_labels_in_a_map(root: str, backend: str, spark: Any) -> None:
    from pyspark.ml.functions import array_to_vector
    from pyspark.ml.linalg import DenseVector

    estimator = importlib.import_module(f"{root}.orca.learn.pytorch").Estimator
    labels = [{"parts": parts.tolist(), "total": [float(total)]} for parts, total in zip(PARTS, TOTAL, strict=True)]
    rows = [(number, x.tolist(), labels[number]) for number, x in enumerate(X)]
    df = spark.createDataFrame(rows, "number int, features array<float>, label map<string,array<float>>")
    df = df.withColumn("features", array_to_vector("features"))

    est = estimator.from_torch(
        model=lambda config: Ranker(),
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=config["lr"]),
        loss=joint_loss,
        config={"lr": 0.1},
        backend=backend,
        workers_per_node=2,
    )
    columns = {"feature_cols": ["features"], "label_cols": ["label"]}
    stats = est.fit(df, epochs=EPOCHS, batch_size=ROWS, reduce_results=False, **columns)
    scores = est.evaluate(df, batch_size=8, **columns)
    predicted = est.predict(df, feature_cols=["features"], output_cols=["total", "parts"])
    whole = est.predict(df, feature_cols=["features"])

    net = Ranker()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, target = torch.from_numpy(X), {"total": torch.from_numpy(TOTAL[:, None]), "parts": torch.from_numpy(PARTS)}
    for epoch in range(EPOCHS):
        optimizer.zero_grad()
        loss = joint_loss(net(x), target)
        loss.backward()
        optimizer.step()
        own = [(line["num_samples"], line["train_loss"]) for line in stats[epoch]]
        assert sorted(rows for rows, _ in own) == [16, 17] and own[0][1] != own[1][1]
        assert sum(rows * value for rows, value in own) / ROWS == pytest.approx(loss.item(), rel=1e-4)
    with torch.no_grad():
        output = net(x)
        assert scores["val_loss"] == pytest.approx(joint_loss(output, target).item(), rel=1e-4)
    answers, structs = in_order(predicted), in_order(whole)
    assert all(isinstance(row.parts, DenseVector) for row in answers)
    np.testing.assert_allclose([row.parts.toArray() for row in answers], output["parts"], rtol=1e-4, atol=1e-5)
    totals = [row.total if root == "bigdl" else row.total.toArray()[0] for row in answers]  # which squeezes
    np.testing.assert_allclose(totals, output["total"][:, 0], rtol=1e-4, atol=1e-5)
    assert [row.prediction.parts for row in structs] == [row.parts for row in answers]


@pytest.mark.full
@pytest.mark.parametrize("root", ["zoo", "bigdl"])
def test_keras_model_with_named_inputs_and_labels_in_structs(root: str, spark: Any) -> None:
    pytest.importorskip("tensorflow")
    from pyspark.ml.linalg import DenseVector

    estimator = importlib.import_module(f"{root}.orca.learn.tf2").Estimator

    def model_creator(config: dict[str, Any]) -> Any:
        import keras

        keras.utils.set_random_seed(5)
        inputs = {"wide": keras.Input((3,), name="wide"), "deep": keras.Input((1,), name="deep")}
        hidden = keras.layers.Concatenate()([inputs["wide"], inputs["deep"]])
        outputs = {
            "total": keras.layers.Dense(1, name="total")(hidden),
            "kind": keras.layers.Dense(4, activation="softmax", name="kind")(hidden),
        }
        model = keras.Model(inputs, outputs)
        losses = {"total": "mse", "kind": "sparse_categorical_crossentropy"}
        model.compile(optimizer=keras.optimizers.SGD(config["lr"]), loss=losses, metrics={"kind": ["accuracy"]})
        return model

    cells = [
        (number, x[:3].tolist(), float(x[3]), float(TOTAL[number]), int(KIND[number])) for number, x in enumerate(X)
    ]
    df = spark.createDataFrame(cells, "number int, wide array<float>, deep float, total float, kind int").selectExpr(
        "number", "struct(wide, deep) as inputs", "struct(kind, total) as label"
    )
    est = estimator.from_keras(
        model_creator=model_creator, config={"lr": 0.1}, workers_per_node=2, backend="spark", verbose=0
    )
    columns = {"feature_cols": ["inputs"], "label_cols": ["label"]}
    stats = est.fit(df, epochs=EPOCHS, batch_size=ROWS, **columns)
    scores = est.evaluate(df, batch_size=8, **columns)
    answers = in_order(est.predict(df, feature_cols=["inputs"], output_cols=["total", "kind"]))

    alone = model_creator({"lr": 0.1})
    features, labels = {"wide": X[:, :3], "deep": X[:, 3:]}, {"total": TOTAL, "kind": KIND}
    history = alone.fit(features, labels, batch_size=ROWS, epochs=EPOCHS, verbose=0).history
    np.testing.assert_allclose(stats["loss"], history["loss"], rtol=1e-4)
    assert scores["validation_kind_accuracy"] == pytest.approx(
        alone.evaluate(features, labels, verbose=0, return_dict=True)["kind_accuracy"], abs=1e-6
    )
    known = alone.predict(features, verbose=0)
    assert all(isinstance(row.kind, DenseVector) and isinstance(row.total, DenseVector) for row in answers)
    np.testing.assert_allclose([row.kind.toArray() for row in answers], known["kind"], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose([row.total.toArray() for row in answers], known["total"], rtol=1e-3, atol=1e-5)
