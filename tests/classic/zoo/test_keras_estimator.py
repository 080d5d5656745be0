"""The Keras Estimator of older programs: one that waits for a model, and several outputs in one column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("pyspark")

from orca.errors import ArgumentError  # noqa: E402
from orca_classic.zoo import bigdl  # noqa: E402

X = np.arange(8, dtype=np.float32).reshape(4, 2)


def make_model() -> Any:
    x = keras.Input((2,))
    model = keras.Model(x, [keras.layers.Dense(3)(x), keras.layers.Dense(1)(x)])
    model.compile("sgd", ["mse", "mse"])
    return model


@pytest.mark.slow
def test_estimator_without_a_model_waits_for_load(spark: Any, tmp_path: Path) -> None:
    model, path = make_model(), str(tmp_path / "model.h5")
    model.save(path)
    est = bigdl.Estimator.from_keras(backend="spark")
    for act in (lambda: est.fit((X, X[:, :1])), lambda: est.predict(X), est.get_model):
        with pytest.raises(ArgumentError, match=r"the Estimator has no model yet. Call load\(path\) first"):
            act()
    est.load(path)
    frame = spark.createDataFrame([(x.tolist(),) for x in X], "x array<float>").coalesce(1)
    predicted = est.predict(frame, feature_cols=["x"])
    assert predicted.columns == ["x", "prediction"]
    outputs = model.predict(X, verbose=0)
    for row, *expected in zip(predicted.collect(), *outputs, strict=True):
        for vector, output in zip(row.prediction, expected, strict=True):
            np.testing.assert_allclose(vector.toArray(), output, rtol=1e-4)
