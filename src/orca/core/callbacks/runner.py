"""Runner: a callback's view of a run on one rank. Owns the names that callbacks read and set, for every framework."""

from __future__ import annotations

import copy
from typing import Any

from orca.core.state import State


class Runner:
    """A callback's view of a run, and its say in it.

    Args:
        session: The session, which has weights, states and learning rates; None if there is none.
        model: What callbacks see as the model, unless a framework's own runner has others.
        rank: This rank.
        size: How many there are.
        state: The state that the run begins with.
        config: The argument of the creators.

    Attributes:
        batch: The batch as a loader gives it: features and target.
        batch_idx: Its number in the epoch, from 0.
        output, target, loss: The results of the forward pass; of a learner that is no torch model, the loss of the
            step alone.
        epochs: The number of the epoch that is going on, from 1.
        num_epochs: Epochs of this fit.
        num_steps: Steps of an epoch; None where nobody knows.
        skips_validations: Whether the fit validates, but perhaps not in every epoch.
        global_step: Training steps done in all, also in fits before.
        epoch_stats: Statistics of the last epoch over all ranks, validation included.
        rank, size: This rank, and how many there are.
        config: The argument of the creators.
        stop: Set it to end the fit after this step; all ranks stop when one of them asks for it.
        timers: Empty, for programs that look at it.
    """

    def __init__(
        self,
        session: Any,
        rank: int = 0,
        size: int = 1,
        state: State | None = None,
        config: dict[str, Any] | None = None,
        model: Any = None,
    ) -> None:
        self._session = session
        self._model = model
        self._pocket: dict[str, Any] = {}
        self.rank, self.size, self.config = rank, size, {} if config is None else config
        self.batch: Any = None
        self.output: Any = None
        self.target: Any = None
        self.loss: Any = None
        self.batch_idx = self.num_epochs = 0
        self.epochs, self.global_step = (state.epoch, state.steps) if state else (0, 0)
        self.num_steps: int | None = None
        self.skips_validations = False
        self.epoch_stats: dict[str, Any] = {}
        self.timers: dict[str, float] = {}
        self.stop = False

    # Called by the loop and the session.

    def begin_run(self, epochs: int, steps: int | None, line: dict[str, Any], skips_validations: bool) -> None:
        """Begin a fit of so many epochs (0: an evaluation or a prediction) after an epoch with these statistics."""
        self.num_epochs, self.num_steps = epochs, steps
        self.epoch_stats, self.skips_validations = line, skips_validations

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch of training."""
        self.epochs = epoch

    def begin_step(self, step: int) -> None:
        """Begin a step of an epoch, or of an evaluation."""
        self.batch_idx = step

    def show_batch(self, batch: Any) -> None:
        """Show a batch, of which there is no loss yet."""
        self.batch, self.loss = batch, None

    def show_result(self, output: Any, target: Any, loss: Any) -> None:
        """Show the results of a forward pass."""
        self.output, self.target, self.loss = output, target, loss

    def show_loss(self, loss: Any) -> None:
        """Show the loss of a step of a framework whose outputs callbacks do not see."""
        self.loss = loss

    def end_step(self) -> None:
        """End a training step."""
        self.global_step += 1

    def end_epoch(self, line: dict[str, Any]) -> None:
        """Show the statistics of an epoch, to which callbacks may add."""
        self.epoch_stats = line

    def stop_run(self) -> None:
        """Stop after this step, as all ranks agreed."""
        self.stop = True

    def close(self) -> None:
        """Forget the session: callbacks may live longer than its process group."""
        self._session = None

    # Where the run is.

    @property
    def training(self) -> bool:
        """Say whether this is a fit, not an evaluation or a prediction by itself."""
        return self.num_epochs > 0

    @property
    def metrics_stats(self) -> dict[str, Any]:
        """Return the statistics of the last validation."""
        return {name: value for name, value in self.epoch_stats.items() if name.startswith("val_")}

    # The model.

    @property
    def given_models(self) -> list[Any]:
        """Return the models as the user made them; the learner if it has no models of its own kind."""
        return [self._model]

    @property
    def models(self) -> list[Any]:
        """Return the models as they are trained."""
        return self.given_models

    @property
    def model(self) -> Any:
        """Return the first model."""
        return self.models[0]

    @property
    def learning_rates(self) -> list[float]:
        """Return the learning rates of the next step; none where the learner does not tell."""
        return list(self._session.learning_rates())

    @property
    def description(self) -> dict[str, Any]:
        """Return facts about the training, for loggers."""
        return {"lr": rates[0]} if (rates := self.learning_rates) else {}

    def get_state_dict(self) -> dict[str, Any]:
        """Return models, optimizers and schedulers as state dicts; all ranks must call it together."""
        return {"epoch": self.epochs, "steps": self.global_step, **self._session.state().payload}

    def write_state(self, state: State, path: str) -> None:
        """Write a state to a path that the Estimator loads."""
        self._session.write_state(state, path)

    def copy_weights(self) -> Any:
        """Return a copy of the weights as this rank holds them."""
        return self._session.copy_weights()

    def put_back_weights(self, weights: Any) -> None:
        """Give the model the result of copy_weights; all ranks must do it."""
        self._session.put_back_weights(weights)

    def gather_weights(self, weights: Any) -> Any:
        """Return copied weights as rank 0 keeps them in a file; all ranks must do it."""
        return weights

    def copied(self, states: dict[str, Any]) -> dict[str, Any]:
        """Return a deep copy of callbacks' states."""
        return copy.deepcopy(states)

    # The pocket: values that callbacks leave for each other.

    def put(self, key: str, value: Any) -> None:
        """Keep a value under a new name."""
        self._pocket[key] = value

    update = put

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value that was put."""
        return self._pocket.get(key, default)

    def remove(self, key: str) -> None:
        """Forget a value."""
        self._pocket.pop(key, None)
