"""MxnetLearner: Gluon and Symbol models. Owns a step of MXNet: its draws, gradients, statistics and update."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import mxnet as mx
import numpy as np
import torch
from mxnet import autograd, gluon

from orca.core.array_learner import ArrayLearner, Arrays
from orca.core.array_session import ArrayEvaluation, ArrayPredictor, ArraySession
from orca.core.creators import call_creator
from orca.core.draws import seed_plain
from orca.core.losses import LossAccumulator, StepResult
from orca.core.metrics import Counts, Metric
from orca.core.session import Evaluation
from orca.core.source import Batch
from orca.core.state import Losses, State
from orca.core.world import World
from orca.errors import ArgumentError
from orca.rows.tree import flatten, map_tree
from orca_classic.mxnet.metrics import mxnet_metrics
from orca_classic.mxnet.optimizer import NamedOptimizer, array_of
from orca_classic.mxnet.symbol import SymbolNet

logger = logging.getLogger(__name__)

_EXACT = 1 << 24  # whole numbers up to here are exact in float32


class MxnetPredictor(ArrayPredictor):
    """A model of MXNet that predicts."""

    def takes(self, x: Any) -> bool:
        """Return whether these may be the inputs: as many as rows had before; one if no row was seen."""
        return len(flatten(x)[0]) == (len(self.state.input.heads) if self.state.input else 1)


class MxnetSession(ArraySession):
    """A model of MXNet at work on one rank; it also counts metrics of the rows that are trained on."""

    learner: MxnetLearner

    def __init__(
        self, learner: MxnetLearner, world: World, state: State | None, seed: int, callbacks: Sequence[Any] = ()
    ) -> None:
        super().__init__(learner, world, state, seed, callbacks)
        creator = learner.metrics_creator
        self.meters: list[Metric] = mxnet_metrics(call_creator(creator, learner.config)) if creator else []
        position = state.position if state else None
        self.resumed = bool(position and position["step"])
        if state and self.resumed and world.rank == 0:  # it continues the metrics of the interrupted epoch
            for meter, (rows, values) in zip(self.meters, state.payload.get("meters", ()), strict=False):
                meter.merge(Counts(rows, map_tree(lambda value: torch.as_tensor(np.asarray(value)), values)))
        learner.count_in(self.meters)

    def begin_epoch(self, epoch: int, on_nan: str) -> LossAccumulator:
        """Begin an epoch, and its metrics, unless an interrupted epoch is resumed."""
        if not self.resumed:
            self.meters = [meter.start() for meter in self.meters]
            self.learner.count_in(self.meters)
        self.resumed = False
        super().begin_epoch(epoch, on_nan)
        return MxnetLosses(self, epoch, on_nan)

    def train_step(self, batch: Batch, step: int) -> StepResult:
        """Train on a batch; the first one, or its dummy row, tells the shapes of all weights."""
        self.learner.complete_weights(batch.x, batch.y)
        result = super().train_step(batch, step)
        every = int(self.learner.config.get("log_interval") or 0)
        if every and (step + 1) % every == 0 and self.world.rank == 0:
            sys.stdout.write(f"epoch {self.epoch}, step {step + 1}: loss {result.global_loss:.6g}\n")  # as MXNet does
            sys.stdout.flush()
        return result

    @contextmanager
    def evaluation(self, metrics: Sequence[Metric]) -> Iterator[Evaluation]:
        """Open an evaluation."""
        yield MxnetEvaluation(self, metrics)

    def state(self) -> State:
        """Return weights, the optimizer's state and the counts of metrics in the epoch."""
        state, meters = super().state(), [meter.state() for meter in self.total_metrics()]
        if meters:
            counts = [(each.rows, map_tree(np.asarray, each.values)) for each in meters]
            return replace(state, payload=state.payload | {"meters": counts})
        return state

    def total_metrics(self) -> list[Metric]:
        """Return the metrics of the epoch over all ranks, which call it together."""
        totals = [meter.start() for meter in self.meters]
        ranks = self.world.all_gather([meter.state() for meter in self.meters]) if totals else []
        for number, total in enumerate(totals):
            total.merge(*(states[number] for states in ranks))
        return totals


class MxnetEvaluation(ArrayEvaluation):
    """An evaluation by a model of MXNet."""

    session: MxnetSession

    def step(self, batch: Batch, step: int) -> None:
        """Feed outputs and targets of this rank's rows to the metrics."""
        self.session.learner.complete_weights(batch.x, batch.y)
        super().step(batch, step)


class MxnetLosses(LossAccumulator):
    """The losses of an epoch, with the metrics of the rows that were trained on.

    Args:
        session: Its session.
        epoch: The number of the epoch.
        on_nan: What to do if a loss is not finite.
    """

    def __init__(self, session: MxnetSession, epoch: int, on_nan: str) -> None:
        super().__init__(epoch, on_nan)
        self.session = session

    def result(self) -> Losses:
        """Return the losses and the metrics over all ranks."""
        return replace(self.totals(), logs={meter.name: meter.result() for meter in self.session.total_metrics()})


@dataclass
class MxnetLearner(ArrayLearner):
    """A model of MXNet: a Gluon block with a loss, or a Module of a symbol that ends in one.

    Attributes:
        model_creator: Returns the model, given the config.
        loss_creator: Returns the loss of a block.
        metrics_creator: Returns metrics of the rows that are trained on.
        config: The argument of creators; optimizer, optimizer_params, init and log_interval are read here.
        first_seed: The seed that the first weights are drawn from.
    """

    model_creator: Callable[..., Any]
    loss_creator: Callable[..., Any] | None = None
    metrics_creator: Callable[..., Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    first_seed: int = 0
    framework: ClassVar[str] = "mxnet"
    session_type: ClassVar[type[ArraySession]] = MxnetSession
    predictor_type: ClassVar[type[ArrayPredictor]] = MxnetPredictor
    numbers: ClassVar[bool] = True

    # The model and its optimizer.

    def make(self) -> None:
        """Make the model, as far as that goes without data, and its optimizer."""
        seed_all(self.first_seed)
        with mx.name.NameManager():  # blocks without a name are numbered from 0, in any process
            model = call_creator(self.model_creator, self.config)
        self.net = model if isinstance(model, gluon.Block) else SymbolNet(model)
        self.symbolic = isinstance(self.net, SymbolNet)
        self.loss_of = call_creator(self.loss_creator, self.config) if self.loss_creator else None
        if not self.symbolic and self.loss_of is None:
            raise ArgumentError("Loss not defined for gluon model, please specify loss_creator")
        self.parameters = named_parameters(self.net)
        self.statistics = _statistics(self.net, self.parameters)
        for name, parameter in self.parameters.items():
            _check(name, parameter)
            if not self.symbolic and parameter._data is None and not parameter._deferred_init:
                parameter.initialize(default_init=self.config.get("init") or mx.init.Uniform())
        self.optimizer = NamedOptimizer(self.config, self.parameters, self.net.symbol if self.symbolic else None)
        self.complete = False  # whether the shapes of all weights are known

    def build(self, state: State) -> Any:
        """Return the block, or the module, with the weights of a state."""
        learner = self.copy_for(None, 0)
        learner.set_weights(state.payload["models"][0])
        arrays = {name: array_of(value) for name, value in learner.weights().items()}
        return learner.net.trained(arrays) if learner.symbolic else learner.net

    def weights(self) -> Arrays:
        """Return all weights and running statistics that there are: shapes may be known with the first row only."""
        return {name: _value(each).asnumpy() for name, each in self.parameters.items() if each._data is not None}

    def set_weights(self, weights: Arrays) -> None:
        """Take over weights, under the names that `weights` gives them."""
        absent = [n for n, each in self.parameters.items() if n not in weights and each._data is not None]
        strange = [name for name in weights if name not in self.parameters]
        if absent or strange:
            raise ArgumentError(
                f"the weights do not fit the model: it has none of {strange}, and lacks {absent}. Use the "
                "model_creator that they were trained with."
            )
        for name, value in weights.items():
            shape = self.parameters[name].shape
            if shape and any(dim not in (0, -1, have) for dim, have in zip(shape, value.shape, strict=False)):
                raise ArgumentError(f"the weights do not fit the model: {name} is {value.shape}, not {shape}.")
            self.parameters[name]._load_init(array_of(value), None)

    def optimizer_state(self) -> dict[str, Any]:
        """Return the state of the optimizer and its schedule."""
        return self.optimizer.state()

    def set_optimizer_state(self, state: dict[str, Any]) -> None:
        """Take over a result of `optimizer_state`."""
        self.optimizer.set_state(state)

    def learning_rates(self) -> list[float]:
        """Return the learning rate of the next update."""
        return [self.optimizer.rate()]

    # Rows.

    def outputs(self, x: Any) -> Any:
        """Return the outputs for rows, as in an evaluation."""
        self.complete_weights(x)
        return map_tree(lambda output: output.asnumpy(), self._forward(x, None))

    def loss(self, outputs: Any, batch: Batch) -> tuple[float, float]:
        """Return the sum of the rows' losses, and the rows or their weights."""
        if not self.symbolic or self.loss_of is not None:
            return self._losses(map_tree(array_of, outputs), batch)[1:]
        _refuse_weights(batch)
        if self.net.tells_losses:
            outputs = map_tree(lambda output: output.asnumpy(), self._forward(batch.x, batch.y))
        return self.net.losses(flatten(outputs)[0], batch.y), float(batch.rows)

    def loss_and_gradients(self, batch: Batch) -> tuple[float, float, Arrays]:
        """Return the sum of the rows' losses, its divisor, and the gradients of the sum.

        Running statistics go along as their change, times that divisor: all ranks change them by the mean.
        """
        if self.symbolic:
            _refuse_weights(batch)
        seed_all(int(self.generator.integers(1 << 31)))
        before = {name: _value(self.parameters[name]).copy() for name in self.statistics}
        for parameter in self.parameters.values():
            if parameter.grad_req == "add":
                parameter.zero_grad()
        with autograd.record():
            outputs = self._forward(batch.x, batch.y)
            heads = flatten(outputs)[0]
            if not self.symbolic:
                heads, total, mass = self._losses(outputs, batch)
        autograd.backward(heads)
        plain = map_tree(lambda output: output.asnumpy(), outputs)
        if self.symbolic:
            total, mass = self.loss(plain, batch)
        for meter in self.meters:
            meter.update(plain, batch.y)
        gradients: dict[str, np.ndarray] = {}
        for name, parameter in self.parameters.items():
            value = _value(parameter)
            if parameter.grad_req != "null" and value._fresh_grad:
                gradients[name], value._fresh_grad = parameter.list_grad()[0].asnumpy(), False
        for name, old in before.items():
            gradients[name] = (_value(self.parameters[name]) - old).asnumpy() * mass
            self.parameters[name].set_data(old)
        return total, mass, gradients

    def apply(self, gradients: Arrays) -> None:
        """Update weights by the gradients, and running statistics by their mean change."""
        # Optimizers that draw must draw alike on all ranks, and anew in each step.
        seed_all(int(np.random.default_rng((self.seed, self.optimizer.optimizer.num_update)).integers(1 << 31)))
        changes = {name: change for name, change in gradients.items() if name in self.statistics}
        for name, change in changes.items():
            self.parameters[name].set_data(_value(self.parameters[name]) + array_of(change))
        self.optimizer.step({name: value for name, value in gradients.items() if name not in changes})

    def count_in(self, meters: list[Metric]) -> None:
        """Feed these metrics with the rows that are trained on."""
        self.meters = meters

    def complete_weights(self, x: Any, y: Any = None) -> None:
        """Draw weights whose shapes were not known before: as a process does that begins with a pass in evaluation.

        Raises:
            ArgumentError: Some weights take no part in a pass.
        """
        self.complete = self.complete or not self._unknown()  # a state may have told them since
        if self.complete:
            return
        weights = dict(self.weights())
        self.make()
        row, label = (None if tree is None else map_tree(lambda leaf: leaf[:1], tree) for tree in (x, y))
        if self.symbolic:
            arguments = self.net.arguments(row, label, self._input)
            start = self.net.start(arguments, self.config.get("init"))
            self.set_weights({name: value.asnumpy() for name, value in start.items()})
        for mode in (autograd.predict_mode, autograd.train_mode):  # some layers are for training alone
            if self._unknown():
                with mode():
                    self._forward(row, None)
                weights = dict(self.weights()) | weights
        if unknown := self._unknown():
            raise ArgumentError(f"the weights {unknown} take no part in a forward pass. Leave them out of the model.")
        self.set_weights(dict(self.weights()) | weights)
        self.complete = True

    def _unknown(self) -> list[str]:
        return [name for name, parameter in self.parameters.items() if parameter._data is None]

    # One batch.

    def _forward(self, x: Any, y: Any) -> Any:
        if self.symbolic:
            return self.net(*self.net.arguments(x, y, self._input))
        return self.net(*map(self._input, flatten(x)[0]))

    def _losses(self, outputs: Any, batch: Batch) -> tuple[list[Any], float, float]:
        """Return the losses of rows, their sum, and its divisor.

        Raises:
            ArgumentError: The loss does not keep the rows apart.
        """
        assert self.loss_of is not None
        heads = flatten(outputs)[0]
        labels = [] if batch.y is None else [_target(leaf, heads[0].dtype) for leaf in flatten(batch.y)[0]]
        each = self.loss_of(*heads, *labels)
        if not isinstance(each, mx.nd.NDArray) or each.shape[:1] != (batch.rows,):
            kind = f"shape {each.shape}" if isinstance(each, mx.nd.NDArray) else type(each).__name__
            raise ArgumentError(
                f"the loss must give one number a row, as those of gluon.loss do; got {kind} for {batch.rows} rows. "
                "Leave out its mean or sum: a step is divided by the rows of all workers."
            )
        mass = float(batch.rows)
        if batch.weights is not None:
            weights = np.asarray(batch.weights, np.float64).reshape(-1)
            each, mass = each * _input(weights.reshape(-1, *[1] * (each.ndim - 1))).astype(each.dtype), weights.sum()
        return [each], float(each.sum().asscalar()), float(mass)

    def _input(self, leaf: Any) -> Any:
        """Return features in the number type of the weights."""
        kinds = {np.dtype(each.dtype) for each in self.parameters.values()} & {np.dtype("float16"), np.dtype("float64")}
        array = _input(leaf)
        return array.astype(kinds.pop()) if len(kinds) == 1 and array.dtype == np.float32 else array


def seed_all(seed: int) -> None:
    """Seed all that a model may draw from."""
    mx.random.seed(seed)
    seed_plain(seed)


def named_parameters(block: Any) -> dict[str, Any]:
    """Return the parameters by their place in the block, which is the same in every process; a shared one once."""
    if isinstance(block, SymbolNet):
        return dict(block.collect_params())
    parameters = dict(block._collect_params_with_prefix())
    ids = set(map(id, parameters.values()))
    parameters |= {name.removeprefix(block.prefix): p for name, p in block.collect_params().items() if id(p) not in ids}
    unique = {id(parameter): name for name, parameter in reversed(parameters.items())}
    return {name: parameter for name, parameter in parameters.items() if unique[id(parameter)] == name}


def _statistics(block: Any, parameters: Mapping[str, Any]) -> set[str]:
    """Return the names of parameters that a forward pass changes: means and variances of batch normalization."""
    own: set[str] = set()
    block.apply(lambda each: own.update(_auxiliary(each)))
    return {
        name
        for name, each in parameters.items()
        if (not each._differentiable and not isinstance(each, gluon.Constant)) or each.name in own
    }


def _auxiliary(block: Any) -> list[str]:
    return block._cached_graph[1].list_auxiliary_states() if isinstance(block, gluon.SymbolBlock) else []


def _check(name: str, parameter: Any) -> None:
    if parameter._stype != "default" or parameter._grad_stype != "default":
        raise ArgumentError(
            f"{name} is sparse or has sparse gradients, which are not supported. Leave out sparse_grad=True."
        )
    contexts = parameter.list_ctx() if parameter._data or parameter._deferred_init else []
    if len(contexts) > 1:
        raise ArgumentError(f"a worker trains on one device; {name} was initialized on {contexts}. Use more workers.")


def _refuse_weights(batch: Batch) -> None:
    if batch.weights is not None:
        raise ArgumentError("the losses of a symbol take no weights of rows. Leave out sample_weight, or use a Block.")


def _value(parameter: Any) -> Any:
    return parameter.list_data()[0]


def _input(leaf: Any) -> Any:
    """Return numbers as an array of MXNet: in float32, as its iterators give them, but for large whole numbers."""
    array = np.asarray(leaf)
    if array.dtype.kind in "iu" and array.size and max(-int(array.min()), int(array.max())) > _EXACT:
        return mx.nd.array(array, dtype=np.int64)
    return mx.nd.array(array, dtype=np.float32)


def _target(leaf: Any, kind: Any) -> Any:
    """Return labels: measured ones in the number type of the outputs."""
    return _input(leaf).astype(kind) if np.asarray(leaf).dtype.kind == "f" else _input(leaf)
