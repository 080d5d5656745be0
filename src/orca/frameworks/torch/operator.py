"""Operator: training in the user's own words. Owns TrainingOperator, and when its methods are called.

The learner itself does all that a subclass leaves alone, exactly. A method that it overrides gets the rank's batches as
a loader would give them; gradients are weighed by the rank's rows while they are averaged, and numbers by rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from orca.frameworks.torch.batch_loss import BatchLoss
from orca.rows.tree import listed

SCHEDULER_STEP = "scheduler_step_freq"
SCHEDULER_STEP_BATCH = "batch"
SCHEDULER_STEP_EPOCH = "epoch"
SCHEDULER_STEP_MANUAL = "manual"
NUM_STEPS = "num_steps"
NUM_SAMPLES = "num_samples"


class TrainingOperator:
    """A way to train, validate and predict: subclass it, override some methods, pass the class to from_torch.

    Args:
        config: The argument of the creators.
        models: The models, wrapped for all ranks.
        optimizers: Their optimizers.
        world_rank: This rank.
        criterion: The loss.
        schedulers: Learning rate schedulers.
        use_fp16: Whether forward passes run in half precision.
        use_tqdm: Whether a progress bar is wanted.
        others: Accepted: sync_stats, dist_backend, device_ids, use_gpu of older releases.

    Example:
        >>> class Twice(TrainingOperator):
        ...     def train_batch(self, batch, batch_info):
        ...         stats = super().train_batch(batch, batch_info)
        ...         return stats | {"double_loss": 2 * stats["train_loss"]}
    """

    def __init__(
        self,
        config: dict[str, Any],
        models: Any,
        optimizers: Any,
        world_rank: int,
        criterion: Any = None,
        schedulers: Any = None,
        use_fp16: bool = False,
        use_tqdm: bool = False,
        **others: Any,
    ) -> None:
        self._config, self._criterion, self._world_rank = config, criterion, world_rank
        self._models, self._optimizers, self._schedulers = listed(models), listed(optimizers), listed(schedulers)
        self._use_fp16, self._use_tqdm = use_fp16, use_tqdm
        self.global_step = 0
        # Set by our own train_epoch: schedulers that step once an epoch do so when the losses of all ranks are known.
        self.ends_epoch = False
        self.setup(config)

    def setup(self, config: dict[str, Any]) -> None:
        """Prepare attributes of the operator's own."""

    def train_epoch(self, iterator: Iterator[Any], info: dict[str, Any], callbacks: Any = None) -> dict[str, Any]:
        """Train one epoch; return means over its rows.

        Args:
            iterator: This rank's batches.
            info: epoch_idx, num_steps, scheduler_step_freq, and the user's `info` of fit.
            callbacks: Accepted.
        """
        means = Means()
        for batch_idx, batch in enumerate(iterator):
            stats = self.train_batch(batch, {"batch_idx": batch_idx, "global_step": self.global_step} | info)
            means.add_batch(stats, batch, iterator)
            if info.get(SCHEDULER_STEP) == SCHEDULER_STEP_BATCH:
                for scheduler in self._schedulers:
                    scheduler.step()
            self.global_step += 1
        self.ends_epoch = True
        return means.summary()

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        """Train on one batch; return at least train_loss."""
        _, _, loss = self.forward_batch(batch, batch_info)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"train_loss": loss.detach(), NUM_SAMPLES: rows_in(batch)}

    def forward_batch(self, batch: Any, batch_info: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Return (output, target, loss) of one batch."""
        *features, target = batch
        output = self.model(*features)
        measure = BatchLoss(self.criterion)
        outputs, targets = measure.pair(output, target)
        return output, measure.trees(outputs, targets)[1], measure(outputs, targets)

    def validate(
        self, val_iterator: Iterator[Any], info: dict[str, Any], metrics: Any = None, num_steps: int | None = None
    ) -> dict[str, Any]:
        """Evaluate; return means over the rows. Unless overridden, metrics are exact over all ranks."""
        means = Means()
        for batch_idx, batch in enumerate(val_iterator):
            means.add_batch(self.validate_batch(batch, {"batch_idx": batch_idx} | info), batch, val_iterator)
        return means.summary()

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        """Evaluate one batch; return means over its rows."""
        with torch.no_grad():
            _, _, loss = self.forward_batch(batch, batch_info)
        return {"val_loss": loss, NUM_SAMPLES: rows_in(batch)}

    def predict(self, pred_iterator: Iterable[Any]) -> list[Any]:
        """Return the outputs for several batches."""
        return [self.predict_batch(batch) for batch in pred_iterator]

    def predict_batch(self, batch: Any) -> Any:
        """Return the output for one batch of features."""
        features = batch if isinstance(batch, tuple | list) else (batch,)
        return self.model(*features)

    def state_dict(self) -> dict[str, Any]:
        """Return the operator's own state, which is saved with the model."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state back."""

    def _begin_epoch(self, global_step: int) -> None:
        """Count steps from here."""
        self.global_step = global_step

    def _take_epoch_end(self) -> bool:
        """Return whether our own train_epoch trained the epoch, and left its end to the session."""
        ends, self.ends_epoch = self.ends_epoch, False
        return ends

    @property
    def config(self) -> dict[str, Any]:
        """Return the config that creators get."""
        return self._config

    @property
    def models(self) -> list[nn.Module]:
        """Return the models."""
        return self._models

    @property
    def model(self) -> nn.Module:
        """Return the first model."""
        return self._models[0]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers."""
        return self._optimizers

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Return the first optimizer."""
        return self._optimizers[0]

    @property
    def schedulers(self) -> list[Any]:
        """Return the learning rate schedulers."""
        return self._schedulers

    @property
    def scheduler(self) -> Any:
        """Return the first scheduler, None where there is none."""
        return next(iter(self._schedulers), None)

    @property
    def criterion(self) -> Any:
        """Return the loss."""
        return self._criterion

    @property
    def world_rank(self) -> int:
        """Return this rank."""
        return self._world_rank

    @property
    def device(self) -> torch.device:
        """Return the device of the model."""
        return next(self.model.parameters()).device

    @property
    def use_gpu(self) -> bool:
        """Say whether the model is on a GPU."""
        return self.device.type == "cuda"

    @property
    def use_fp16(self) -> bool:
        """Say whether forward passes run in half precision."""
        return self._use_fp16

    @property
    def use_tqdm(self) -> bool:
        """Say whether a progress bar is wanted."""
        return self._use_tqdm


class Means:
    """Numbers added up by rows, on their device, which become means at the end."""

    def __init__(self) -> None:
        self.sums: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.rows: dict[str, int] = {}
        self.total = 0

    def add_batch(self, stats: dict[str, Any], batch: Any, batches: Any) -> None:
        """Add an operator's numbers of a batch, by its true rows where the iterator knows them."""
        numbers = dict(stats)
        rows = numbers.pop(NUM_SAMPLES, rows_in(batch))
        self.add(numbers, getattr(batches, "rows", rows))

    def add(self, numbers: dict[str, Any], rows: int) -> None:
        """Add the means of a batch of so many rows; a batch without rows counts nothing."""
        self.total += rows
        for name, value in numbers.items() if rows else ():
            value = value.detach() if isinstance(value, torch.Tensor) else value
            self.sums[name] = self.sums.get(name, 0.0) + value * rows
            self.rows[name] = self.rows.get(name, 0) + rows
            self.last[name] = value

    def summary(self) -> dict[str, Any]:
        """Return each mean, and each last value under its name with last_ before it."""
        means = {name: float(total) / self.rows[name] for name, total in self.sums.items()}
        return means | {f"last_{name}": float(value) for name, value in self.last.items()} | {NUM_SAMPLES: self.total}


def overrides(operator: Any, *names: str) -> bool:
    """Say whether an operator class has methods of its own under these names."""
    return any(getattr(operator, name) is not getattr(TrainingOperator, name) for name in names)


def rows_in(batch: Any) -> int:
    """Return the rows of a batch as a loader gives it."""
    while isinstance(batch, dict | tuple | list):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return len(batch)
