"""What MXNet itself does, in one process: plain loops to compare with. MXNet is loaded where it is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from orca.core.learner import FitPlan
from orca.job import FitJob

ROWS = 53
X = np.random.default_rng(1).normal(size=(ROWS, 5)).astype("float32")
Y = ((X[:, 0] > 0).astype("int64") + (X[:, 1] > 0.5)).astype("int64")
SEED = 7


def network(config: dict[str, Any]) -> Any:
    """Return a block whose first shapes are known with the first row only."""
    from mxnet import gluon

    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(6, activation="tanh"))
    if config.get("normalized"):
        net.add(gluon.nn.BatchNorm())
    if config.get("dropout"):
        net.add(gluon.nn.Dropout(config["dropout"]))
    net.add(gluon.nn.Dense(3, in_units=6))
    if config.get("hybrid"):
        net.hybridize()
    if config.get("frozen"):
        net[0].collect_params().setattr("grad_req", "null")
    for name, value in config.get("scales", {}).items():
        net[-1].bias.lr_mult, net[-1].weight.wd_mult = (value, value) if name == "last" else (1.0, 1.0)
    return net


def cross_entropy(config: dict[str, Any]) -> Any:
    from mxnet import gluon

    return gluon.loss.SoftmaxCrossEntropyLoss()


def gluon_loop(config: dict[str, Any], batches: list[np.ndarray], x: Any = X, y: Any = Y) -> dict[str, np.ndarray]:
    """Train with a Trainer of Gluon in one process; return the weights."""
    import mxnet as mx
    from mxnet import autograd, gluon

    mx.random.seed(SEED)
    net = network(config)
    net.initialize()
    net(mx.nd.array(x[:1]))
    loss = cross_entropy(config)
    options = {} if config.get("optimizer_params") is None else dict(config["optimizer_params"])
    if config.get("schedule"):
        options["lr_scheduler"] = config["schedule"]()
    trainer = gluon.Trainer(net.collect_params(), config["optimizer"], options, kvstore=None)
    for rows in batches:
        with autograd.record():
            each = loss(net(mx.nd.array(x[rows])), mx.nd.array(y[rows]))
        each.backward()
        trainer.step(len(rows))
    return {name: p.data().asnumpy() for name, p in net._collect_params_with_prefix().items()}


def symbol(normalized: bool = False) -> Any:
    """Return a symbol that ends in its loss."""
    import mxnet as mx

    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, name="first")
    hidden = mx.sym.Activation(hidden, act_type="tanh")
    hidden = mx.sym.BatchNorm(hidden, fix_gamma=False, name="norm") if normalized else hidden
    last = mx.sym.FullyConnected(hidden, num_hidden=3, name="second")
    return mx.sym.SoftmaxOutput(last, name="softmax")


def module(config: dict[str, Any]) -> Any:
    import mxnet as mx

    return mx.mod.Module(symbol(config.get("normalized", False)))


def module_loop(config: dict[str, Any], batch_size: int, epochs: int, rows: int) -> dict[str, np.ndarray]:
    """Train with Module.fit in one process; return the weights."""
    import mxnet as mx

    mx.random.seed(SEED)
    made = module(config)
    data = mx.io.NDArrayIter(X[:rows], Y[:rows].astype("float32"), batch_size)
    made.fit(
        data, num_epoch=epochs, kvstore=None, optimizer=config["optimizer"], optimizer_params=config["optimizer_params"]
    )
    weights, statistics = made.get_params()
    return {name: value.asnumpy() for name, value in {**weights, **statistics}.items()}


@dataclass(frozen=True)
class Recording:
    """A fit that also returns the rows which this rank gave to each step, and its weights at the end."""

    job: FitJob

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> Any:
        from orca_classic.mxnet.learner import MxnetLearner, MxnetSession

        steps: list[np.ndarray] = []
        weights: dict[str, np.ndarray] = {}

        class RecordingSession(MxnetSession):
            def train_step(self, batch: Any, step: int) -> Any:
                steps.append(batch.x[: batch.rows])
                return super().train_step(batch, step)

            def close(self) -> None:
                weights.update(self.learner.weights())
                super().close()

        class RecordingLearner(MxnetLearner):
            session_type = RecordingSession

        learner = RecordingLearner(**{each.name: getattr(self.job.learner, each.name) for each in fields(MxnetLearner)})
        _, state = replace(self.job, learner=learner)(world, rows, heartbeat)
        return state, steps, weights


def recorded(config: dict[str, Any], plan: FitPlan, creator: Callable[..., Any] = network) -> Recording:
    """Return a fit of a learner as `Estimator.from_mxnet` makes it."""
    from orca_classic.mxnet.learner import MxnetLearner

    return Recording(FitJob(MxnetLearner(creator, cross_entropy, None, config, SEED), plan, (), None))


def index_of(row: np.ndarray) -> int:
    return int(np.flatnonzero((row == X).all(axis=1))[0])
