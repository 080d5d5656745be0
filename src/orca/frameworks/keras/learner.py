"""KerasLearner: a Keras model and how to train it, of version 3 on TensorFlow or 2 (tf_keras). Owns its checks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from orca.core.learner import FitPlan, Learner, Predictor
from orca.core.metrics import Metric
from orca.core.session import Session
from orca.core.state import State
from orca.core.world import World
from orca.errors import ArgumentError
from orca.frameworks.keras.build import (
    NOT_COMPILED,
    check_layers,
    floatx_of,
    load_optimizers,
    load_weights,
    make_model,
    packed,
    set_threads,
    state_of_model,
    tensors_of,
    to_numpy,
)
from orca.frameworks.keras.columns import named_features
from orca.frameworks.keras.draws import forget_names, seeded
from orca.frameworks.keras.graphs import Graphs
from orca.frameworks.keras.monitors import check_kinds, check_validated, has_own_logs
from orca.frameworks.keras.patches import keras_patches
from orca.frameworks.keras.session import KerasSession
from orca.frameworks.keras.travel import PackedModel, is_compiled, is_model, pack
from orca.rows.tree import flatten, map_tree, same_form, unflatten

logger = logging.getLogger(__name__)

_ENVIRONMENT = ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND")


@dataclass
class KerasLearner(Learner):
    """A Keras model and how to train it. It travels to the ranks, where sessions and predictors are built from it.

    Attributes:
        creator: A function `(config)` that returns a compiled model; None where a packed model is given.
        packed_model: A model instance, ready to travel.
        compile_args: A function `(config)` that returns arguments for `model.compile`, or None.
        config: The argument of the creators; its inter_op_parallelism and intra_op_parallelism set TensorFlow's
            threads.
        sync_batch_norm: Whether batch normalization sees the rows of all ranks.
        features: The names of the feature columns, for models whose inputs have names.
        labels: The names of the label columns, for models whose outputs have names.
        class_weight: Class number -> weight of its rows.
        own_logs: Whether the model's own steps may log other numbers than its loss and metrics; None if it is made by
            the creator.
        environment: Variables that select a Keras, as they were on the driver.
    """

    creator: Callable[..., Any] | None
    packed_model: PackedModel | None = None
    compile_args: Callable[..., Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    sync_batch_norm: bool = True
    features: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    class_weight: dict[int, float] | None = None
    own_logs: bool | None = None
    environment: dict[str, str] = field(default_factory=dict)
    framework = "keras"

    @classmethod
    def of(
        cls,
        model: Any,
        compile_args: Callable[..., Any] | None,
        config: dict[str, Any],
        sync_batch_norm: bool,
    ) -> KerasLearner:
        """Make a learner of a Keras model, or of a creator of one; check all that can be checked here."""
        if model is None:
            raise ArgumentError(
                "there is no model. Pass model_creator=, a function (config), or keras_model=.", code="missing-model"
            )
        if compile_args is not None and not callable(compile_args):
            raise ArgumentError(
                "compile_args_creator must be a function (config) that returns a dict; "
                f"got {type(compile_args).__name__}.",
                code="bad-compile-args",
            )
        options: dict[str, Any] = {"config": config, "sync_batch_norm": sync_batch_norm}
        options["environment"] = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        if is_model(model):
            check_layers(model)
            return cls(None, pack(model), compile_args, own_logs=has_own_logs(model), **options)
        if not callable(model):
            raise ArgumentError(
                f"the model must be a Keras model or a function (config) that returns one; got {type(model).__name__}.",
                code="bad-model",
            )
        return cls(model, None, compile_args, **options)

    def with_model(self, model: Any) -> KerasLearner:
        """Return the same learner of another model, compiled as it is; where it is not, by compile_args."""
        compile_args = None if is_compiled(model) else self.compile_args
        return self.of(model, compile_args, self.config, self.sync_batch_norm)

    def check_trainable(self) -> None:
        """Check that a model instance is compiled; the model of a creator is checked on the ranks."""
        if self.packed_model is not None and self.packed_model.compiling is None and self.compile_args is None:
            raise ArgumentError(NOT_COMPILED, code="model-not-compiled")

    def check_callbacks(self, callbacks: Sequence[Any]) -> None:
        """Check that these are callbacks of Keras."""
        check_kinds(callbacks)

    def check_monitors(self, callbacks: Sequence[Any], metrics: Sequence[Metric], validates: bool) -> None:
        """Check that there is a validation if callbacks watch one; other names are checked after the first step."""
        if self.own_logs is False:
            check_validated(callbacks, validates)

    def build(self, state: State, sample: Any = None) -> Any:
        """Return a model of its own with the weights of a state, made whole by a sample if it needs one."""
        model = make_model(self)
        if sample is not None:
            example = tensors_of(named_features(sample, self.features, model), floatx_of(model))
        else:
            example = None if state.input is None else map_tree(tf.convert_to_tensor, state.input.example())
        load_weights(model, state, example)
        load_optimizers(model, state)
        return model

    def check_state(self, state: State, name: str) -> None:
        """Check the number and the shapes of a state's weights, where the model has its own without a row."""
        try:
            with seeded(0):  # this model is thrown away
                model = make_model(self)
        except Exception as error:  # the user's creator may only work on workers
            logger.warning("the model cannot be built here, to compare it with %s: %r", name, error)
            return
        if model.built and state.payload.get("models"):
            load_weights(model, state, None)

    def initial_state(self, seed: int) -> State:
        """Return the weights training would begin with."""
        with seeded(seed):
            return state_of_model(make_model(self), None)

    def state_of(self, model: Any, state: State | None) -> State:
        """Return the state of a model that was changed or loaded outside of training."""
        fresh = state_of_model(model, [])
        if state is not None:
            fresh.epoch, fresh.steps, fresh.input, fresh.output = state.epoch, state.steps, state.input, state.output
        return fresh

    def join(
        self,
        world: World,
        state: State | None,
        seed: int,
        callbacks: Sequence[Any] = (),
        fit: FitPlan | None = None,
        steps: int | None = None,
    ) -> Session:
        """Build the model on this rank; its weights agree as soon as the first batch tells their shapes."""
        set_threads(self.config)
        forget_names()
        world.all_gather(None)  # ranks that are threads share the names: none may forget while another makes its model
        with ExitStack() as opening:
            exits = opening.enter_context(ExitStack())
            exits.enter_context(seeded(seed))
            exits.enter_context(keras_patches())  # before there is a metric that remembers its class' own methods
            session = KerasSession(self, world, state, seed, callbacks, fit, steps, exits)
            opening.pop_all()
        return session

    def open_predictor(self, state: State, gpu: str | None = None) -> Predictor:
        """Build the model for predictions."""
        return KerasPredictor(self, state)


class KerasPredictor(Predictor):
    """A Keras model that predicts; it gets its variables with the first rows.

    Args:
        spec: The learner.
        state: Its weights.
    """

    def __init__(self, spec: KerasLearner, state: State) -> None:
        set_threads(spec.config)
        self.spec, self.state = spec, state
        with seeded(0):  # a model without weights yet must at least be the same on all workers
            self.model = make_model(spec)
        self._floatx = floatx_of(self.model)
        self._graphs: Graphs | None = None

    def predict(self, x: Any) -> Any:
        """Return the outputs for a block of rows, as a tree of numpy arrays."""
        features = tensors_of(named_features(x, self.spec.features, self.model), self._floatx)
        flat, structure = flatten(features)
        if self._graphs is None:
            with seeded(0):
                load_weights(self.model, self.state, unflatten(structure, flat))
            self._graphs = Graphs(self.model, self._predict_step)
        return map_tree(to_numpy, self._graphs(structure, *flat))

    def takes(self, x: Any) -> bool:
        """Return whether these may be the model's inputs.

        The form is that of training, or else they are as many as the inputs, or else one, as in Keras.
        """
        structure = flatten(x)[1]
        if self.state.input is not None:
            return same_form(structure, self.state.input.structure)
        inputs = getattr(self.model, "inputs", None)
        return len(flatten(x)[0]) == len(inputs) if inputs else structure is None

    def _predict_step(self, structure: Any, *leaves: Any) -> Any:
        return self.model.predict_step(packed(unflatten(structure, list(leaves))))
