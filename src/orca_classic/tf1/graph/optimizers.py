"""ZooOptimizer: an optimizer of TensorFlow whose gradients the ranks may agree on. Owns how gradients are given back.

Each gradient passes a point that takes its value unless another one is fed: in the user's own session a train op works
as always; a rank fetches the gradients of its rows, and feeds the mean over all ranks when the train op runs.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orca.errors import ArgumentError

# Optimizers of Keras 3, and those of tf_keras that work eagerly alone, have a twin that works in graphs.
_TWINS = ("SGD", "Adam", "Adagrad", "Adadelta", "Adamax", "Nadam", "RMSprop", "Ftrl")
_steps: weakref.WeakKeyDictionary[Any, list[TrainStep]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class FeedPoint:
    """The place where the gradient of a variable is fed: its values, and for a sparse one its rows' numbers."""

    variable: Any
    values: Any
    indices: Any = None


@dataclass
class TrainStep:
    """A step of an optimizer in a graph.

    Attributes:
        loss: The tensor that it lowers; None where the gradients came from elsewhere.
        points: The tensors that gradients are fed to.
        apply: The operation that applies them, free of the operations that the user wants to run before it.
        slots: The variables that the optimizer made for itself.
        optimizer: The optimizer.
        train_op: The operation that the user got.
        inner: The operation that applies the gradients alone, where `apply` runs more.
    """

    loss: Any
    points: list[FeedPoint]
    apply: Any
    slots: list[Any]
    optimizer: Any
    train_op: Any = field(default=None)
    inner: Any = None

    @property
    def updates(self) -> list[Any]:
        """Return the operations that the user wants to run before the step."""
        own = (self.apply, self.inner)
        return [] if self.train_op is None else [op for op in self.train_op.control_inputs if op not in own]


class ZooOptimizer:
    """An optimizer of `tf.train` or of Keras, for a train op that is trained distributed.

    Args:
        optimizer: The optimizer.
        name: Name of the train op.

    Example:
        ::

            train_op = ZooOptimizer(tf.train.AdamOptimizer(1e-3)).minimize(loss)
            TFOptimizer.from_train_op(train_op, loss).optimize(end_trigger=MaxEpoch(5))
    """

    def __init__(self, optimizer: Any, name: str | None = None) -> None:
        self.optimizer = graph_optimizer(optimizer)
        self.name = name
        self._loss: Any = None
        self._points: list[FeedPoint] = []

    def compute_gradients(self, loss: Any, var_list: Sequence[Any] | None = None, **options: Any) -> list[Any]:
        """Return pairs of a gradient and its variable, as `tf.train.Optimizer.compute_gradients` does."""
        tf = _tf()
        with loss.graph.as_default():
            variables = list(var_list or tf.trainable_variables())
            if isinstance(self.optimizer, tf.train.Optimizer):
                pairs = self.optimizer.compute_gradients(loss, variables, **options)
            else:
                pairs = list(zip(tf.gradients(loss, variables), variables, strict=True))
            if all(gradient is None for gradient, _ in pairs):
                raise no_variables(loss)
            self._loss, self._points = loss, []
            return [(gradient if gradient is None else self._fed(gradient, v), v) for gradient, v in pairs]

    def apply_gradients(
        self, grads_and_vars: Iterable[Any], global_step: Any = None, name: str | None = None, **options: Any
    ) -> Any:
        """Return the operation that applies gradients; see `tf.train.Optimizer.apply_gradients`."""
        tf = _tf()
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
        if not pairs:
            raise ArgumentError("there is no gradient to apply. Pass pairs of a gradient and its variable.")
        graph = tf.get_default_graph()
        before = set(map(id, tf.global_variables()))
        with tf.control_dependencies(None):  # operations to run before the step run with the forward pass instead
            if not self._points:
                pairs = [(self._fed(gradient, variable), variable) for gradient, variable in pairs]
            step = [] if global_step is None else [global_step]
            if step and isinstance(self.optimizer, tf.train.Optimizer):
                apply = self.optimizer.apply_gradients(pairs, *step)
            else:
                apply = self.optimizer.apply_gradients(pairs)
                if step:
                    with tf.control_dependencies([apply]):
                        apply = tf.assign_add(global_step, tf.ones([], global_step.dtype)).op
        slots = [variable for variable in tf.global_variables() if id(variable) not in before]
        train_op = tf.group(apply, name=name or self.name)
        apply = getattr(apply, "op", apply)
        train_step = TrainStep(self._loss, self._points, apply, slots, self.optimizer, train_op)
        _steps.setdefault(graph, []).append(train_step)
        self._points, self._loss = [], None
        return train_op

    def minimize(
        self, loss: Any, global_step: Any = None, var_list: Sequence[Any] | None = None, name: str | None = None
    ) -> Any:
        """Return the train op that lowers a loss."""
        with loss.graph.as_default():
            return self.apply_gradients(self.compute_gradients(loss, var_list), global_step, name)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # a copy that is being made
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def _fed(self, gradient: Any, variable: Any) -> Any:
        tf = _tf()
        if isinstance(gradient, tf.IndexedSlices):
            values = tf.placeholder_with_default(gradient.values, [None, *variable.shape.as_list()[1:]])
            indices = tf.placeholder_with_default(gradient.indices, [None])
            self._points.append(FeedPoint(variable, values, indices))
            return tf.IndexedSlices(values, indices, tf.constant(variable.shape.as_list(), tf.int64))
        values = tf.placeholder_with_default(gradient, variable.shape)
        self._points.append(FeedPoint(variable, values))
        return values


def step_of(train_op: Any) -> TrainStep:
    """Return the step that a train op runs.

    Raises:
        ArgumentError: No ZooOptimizer made it.
    """
    from orca_classic.tf1.graph.terms import ancestors

    op = getattr(train_op, "op", train_op)
    before = ancestors([op])
    for step in _steps.get(op.graph, []):
        if step.train_op is op or step.apply in before:
            if step.loss is None:
                raise ArgumentError(
                    f"the train op {op.name!r} applies gradients that its ZooOptimizer did not compute, so it is not "
                    "known what was done to them. Call compute_gradients(loss) of the ZooOptimizer in place of "
                    "tf.gradients; then clip or change the gradients, and apply them."
                )
            return step if step.train_op is op else _with_more(step, op)
    raise ArgumentError(
        f"the train op {op.name!r} applies gradients that ranks cannot agree on. Make it with "
        "ZooOptimizer(optimizer).minimize(loss)."
    )


def _with_more(step: TrainStep, train_op: Any) -> TrainStep:
    """Return a step that also runs the other operations of a train op: after the step, or beside it.

    Raises:
        ArgumentError: Some of it needs rows, which are not there when the gradients are applied.
    """
    tf = _tf()
    members, stack = [], [train_op]
    while stack:
        op = stack.pop()
        if op.type == "NoOp" and op is not step.train_op and op is not step.apply:
            stack += op.control_inputs
        elif op is not step.train_op and op is not step.apply:
            members.append(op)
    feed_points = {each.op for point in step.points for each in (point.values, point.indices) if each is not None}
    for op in members:
        ops, stack = {*feed_points, step.train_op}, [op]
        while stack:
            each = stack.pop()
            if each.type == "Placeholder":
                raise ArgumentError(
                    f"the train op {train_op.name!r} also runs {op.name!r}, which needs {each.name + ':0'!r}. Pass it "
                    "as one of updates=, and the op of the ZooOptimizer as the train op."
                )
            if each not in ops:
                ops.add(each)
                stack += [*(tensor.op for tensor in each.inputs), *each.control_inputs]
    after = {op for op in members if step.train_op in _before(op) or step.apply in _before(op)}
    if after and step.updates:
        raise ArgumentError(
            f"the train op {train_op.name!r} runs {after.pop().name!r} after the step, and {step.updates[0].name!r} "
            "before it. Pass the latter as one of updates=, and leave out the control dependency."
        )
    with train_op.graph.as_default(), tf.control_dependencies(None):
        return replace(step, apply=tf.group(step.apply, *members), inner=step.apply)


def _before(op: Any) -> set[Any]:
    from orca_classic.tf1.graph.terms import ancestors

    return ancestors([op])


def graph_optimizer(optimizer: Any) -> Any:
    """Return the optimizer itself, or its twin that works in graphs.

    Raises:
        ArgumentError: It is none, or has no such twin.
    """
    if isinstance(optimizer, ZooOptimizer) or type(optimizer).__name__ == "TFOptimizer":  # Keras' own around tf.train's
        return optimizer.optimizer
    if isinstance(optimizer, str):
        legacy = _legacy()
        kind = next((each for each in _TWINS if each.lower() == optimizer.lower()), None)
        if kind is None:
            raise ArgumentError(f"there is no optimizer {optimizer!r}. Pass one of {', '.join(_TWINS)}, or an object.")
        return getattr(legacy, kind)()
    if isinstance(optimizer, _tf().train.Optimizer) or hasattr(optimizer, "_get_hyper"):
        return optimizer
    if not hasattr(optimizer, "apply_gradients") or not hasattr(optimizer, "get_config"):
        raise ArgumentError(
            f"optimizer must be one of tf.train, of Keras or of BigDL; got {type(optimizer).__name__}. Pass "
            "tf.train.AdamOptimizer(), for example."
        )
    return _twin(optimizer)


def is_optim_method(optimizer: Any) -> bool:
    """Return whether an optimizer is one of `orca_classic.bigdl.optimizers` (BigDL's), which are built for torch."""
    return hasattr(optimizer, "build") and not hasattr(optimizer, "apply_gradients")


@dataclass(frozen=True)
class MethodsByPrefix:
    """An optim method of `orca_classic.bigdl.optimizers` for each prefix of the names of variables."""

    methods: Mapping[str, Any]

    def check(self, names: Iterable[str]) -> None:
        """Check that there is one method for each variable.

        Raises:
            ArgumentError: There is none, or there are several.
        """
        for name in names:
            prefixes = [prefix for prefix in self.methods if name.startswith(prefix)]
            if len(prefixes) != 1:
                raise ArgumentError(
                    f"each trained variable needs one optim method, by a prefix of its name; {name!r} has "
                    f"{prefixes or 'none'} of {list(self.methods)}."
                )

    def build(self, parameters: Mapping[str, Any]) -> _SeveralOptimizers:
        """Return the optimizers of torch for some parameters, by name."""
        parts = []
        for prefix, method in self.methods.items():
            own = [parameter for name, parameter in parameters.items() if name.startswith(prefix)]
            parts += [method.build(own)] if own else []
        return _SeveralOptimizers(parts)


class _SeveralOptimizers:
    """Optimizers of torch that step together.

    Args:
        parts: The optimizers.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the groups of all."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        """Take a step of each."""
        for part in self.parts:
            part.step()

    def end_epoch(self, *numbers: Any) -> None:
        """Tell each that an epoch has ended, for its schedule."""
        for part in self.parts:
            part.end_epoch(*numbers)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a result of `state_dict`."""
        for part, own in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(own)


def learning_rate(optimizer: Any) -> Any:
    """Return the learning rate of an optimizer: a number, a tensor, or None where it does not tell."""
    hyper = getattr(optimizer, "_get_hyper", None)
    if hyper is not None and "learning_rate" in getattr(optimizer, "_hyper", {}):
        rate = hyper("learning_rate")
        return None if callable(rate) else rate
    for name in ("_lr", "_learning_rate", "_learning_rate_tensor", "learning_rate"):
        rate = getattr(optimizer, name, None)
        if rate is not None:
            return rate() if callable(rate) else rate
    return None


def no_variables(loss: Any) -> ArgumentError:
    """Return the error for a loss that no variable has a part in."""
    return ArgumentError(
        f"the loss {loss.name!r} depends on no variable that can be trained, so there is nothing to learn. Build it "
        "from the outputs of a model with variables (trainable=True)."
    )


def _twin(optimizer: Any) -> Any:
    """Return the optimizer of the same name and settings that works in graphs."""
    from tensorflow.python.eager import context

    name = type(optimizer).__name__
    try:
        with context.eager_mode():  # its settings are variables that were made eagerly
            config = dict(optimizer.get_config())
    except Exception as error:  # made within the graph, it has tensors for settings
        raise ArgumentError(
            f"the optimizer {name} was made within a graph, and tells no settings there. Make it outside of the graph, "
            f"or take tf.keras.optimizers.legacy.{name} or one of tf.train."
        ) from error
    if name not in _TWINS:
        raise ArgumentError(
            f"the optimizer {name} of {type(optimizer).__module__.split('.')[0]} does not work in a graph. Take one of "
            f"tf.train, or {', '.join(_TWINS)}."
        )
    kind = getattr(_legacy(), name)
    unlike = {"weight_decay": (None, 0, 0.0), "use_ema": (False,), "loss_scale_factor": (None,)}
    unlike |= {"gradient_accumulation_steps": (None,), "global_clipnorm": (None,)}
    wrong = [key for key, usual in unlike.items() if config.get(key, usual[0]) not in usual]
    rate = config.get("learning_rate")
    if wrong or isinstance(rate, dict):
        wrong = wrong or ["a schedule as learning_rate"]
        raise ArgumentError(
            f"{name} with {', '.join(wrong)} does not work in a graph. Pass tf.keras.optimizers.legacy.{name}, or an "
            "optimizer of tf.train."
        )
    defaults = kind().get_config()
    return kind(**{key: config[key] for key in defaults if key in config and key != "decay"} | _clips(config))


def _clips(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in ("clipnorm", "clipvalue") if config.get(key) is not None}


def _legacy() -> Any:
    import tf_keras

    return tf_keras.optimizers.legacy


def _tf() -> Any:
    return importlib.import_module("tensorflow.compat.v1")
