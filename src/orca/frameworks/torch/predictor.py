"""TorchPredictor: torch models that predict in one process. Owns the forward pass of predictions."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

import torch

from orca.core.learner import Predictor
from orca.core.state import State
from orca.frameworks.torch.batch_loss import BatchLoss
from orca.frameworks.torch.hooks import TorchHooks
from orca.frameworks.torch.replica import Replica
from orca.frameworks.torch.runner import TorchRunner
from orca.frameworks.torch.session import TorchRun
from orca.frameworks.torch.tensors import answering_device, to_numpy
from orca.rows.tree import flatten, listed, map_tree, same_form

if TYPE_CHECKING:
    from orca.frameworks.torch.learner import TorchLearner

logger = logging.getLogger(__name__)


class TorchPredictor(TorchRun, Predictor):
    """Torch models that predict in one process; opened once, used for many blocks of rows.

    Args:
        spec: The learner, with callbacks of predictions.
        state: The state, with its payload.
        gpu: The GPU to predict on, if the cluster gave this process one.
    """

    def __init__(self, spec: TorchLearner, state: State, gpu: str | None) -> None:
        device = answering_device(gpu)
        models = [model.to(device).eval() for model in listed(spec.build(state))]
        super().__init__(spec, Replica(spec, models, device), None, BatchLoss(None))
        self.input = state.input
        self.runner = TorchRunner(self, config=spec.config)
        self.callbacks = TorchHooks(spec.callbacks, self.runner)
        self.operator = self.build_operator(0, state)
        self._has_warned = False  # that the last value in an item is taken for a label
        self.callbacks.begin()
        self.callbacks("before_pred_epoch")

    def predict(self, x: Any) -> Any:
        """Return the outputs for a block of rows, as a tree of numpy arrays."""
        runner = self.runner
        with torch.inference_mode(), self.replica.autocast():
            runner.show_batch(listed(self.replica.place.features(x)))
            self.callbacks("before_pred_iter")
            if self.callbacks.main is not None:
                self.callbacks.on_main("on_pred_forward")
            else:
                self.answer(runner)
            self.callbacks("after_pred_iter")
            runner.begin_step(runner.batch_idx + 1)
            return map_tree(to_numpy, runner.output)

    def takes(self, x: Any) -> bool:
        """Return whether these may be the model's inputs.

        The form is that of training, or else its forward pass takes so many.
        """
        if self.input is not None:
            return same_form(flatten(x)[1], self.input.structure)
        return self._binds(listed(x))

    def spares(self, x: Any) -> bool:
        """Return whether the model can do without the last of its inputs, which is then more likely a label.

        It is an optional argument of its forward pass, and no value of it has been seen yet.
        """
        if self.input is not None:
            return False
        *inputs, _ = listed(x)
        parameters = inspect.signature(self.replica.model.forward).parameters.values()
        spares = not any(p.kind is p.VAR_POSITIONAL for p in parameters) and self._binds(inputs)
        if spares and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the forward pass of %s has optional inputs, and has seen no data yet: the last of the %d things in an "
                "item is taken for a label. Where it is an input, evaluate or train the model first, or name the "
                "inputs: {'x': (first, second)}.",
                *(type(self.replica.model).__name__, len(inputs) + 1),
            )
        return spares

    def _binds(self, inputs: list[Any]) -> bool:
        try:
            inspect.signature(self.replica.model.forward).bind(*inputs)
        except (TypeError, ValueError):
            return False
        return True
