"""TorchEstimator: the verbs of the PyTorch Estimator that are torch's own. Owns their arguments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from orca.core.engine import Settings, threads_asked_for
from orca.core.units import natural
from orca.estimators.training import TrainingEstimator
from orca.frameworks.torch.files import load_file, save_file, save_module
from orca.frameworks.torch.learner import TorchLearner
from orca.registry import backend_of
from orca.rows.tree import listed
from orca.storage.states import is_state


class TorchEstimator(TrainingEstimator):
    """A PyTorch model that learns and answers on any engine. Made by `Estimator.from_torch`."""

    learner: TorchLearner
    # Whether save writes one torch file whatever the path ends in, with backend="bigdl" a state dict of the model.
    one_file: ClassVar[bool] = False

    @classmethod
    def of(
        cls,
        *,
        model: Any = None,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        backend: str | None = None,
        config: dict[str, Any] | None = None,
        workers_per_node: int = 1,
        scheduler_creator: Callable[..., Any] | None = None,
        training_operator_cls: type | None = None,
        initialization_hook: Callable[[], None] | None = None,
        scheduler_step_freq: str = "batch",
        use_tqdm: bool = True,
        model_dir: str | None = None,
        sync_stats: bool = False,
        log_level: int = logging.INFO,
        log_to_driver: bool = True,
        seed: int | None = None,
        stall_timeout: float = 300.0,
        start_timeout: float = 0.0,
        threads_per_worker: int | None = None,
        precision: str | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | tuple[float, float] | None = None,
        compile: bool | dict[str, Any] = False,
        ema: float | None = None,
        deterministic: bool = False,
        sync_batchnorm: bool = False,
        shard_model: bool = False,
        find_unused_parameters: bool = False,
        loss_reduction: str | Callable[..., Any] | None = None,
        squeeze: bool = False,
        device_cache: bool = False,
    ) -> TorchEstimator:
        """Make an Estimator of a PyTorch model.

        Args:
            model: A `torch.nn.Module`, or a creator `(config)` that returns one on each worker; or a list of them.
            optimizer: A `torch.optim.Optimizer` of that module, a creator `(model, config)`, or an optim method of
                `orca.optimizers`.
            loss: A torch loss (instance or class), a function `(output, target)`, or a creator `(config)`.
            metrics: One metric or several: Orca metrics or their plain names ("accuracy"), metrics of torchmetrics, or
                functions `(output, target)` of all rows.
            backend: "spark" (the default), "bigdl", "ray" ("torch_distributed"), "horovod" or "local".
            config: The argument of all creators.
            workers_per_node: Workers (ranks) on each node of the cluster.
            scheduler_creator: A function `(optimizer, config)` that returns a learning rate scheduler.
            training_operator_cls: A subclass of TrainingOperator: training in your own words.
            initialization_hook: Called without arguments on each worker before anything else.
            scheduler_step_freq: When the scheduler steps: "batch", "epoch" or "manual".
            use_tqdm: Whether to show progress: a bar in a terminal, and a line for each epoch.
            model_dir: The folder of checkpoints.
            sync_stats: Whether, with reduce_results=False, each worker tells losses and metrics over all rows, not over
                its own.
            log_level: The level from which log records of workers appear on the driver.
            log_to_driver: Whether the output and logs of workers appear on the driver, with their rank.
            seed: Seed of initial weights, order and dropout; torch's own initial seed unless given.
            stall_timeout: Seconds without progress after which the stuck worker is named; 0 waits forever.
            start_timeout: Seconds that workers may take to start where the cluster is busy; 0 waits forever, and logs
                what for.
            threads_per_worker: Threads of a worker's arithmetic; unless given, OMP_NUM_THREADS where it is set here,
                else a node's cores shared among its workers.
            precision: "bf16" or "fp16" (with a loss scaler) for forward passes in mixed precision.
            accumulate: Pieces into which each worker cuts its part of a step, to need less memory.
            clip_norm: The norm to which the gradients of a step are clipped.
            clip_value: The bounds into which each gradient is clipped: (low, high), or one number for both.
            compile: Whether to compile the model with torch.compile; a dict holds its arguments.
            ema: The decay of a moving average of the weights, with which to evaluate and predict.
            deterministic: Whether torch may use deterministic algorithms alone.
            sync_batchnorm: Whether batch normalization sees the rows of all workers.
            shard_model: Whether to cut weights, gradients and optimizer state among the workers (FSDP2), for a model
                that is larger than a worker; with model_dir on shared storage its state stays there.
            find_unused_parameters: Whether some parameters may take no part in a step.
            loss_reduction: The kind of a loss of your own: "mean" (over rows), "sum", or a function `(target)` that
                returns the weight of each row in its mean. Found out unless given.
            squeeze: Whether predictions lose their dimensions of size 1 but the first.
            device_cache: Whether a worker keeps its rows on its GPU while it trains, or in memory where it has none,
                if they fill no more than half of the free memory there. For arrays, DataFrames and shards.

        Raises:
            ArgumentError: An argument has the wrong kind, or two do not go together.
        """
        entry = backend_of(backend or "spark")
        entry = replace(entry, sync="fully sharded") if shard_model else entry
        options = TorchLearner.options_of(
            clip_norm=clip_norm,
            clip_value=clip_value,
            scheduler=scheduler_creator,
            step_freq=scheduler_step_freq,
            operator=training_operator_cls,
            precision=precision,
            accumulate=accumulate,
            compiled=compile,
            ema=ema,
            deterministic=deterministic,
            sync_batchnorm=sync_batchnorm,
            unused=find_unused_parameters,
            reduction=loss_reduction,
            squeeze=squeeze,
            device_cache=device_cache,
        )
        threads = threads_per_worker or threads_asked_for()
        return cls(
            TorchLearner.of(model, optimizer, loss, dict(config or {}), entry.sync, initialization_hook, options),
            entry,
            metrics=metrics,
            config=config,
            workers_per_node=workers_per_node,
            model_dir=model_dir,
            seed=TorchLearner.default_seed() if seed is None else natural("seed", seed),
            settings=Settings(stall_timeout, use_tqdm, threads, log_level, log_to_driver, start_timeout),
            sync_stats=sync_stats,
        )

    def predict(  # type: ignore[override]
        self,
        data: Any,
        batch_size: int | None = None,
        feature_cols: Sequence[str] | str | None = None,
        output_cols: Sequence[str] | str | None = None,
        profile: bool = False,
        callbacks: Any = None,
        *,
        precision: str | None = None,
        cache: bool = False,
    ) -> Any:
        """Answer for every row, in the kind the data came in and in its order.

        Args:
            data: Data of any kind `fit` takes; labels are not needed.
            batch_size: Rows the model sees at a time.
            feature_cols: Columns that become the model's arguments.
            output_cols: Names of the prediction columns; `prediction` unless given.
            profile: Accepted.
            callbacks: Callbacks (`orca.callbacks`): their hooks of predictions are called for each batch.
            precision: "bf16" or "fp16" to compute in half precision; answers are in single precision.
            cache: Whether Spark keeps the rows of a DataFrame; those that an earlier call kept are not computed again.

        Returns:
            Arrays for arrays, loaders and creators; the same XShards with "prediction"; a DataFrame or Ray Dataset
            with one more column an output, computed lazily.
        """
        spec = self._spec(batch_size, feature_cols, None, output_cols, labelled=False, cache=cache)
        source = self._source(data, spec)
        callbacks = listed(callbacks)
        learner = self.learner.with_columns(spec.columns.features).for_answers(callbacks, precision)
        task = self._answers(learner, spec)
        # Callbacks may change an answer: its shape is known only then.
        return source.answer(replace(task, output=None) if callbacks else task, self.engine)

    def save(self, path: str | None = None, entire: bool = False, **other_names: str) -> str:  # type: ignore[override]
        """Save weights and optimizer state; returns the path.

        Args:
            path: A folder (safetensors and JSON), or a file: `.pt`-style for a torch state dict, `.safetensors` for
                weights alone. Any fsspec path.
            entire: Whether to pickle the whole module instead; loading it needs weights_only=False.
            other_names: The path under the names it had: model_path, checkpoint, filepath.
        """
        place = self._path("save", path, other_names)
        if entire:
            save_module(self.get_model(), place)
        else:
            form = "weights" if self.learner.sync == "sharded" else "state"
            save_file(self._current(), place, form if self.one_file else "")
        return place

    def load(  # type: ignore[override]
        self, path: str | None = None, loss: Any = None, *, weights_only: bool = True, **other_names: str
    ) -> TorchEstimator:
        """Load a saved model, a torch state dict, or, with weights_only=False, a pickled module.

        Args:
            path: The path.
            loss: A loss to use from now on.
            weights_only: False lets a pickled file run its code: only for files you trust.
            other_names: The path under the names it had: model_path, checkpoint, filepath.

        Raises:
            ArgumentError: There is no such file, its weights do not fit the model, or it would run code; the weights
                stay as they were.
        """
        place = self._path("load", path, other_names)
        state, model = (self._read(place), None) if is_state(place) else load_file(place, weights_only)
        if model is None:  # else the model is the file's own
            self._take(state, place)
        else:
            self._state = state
        if model is not None or loss is not None:
            self.learner = self.learner.with_parts(model, loss)
        return self

    save_checkpoint = save
    load_checkpoint = load

    def set_constant_gradient_clipping(self, min: float, max: float) -> None:
        """Clip each gradient into [min, max] from now on."""
        self._clip((min, max), None)

    def set_l2_norm_gradient_clipping(self, clip_norm: float) -> None:
        """Clip the gradients of a step to this norm from now on."""
        self._clip(None, clip_norm)

    def clear_gradient_clipping(self) -> None:
        """Stop clipping gradients."""
        self._clip(None, None)

    def _clip(self, bounds: tuple[float, float] | None, norm: float | None) -> None:
        self.learner = self.learner.with_clipping(bounds, norm)
