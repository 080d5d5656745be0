"""XShards feed every Estimator: uneven and empty shards train, score and answer as arrays and DataFrames do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orca import Estimator
from orca.data.shard import SparkXShards

ROWS = 53
X = np.random.default_rng(1).normal(size=(ROWS, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0.5)
CUTS = [0, 20, 20, 23, ROWS, ROWS]  # shards of 20, 0, 3, 30 and 0 rows
COLUMNS = {"feature_cols": ["x"], "label_cols": ["y"]}


def of_torch(**options: Any) -> Any:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return Estimator.from_torch(
        model=model, optimizer=optimizer, loss=torch.nn.CrossEntropyLoss(), use_tqdm=False, **options
    )


def of_keras(**options: Any) -> Any:
    import keras

    def model(config: dict[str, Any]) -> Any:
        keras.utils.set_random_seed(0)
        made = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
        return made

    return Estimator.from_keras(model_creator=model, **options)


def of_bigdl(**options: Any) -> Any:
    from orca_classic.bigdl import criterion, layers
    from orca_classic.bigdl.optimizers import SGD

    model = layers.Sequential().add(layers.Linear(5, 4)).add(layers.Tanh()).add(layers.Linear(4, 3))
    draw = np.random.default_rng(0)
    model.set_weights([draw.normal(size=shape).astype(np.float32) for shape in ((4, 5), (4,), (3, 4), (3,))])
    loss = criterion.CrossEntropyCriterion()
    return Estimator.from_bigdl(model=model, loss=loss, optimizer=SGD(learningrate=0.1, momentum=0.9), **options)


def of_mxnet(workers_per_node: int, **options: Any) -> Any:
    from classic.mxnet.truth import cross_entropy, network
    from orca_classic.mxnet import create_config

    config = create_config("sgd", {"learning_rate": 0.1, "momentum": 0.9}, log_interval=0, seed=3)
    return Estimator.from_mxnet(
        config=config, model_creator=network, loss_creator=cross_entropy, num_workers=workers_per_node, **options
    )


def of_graph(**options: Any) -> Any:
    from classic.tf1.graphs import graph, momentum

    made = graph()
    with made.graph.as_default():
        return Estimator.from_graph(
            inputs=made.x, outputs=made.outputs, labels=made.y, loss=made.loss, sess=made.session,
            optimizer=momentum(), metrics={"acc": made.accuracy}, **options,
        )  # fmt: skip


# An Estimator's maker, what must be installed, and what is added to labels.
KINDS: dict[str, tuple[Callable[..., Any], str, int]] = {
    "bigdl": (of_bigdl, "torch", 1),
    "mxnet": (of_mxnet, "mxnet", 0),
    "graph": (of_graph, "tensorflow", 0),
    "torch": (of_torch, "torch", 0),
    "keras": (of_keras, "keras", 0),
}


def data_of(kind: str, spark: Any, labels: np.ndarray) -> tuple[Any, dict[str, Any]]:
    """Return the rows as data of a kind, and the columns to name."""
    if kind == "arrays":
        return (X, labels), {}
    cuts = [slice(*pair) for pair in itertools.pairwise(CUTS)]
    if kind == "dicts":
        dicts = [{"x": X[cut], "y": labels[cut], "n": np.arange(ROWS)[cut]} for cut in cuts]
        return SparkXShards(spark.sparkContext.parallelize(dicts, 4)), {}
    frame = pd.DataFrame({"x": list(X), "y": labels, "n": np.arange(ROWS)})
    if kind == "frames":
        return SparkXShards(spark.sparkContext.parallelize([frame[cut] for cut in cuts], 4)), COLUMNS
    rows = [(x.tolist(), int(y), n) for n, (x, y) in enumerate(zip(X, labels, strict=True))]
    return spark.createDataFrame(rows, "x array<float>, y long, n long"), COLUMNS


def answers(est: Any, kind: str, spark: Any, labels: np.ndarray) -> np.ndarray:
    """Return predictions in the order of the rows, after a look at what came back beside them."""
    data, columns = data_of(kind, spark, labels)
    names = {"feature_cols": ["x"]} if columns else {}
    if kind == "arrays":
        return np.asarray(est.predict(X))
    if kind == "DataFrame":
        rows = est.predict(data, **names).collect()
        return np.array([row.prediction for row in sorted(rows, key=lambda row: row.n)])
    shards = est.predict(data, **names).collect()
    assert [len(shard["prediction"]) for shard in shards] == [20, 0, 3, 30, 0]
    assert np.concatenate([shard["n"] for shard in shards]).tolist() == list(range(ROWS))
    assert np.concatenate([shard["y"] for shard in shards]).tolist() == labels.tolist()
    return np.stack([row for shard in shards for row in shard["prediction"]])


FIRST = [pytest.param("local", ("dicts", "frames"), name, id=name) for name in ("bigdl", "mxnet", "graph")]
ALL = [
    pytest.param(backend, ("dicts", "frames", "DataFrame"), name, marks=pytest.mark.full, id=f"{name}-{backend}")
    for name in KINDS
    for backend in ("local", "spark")
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("backend", "kinds", "name"), FIRST + ALL)
def test_shards_train_score_and_answer_as_arrays_do(
    spark: Any, backend: str, kinds: tuple[str, ...], name: str
) -> None:
    make, needed, first = KINDS[name]
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    labels = Y + first
    fitted, scores = {}, {}
    for kind in ("arrays", *kinds):
        est = make(backend=backend, workers_per_node=2)
        data, columns = data_of(kind, spark, labels)
        est.fit(data, epochs=3, batch_size=ROWS, **columns)
        fitted[kind], scores[kind] = answers(est, kind, spark, labels), est.evaluate(data, batch_size=7, **columns)
    for kind in kinds:
        np.testing.assert_allclose(fitted[kind], fitted["arrays"], rtol=1e-4, atol=1e-5, err_msg=kind)
        assert scores[kind] == pytest.approx(scores["arrays"], rel=1e-4, abs=1e-5), kind
    untrained = answers(make(backend=backend, workers_per_node=2), "arrays", spark, labels)
    assert np.abs(untrained - fitted["arrays"]).max() > 0.01
