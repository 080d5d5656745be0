"""Wrappers: torch models and losses as programs of Analytics Zoo hold them. Owns TorchModel and TorchLoss.

TorchOptim, the third of them, is an optim method: `orca_classic.bigdl.optimizers.wrapped`.
"""

from __future__ import annotations

import copy
import inspect
import uuid
from collections.abc import Callable
from typing import Any

from torch import nn

from orca.errors import ArgumentError
from orca.frameworks.torch.architecture import build, describe
from orca.storage.state import State
from orca.storage.states import is_state, load_state, save_state
from orca_classic.bigdl.criterion import Criterion
from orca_classic.bigdl.layer import Layer
from orca_classic.bigdl.optimizers.wrapped import TorchOptim

__all__ = ["TorchLoss", "TorchModel", "TorchOptim"]


class TorchModel(Layer):
    """A torch model: a module, or a class or function that makes one on the workers.

    Example:
        >>> import numpy as np
        >>> model = TorchModel.from_pytorch(nn.Linear(2, 1))
        >>> model.forward(np.ones((1, 2))).shape
        (1, 1)
    """

    def __init__(self, model: nn.Module | Callable[[], nn.Module]) -> None:
        self.source = model
        self._module: nn.Module | None = model if isinstance(model, nn.Module) else None
        self.arguments, self.layers, self._seed, self._last = {}, [], None, None
        self._name = f"TorchModel{uuid.uuid4().hex[:8]}"

    @staticmethod
    def from_pytorch(model: Any) -> TorchModel:
        """Wrap a module, a class of modules, or a function without arguments that returns a module.

        Raises:
            ArgumentError: It is none of them.
        """
        is_module = isinstance(model, nn.Module)
        if not is_module and not callable(model):
            raise ArgumentError(
                "TorchModel wraps a torch.nn.Module, a class of modules or a function that returns one; got "
                f"{type(model).__name__}."
            )
        if isinstance(model, type) and not issubclass(model, nn.Module):
            raise ArgumentError(f"TorchModel wraps a class of modules; got the class {model.__name__}.")
        if not is_module and any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
                            for p in inspect.signature(model).parameters.values()):  # fmt: skip
            raise ArgumentError(
                f"TorchModel calls {getattr(model, '__name__', model)} without arguments on the workers, and it needs "
                "some. Wrap its result, or functools.partial(...) of it."
            )
        return TorchModel(model)

    @property
    def module(self) -> nn.Module:  # type: ignore[override]
        """Return the module; a class or function makes it on first use."""
        if self._module is None:
            thing = self.source()
            if not isinstance(thing, nn.Module):
                raise ArgumentError(f"the function of a TorchModel must return a module; got {type(thing).__name__}.")
            self._module = thing
        return self._module

    @module.setter
    def module(self, value: nn.Module) -> None:
        self._module = value

    def to_torch(self) -> nn.Module:
        """Return the module itself: several inputs are several arguments."""
        return self.module

    def to_pytorch(self) -> nn.Module:
        """Return the module, with the weights and buffers it has now."""
        return self.module

    def saveModel(self, path: str, over_write: bool = False) -> None:  # type: ignore[override]
        """Save the whole model as a folder of JSON and safetensors, at any fsspec path; nothing is pickled.

        Raises:
            ArgumentError: There is something already, or the module cannot be described in JSON; says why.
        """
        if is_state(path) and not over_write:
            raise ArgumentError(f"there is a model at {path} already. Pass over_write=True to replace it.")
        payload = {"models": [self.module.state_dict()], "architecture": describe(self.module)}
        save_state(State(payload=payload), path, "torch")

    @staticmethod
    def loadModel(path: str, model: nn.Module | None = None) -> TorchModel:  # type: ignore[override]
        """Load a model that saveModel wrote.

        Args:
            path: The path.
            model: A module of that kind, where the saved one cannot be built by its name.
        """
        payload = load_state(path, "torch").payload
        net = build(payload["architecture"]) if model is None else copy.deepcopy(model)
        net.load_state_dict(payload["models"][0])
        return TorchModel(net)


class TorchLoss(Criterion):
    """A loss of torch: an instance or a class, or a function of output and label. Its labels count from 0."""

    def __init__(self, loss: Any) -> None:
        self.arguments: dict[str, Any] = {}
        self.module = loss() if isinstance(loss, type) else loss
        self.one_based = False

    @staticmethod
    def from_pytorch(criterion: Any) -> TorchLoss:
        """Wrap a loss of torch, a class of them, or a function `(input, label)` that returns a number.

        Raises:
            ArgumentError: It is none of them.
        """
        if not callable(criterion):
            raise ArgumentError(
                "TorchLoss wraps a torch loss, a class of them or a function (input, label); got "
                f"{type(criterion).__name__}."
            )
        return TorchLoss(criterion)

    def to_torch(self) -> Any:
        """Return the loss; one of the user's own gets several outputs, and several labels, as lists."""
        kinds = type(self.module).__mro__ if isinstance(self.module, nn.Module) else [self.module]
        names = [str(getattr(kind, "__module__", "")) for kind in kinds if kind is not nn.Module]
        is_torch = any(name.startswith("torch.nn.") for name in names)
        return self.module if is_torch else OwnLoss(self.module)

    @property
    def reduction(self) -> Any:
        """Return None: the reduction of a loss of torch is detected."""
        return None


class OwnLoss(nn.Module):
    """A loss of the user's own, called with (input, label): each is a tensor, or a list if the model has several."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, *parts: Any) -> Any:
        """Return the loss of outputs and as many labels, or one label less."""
        half = (len(parts) + 1) // 2
        outputs, labels = list(parts[:half]), list(parts[half:])
        if half > 1 and all(output.shape[1:] == (1,) for output in outputs):  # not compared row by row otherwise
            labels = [label[:, None] if label.ndim == 1 else label for label in labels]
        return self.loss(*(part[0] if len(part) == 1 else part for part in (outputs, labels)))
