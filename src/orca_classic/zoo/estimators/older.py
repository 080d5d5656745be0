"""Older: what Estimators of both older systems return and write. Owns the classes that do, one for each framework."""

from __future__ import annotations

from functools import wraps
from typing import Any

import orca.estimators
from orca.core.arguments import checked
from orca.registry import load
from orca_classic import estimator
from orca_classic.zoo.ray import RayHandles

ours = vars(orca.estimators.Estimator)
classic = vars(estimator.Estimator)


class OlderForms(RayHandles):
    """The forms: 1-D predictions of a DataFrame as ML vectors, and `save` as one torch file at any path.

    With backend="bigdl" that file is the model's own state dict.
    """

    vectors = True
    one_file = True


class OlderEstimator(estimator.Estimator):
    """The calls that make Estimators with the older forms, of every framework."""

    @classmethod
    @checked
    @wraps(ours["from_torch"].__func__)  # its signature and docstring
    def from_torch(cls, **options: Any) -> Any:
        """Make an Estimator of a PyTorch model."""
        return load("orca_classic.zoo.estimators.torch:OlderTorchEstimator", need="a torch model").from_torch(**options)

    @classmethod
    @checked
    @wraps(ours["from_keras"].__func__)
    def from_keras(cls, **options: Any) -> Any:
        """Make an Estimator of a Keras model; without one it waits for `load`."""
        kind = load("orca_classic.zoo.estimators.keras:OlderKerasEstimator", need="a Keras model")
        if options.get("model_creator") is None and options.get("keras_model") is None:
            options["model_creator"] = load("orca_classic.zoo.estimators.keras:no_model", need="a Keras model")
        return kind.from_keras(**options)

    @classmethod
    @checked
    @wraps(ours["from_openvino"].__func__)
    def from_openvino(cls, **options: Any) -> Any:
        """Make an Estimator of an OpenVINO model."""
        kind = load("orca_classic.zoo.estimators.openvino:OlderOpenvinoEstimator", need="an openvino model")
        return kind.from_openvino(**options)

    @classmethod
    @checked
    @wraps(classic["from_graph"].__func__)
    def from_graph(cls, **options: Any) -> Any:
        """Make an Estimator of a graph of TensorFlow 1."""
        return load("orca_classic.zoo.estimators.graph:OlderGraphEstimator", need="a graph of TensorFlow 1").of(
            **options
        )

    @classmethod
    @checked
    @wraps(classic["from_mxnet"].__func__)
    def from_mxnet(cls, **options: Any) -> Any:
        """Make an Estimator of an MXNet model."""
        return load("orca_classic.zoo.estimators.mxnet:OlderMxnetEstimator", need="an MXNet model").of(**options)

    @classmethod
    @checked
    @wraps(classic["from_bigdl"].__func__)
    def from_bigdl(cls, **options: Any) -> Any:
        """Make an Estimator of a BigDL model."""
        return load("orca_classic.zoo.estimators.bigdl:OlderBigdlEstimator", need="a bigdl model").of(**options)
