"""Estimator: the object that users of the older frameworks hold. Owns the calls that make one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orca.estimators
from orca.core.arguments import checked
from orca.registry import load

if TYPE_CHECKING:
    from orca_classic.bigdl.estimator import BigdlEstimator
    from orca_classic.mxnet.estimator import MxnetEstimator
    from orca_classic.tf1.estimators.graph import GraphEstimator
    from orca_classic.tf1.graph.optimizers import TrainStep


class Estimator(orca.estimators.Estimator):
    """The Estimator, also of a graph of TensorFlow 1, an MXNet model, or a BigDL model.

    Example:
        >>> from orca_classic import Estimator
        >>> {"from_graph", "from_mxnet", "from_bigdl", "from_torch"} <= set(dir(Estimator))
        True
    """

    @classmethod
    @checked
    def from_graph(
        cls,
        *,
        inputs: Any,
        outputs: Any = None,
        labels: Any = None,
        loss: Any = None,
        optimizer: Any = None,
        metrics: Any = None,
        clip_norm: float | None = None,
        clip_value: Any = None,
        updates: Sequence[Any] | None = None,
        sess: Any = None,
        model_dir: str | None = None,
        backend: str | None = None,
        workers_per_node: int = 1,
        seed: int = 0,
        log_to_driver: bool = True,
        stall_timeout: float = 300.0,
        start_timeout: float = 0.0,
        threads_per_worker: int | None = None,
        feeds: Mapping[Any, Any] | None = None,
        targets: Any = None,
        turns: Sequence[tuple[TrainStep, int]] = (),
        loss_reduction: str | None = None,
    ) -> GraphEstimator:
        """Make an Estimator of a graph's ends.

        Args:
            inputs: The tensor that features are fed to; a list, tuple or dict for several.
            outputs: The tensor, or tensors, to answer with.
            labels: The tensor, or tensors, that labels are fed to.
            loss: A scalar tensor, computed from means and sums over rows in any way. On several workers it is tried
                before the first step whether they train as one does.
            optimizer: An optimizer of `tf.train` or Keras, or an optim method of BigDL.
            metrics: Name -> tensor; or metrics of `orca.metrics`, which compare outputs with labels.
            clip_norm: The largest norm that all gradients together may have.
            clip_value: The largest size of a gradient's values, or a pair of the least and the largest value.
            updates: Operations that run with each step, such as those of batch normalization (UPDATE_OPS).
            sess: The session with the variables; a new one unless given. Variables without a value get their first.
            model_dir: The folder of checkpoints and summaries.
            backend: "bigdl" or "spark", "ray", "local"; unless given, the cluster that is up.
            workers_per_node: Workers (ranks) on each node of the cluster.
            seed: Seed of order and dropout.
            log_to_driver: Whether the output and logs of workers appear on the driver, with their rank.
            stall_timeout: Seconds without progress after which the stuck worker is named; 0 waits forever.
            start_timeout: Seconds that workers may take to start where the cluster is busy; 0 waits on.
            threads_per_worker: Threads of a worker's arithmetic; a node's cores shared among its workers unless given.
            feeds: Tensor -> value, or a pair of its value in training and its value otherwise: for every call.
            targets: Tensors that metrics of `orca.metrics` compare outputs with, where these are not the labels.
            turns: Steps of several optimizers that take turns, and how many each takes in a row, for one optimizer.
            loss_reduction: What several workers take the loss for: the "mean" or the "sum" of a worker's rows, or
                "none" for one that is no reduction of them: a value a row, whose mean is trained, or a number that is
                the same on every worker. Unless given, the graph tells, and a loss for which it makes a difference how
                rows are dealt out is refused.

        Raises:
            ArgumentError: The loss has no variables, something is not fed, or an operation cannot be shipped.
        """
        kind = load("orca_classic.tf1.estimators.graph:GraphEstimator", need="a graph of TensorFlow 1")
        return kind.of(  # type: ignore[no-any-return]
            inputs=inputs,
            outputs=outputs,
            labels=labels,
            loss=loss,
            optimizer=optimizer,
            metrics=metrics,
            clip_norm=clip_norm,
            clip_value=clip_value,
            updates=updates,
            sess=sess,
            model_dir=model_dir,
            backend=backend,
            workers_per_node=workers_per_node,
            seed=seed,
            log_to_driver=log_to_driver,
            stall_timeout=stall_timeout,
            start_timeout=start_timeout,
            threads_per_worker=threads_per_worker,
            feeds=feeds,
            targets=targets,
            turns=turns,
            loss_reduction=loss_reduction,
        )

    @classmethod
    @checked
    def from_mxnet(
        cls,
        *,
        config: dict[str, Any],
        model_creator: Callable[..., Any],
        loss_creator: Callable[..., Any] | None = None,
        eval_metrics_creator: Callable[..., Any] | None = None,
        validation_metrics_creator: Callable[..., Any] | None = None,
        num_workers: int | None = None,
        num_servers: int | None = None,
        runner_cores: int | None = None,
        backend: str | None = None,
        workers_per_node: int = 1,
        model_dir: str | None = None,
        log_to_driver: bool = True,
        stall_timeout: float = 300.0,
        start_timeout: float = 0.0,
    ) -> MxnetEstimator:
        """Make an Estimator of an MXNet model.

        Args:
            config: The result of `create_config`; all creators get it.
            model_creator: A function `(config)` that returns a `gluon.Block`, or a `mx.mod.Module` whose symbol ends in
                a loss, on each worker. Weights that it does not initialize are.
            loss_creator: A function `(config)` that returns the loss of a block, called with its outputs and the
                labels: one number a row, as those of `gluon.loss` give. For a Module it only tells the loss.
            eval_metrics_creator: A function `(config)` that returns metrics of MXNet (or their names) of the rows that
                are trained on.
            validation_metrics_creator: The same for validation data and `evaluate`; unless given, those of
                eval_metrics_creator.
            num_workers: The number of workers, whatever the nodes of the cluster; workers_per_node for each node unless
                given.
            num_servers: Accepted: workers add gradients up themselves, there are no servers.
            runner_cores: Threads of a worker's arithmetic; unless given, OMP_NUM_THREADS where it is set here, else a
                node's cores shared among its workers.
            backend: "spark", "ray" or "local"; unless given, the cluster that is up.
            workers_per_node: Workers (ranks) on each node of the cluster.
            model_dir: The folder of checkpoints.
            log_to_driver: Whether the output and logs of workers appear on the driver, with their rank.
            stall_timeout: Seconds without progress after which the stuck worker is named; 0 waits forever.
            start_timeout: Seconds that workers may take to start where the cluster is busy; 0 waits on, and says every
                while what for.

        Raises:
            ArgumentError: An argument has the wrong kind.
        """
        kind = load("orca_classic.mxnet.estimator:MxnetEstimator", need="an MXNet model")
        return kind.of(  # type: ignore[no-any-return]
            config=config,
            model_creator=model_creator,
            loss_creator=loss_creator,
            eval_metrics_creator=eval_metrics_creator,
            validation_metrics_creator=validation_metrics_creator,
            num_workers=num_workers,
            num_servers=num_servers,
            runner_cores=runner_cores,
            backend=backend,
            workers_per_node=workers_per_node,
            model_dir=model_dir,
            log_to_driver=log_to_driver,
            stall_timeout=stall_timeout,
            start_timeout=start_timeout,
        )

    @classmethod
    @checked
    def from_bigdl(cls, *, model: Any, loss: Any = None, optimizer: Any = None, metrics: Any = None,
           feature_preprocessing: Any = None, label_preprocessing: Any = None, model_dir: str | None = None,
           backend: str | None = None, **options: Any) -> BigdlEstimator:  # fmt: skip
        """Make an Estimator of a BigDL model.

        Args:
            model: A layer of `bigdl.nn.layer` or of the Keras-style API.
            loss: A criterion; needed to train.
            optimizer: An optim method; SGD() unless given.
            metrics: Validation methods of BigDL, or metrics of `orca.metrics`.
            feature_preprocessing: A Preprocessing, or the shape of a row (a list of shapes for several inputs).
            label_preprocessing: The same of labels.
            model_dir: The folder of checkpoints.
            backend: "bigdl" (Spark, optimizer state cut among the workers) unless given; any of `from_torch`.
            options: Other arguments of `from_torch`, as workers_per_node or seed.

        Raises:
            ArgumentError: An argument has the wrong kind.
        """
        kind = load("orca_classic.bigdl.estimator:BigdlEstimator", need="a bigdl model")
        return kind.of(  # type: ignore[no-any-return]
            model=model,
            loss=loss,
            optimizer=optimizer,
            metrics=metrics,
            feature_preprocessing=feature_preprocessing,
            label_preprocessing=label_preprocessing,
            model_dir=model_dir,
            backend=backend,
            **options,
        )
