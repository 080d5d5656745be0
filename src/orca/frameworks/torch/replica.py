"""Replica: the models of this process on their device. Owns how they are called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from orca.errors import DataError
from orca.frameworks.torch.build import build_models, load_weights
from orca.frameworks.torch.options import PRECISIONS
from orca.frameworks.torch.tensors import Place, call, first_row, floats, integer_inputs

if TYPE_CHECKING:
    from orca.core.state import State
    from orca.frameworks.torch.learner import TorchLearner


class Replica:
    """The models of this process on their device, and their exponential moving average, if there is one.

    Args:
        spec: The learner.
        models: The models as the user made them.
        device: Their device.
        average: The average of the first model.
    """

    def __init__(
        self, spec: TorchLearner, models: list[nn.Module], device: torch.device, average: AveragedModel | None = None
    ) -> None:
        self.spec, self.models, self.average = spec, models, average
        self.place = Place.of(models[0], device)
        self.sample: Any = None  # the first row that this rank has seen
        self._casts_integers = False  # whether the model takes floating-point numbers although the data has integers

    @property
    def model(self) -> nn.Module:
        """The first model as the user made it."""
        return self.models[0]

    @property
    def eval_model(self) -> nn.Module:
        """The model that evaluates and predicts: the average, if there is one."""
        return self.model if self.average is None else self.average.module

    @property
    def with_average(self) -> list[nn.Module]:
        """The models, and the average as the last."""
        return self.models if self.average is None else [*self.models, self.average.module]

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of forward passes, in mixed precision if an option requests it."""
        precision = self.spec.options.precision
        if precision is None:
            return nullcontext()
        return torch.autocast(self.place.device.type, PRECISIONS[precision])

    def remember(self, x: Any) -> None:
        """Remember the first row of a batch, which describes all rows."""
        if self.sample is None:
            self.sample = first_row(x)

    def forward(self, module: nn.Module, x: Any) -> Any:
        """Call a model on a batch's features, which may be arrays."""
        self.remember(x)
        return self.call(module, self.place.features(x))

    def call(self, module: nn.Module, x: Any) -> Any:
        """Call a model; integers in place of floating-point numbers raise an error, or are cast if the sync is BigDL's.

        Raises:
            DataError: The model takes floating-point numbers.
        """
        if self._casts_integers:
            x = floats(x)
        try:
            return call(module, x, self.spec.features)
        except RuntimeError as error:
            mismatch = integer_inputs(error, x, self.spec.features)
            if mismatch is None:
                raise
            if self.spec.sync != "sharded":
                raise mismatch from error
            output = _call_with_floats(module, x, mismatch)
        self._casts_integers = True
        return output

    def update_average(self) -> None:
        """Add the weights after a step to their average."""
        if self.average is not None:
            self.average.update_parameters(self.model)


def _call_with_floats(module: nn.Module, x: Any, mismatch: DataError) -> Any:
    try:
        return call(module, floats(x))
    except RuntimeError as error:  # another of its layers takes integers
        raise mismatch from error


def models_for(spec: TorchLearner, state: State | None, device: torch.device) -> list[nn.Module]:
    """Return the models of a rank on its device, with the weights of a state."""
    with spec.building():
        models = build_models(spec.model, spec.config)
    if not spec.spread:  # otherwise its shards go there when it is sharded
        models = [model.to(device) for model in models]
    if state:
        for model, weights in zip(models, state.payload["models"], strict=True):
            load_weights(model, weights)
    if spec.options.compiled:
        for model in models:
            _compile(model, spec.options.compiled if isinstance(spec.options.compiled, dict) else {})
    return models


def average_of(model: nn.Module, decay: float | None, state: State | None) -> AveragedModel:
    """Return the exponential moving average of a model, continued from a state that has one."""
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay or 0.999))
    averages = state.payload.get("averages") if state else None
    if averages:
        average.module.load_state_dict(averages[0])
        average.n_averaged.fill_(1)
    average.eval()
    return average


@contextmanager
def evaluating(models: Sequence[nn.Module]) -> Iterator[None]:
    """Let models evaluate for a while; then each layer trains, or not, as before."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _compile(model: nn.Module, options: dict[str, Any]) -> None:
    """Compile the calls of a module.

    As of torch 2.11, Module.compile does nothing if forward is torch's own, as that of nn.Sequential: the compiler
    begins with code outside of torch, such as this function.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)

    model._compiled_call_impl = torch.compile(forward, **options)
