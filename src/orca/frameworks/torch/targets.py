"""Targets: how labels meet outputs, and their mass. Owns dtype and shape of a target: nothing broadcasts."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from orca.errors import DataError
from orca.frameworks.torch.tensors import full
from orca.rows.tree import flatten

_CLASS_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
_CLASS_FUNCTIONS = (functional.cross_entropy, functional.nll_loss, functional.multi_margin_loss)
_BY_NUMBER = {
    "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss", "SoftMarginLoss", "mse_loss",
    "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "soft_margin_loss",
}  # fmt: skip
_COUNTING = (nn.CrossEntropyLoss, nn.NLLLoss, functional.cross_entropy, functional.nll_loss)
_LINKS = {
    "BCEWithLogitsLoss": "sigmoid", "binary_cross_entropy_with_logits": "sigmoid", "SoftMarginLoss": "sigmoid",
    "soft_margin_loss": "sigmoid", "MultiLabelSoftMarginLoss": "sigmoid", "multilabel_soft_margin_loss": "sigmoid",
    "CrossEntropyLoss": "softmax", "cross_entropy": "softmax",
}  # fmt: skip
IGNORED = -100  # torch's default ignore_index


def takes_classes(loss: Any) -> bool:
    """Say whether a loss compares outputs with class numbers."""
    return isinstance(loss, _CLASS_LOSSES) or (loss.func if isinstance(loss, partial) else loss) in _CLASS_FUNCTIONS


def settings_of(loss: Any) -> tuple[Any, dict[str, Any], bool]:
    """Return (the loss of torch that this is or derives from, its settings, whether the user wrote it)."""
    if isinstance(loss, nn.Module):
        kind = next((kind for kind in type(loss).__mro__ if kind.__module__ == "torch.nn.modules.loss"), None)
        return kind, vars(loss) | loss._buffers, type(loss).forward is not getattr(kind, "forward", None)
    function, keywords = (loss.func, loss.keywords) if isinstance(loss, partial) else (loss, {})
    if getattr(function, "__module__", "") != functional.__name__:
        return None, {}, loss is not None
    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    return function, defaults | keywords, "reduction" not in defaults


def link_of(loss: Any) -> str:
    """Return what makes probabilities of the outputs that a loss takes: "sigmoid", "softmax"; "" if unknown.

    Losses of torch, classes derived from them, and torchvision's sigmoid_focal_loss are known.

    >>> link_of(nn.BCEWithLogitsLoss()), link_of(partial(functional.cross_entropy, label_smoothing=0.1))
    ('sigmoid', 'softmax')
    """
    function = loss.func if isinstance(loss, partial) else loss
    if (
        getattr(function, "__name__", "") == "sigmoid_focal_loss"
        and getattr(function, "__module__", "") == "torchvision.ops.focal_loss"
    ):
        return "sigmoid"
    return _LINKS.get(getattr(settings_of(loss)[0], "__name__", ""), "")


def name_by_number(which: Any) -> str:
    """Return the name of a loss of torch's that compares outputs and targets number by number; "" for all others."""
    name = getattr(which, "__name__", "")
    return name if name in _BY_NUMBER else ""


def check_shapes(name: str, outputs: list[Any], targets: list[Any]) -> None:
    """Check that a loss that compares number by number has the same shapes on either side.

    Torch would broadcast them, or not, depending on how many rows a batch has.

    Raises:
        DataError: The shapes differ.
    """
    for output, target in zip(outputs, targets, strict=False):
        tensors = isinstance(output, torch.Tensor) and isinstance(target, torch.Tensor)
        if not tensors or output.shape == target.shape:
            continue
        if output.shape[:1] != target.shape[:1]:
            raise DataError(
                f"{name} compares number by number, but a batch of labels has the shape {tuple(target.shape)}, and its "
                f"outputs {tuple(output.shape)}. Let the model answer for each row: outputs begin with the rows.",
                code="labels-do-not-fit",
            )
        raise DataError(
            f"{name} compares number by number, but a row's labels have the shape {tuple(target.shape[1:])}, and "
            f"its outputs {tuple(output.shape[1:])}. Let the model have an output for each label, or use another "
            "loss.",
            code="labels-do-not-fit",
        )


def no_class(loss: Any, outputs: list[Any], targets: list[Any]) -> DataError | None:
    """Return the error that labels are no classes; None where they are, or the loss takes none."""
    if not takes_classes(loss) or len(outputs) != 1 or outputs[0].dim() < 2:
        return None
    count, labels = outputs[0].shape[1], targets[0]
    ignore_index = settings_of(loss)[1].get("ignore_index", IGNORED)
    wrong = labels[((labels < 0) | (labels >= count)) & (labels != ignore_index)]
    if not len(wrong):
        return None
    return DataError(
        f"labels are classes that count from 0: 0 to {count - 1} for a model of {count} outputs; got {int(wrong[0])}. "
        "Subtract 1 from labels that count from 1, or give the model more outputs.",
        code="labels-not-classes",
    )


def classes_of(which: Any, settings: dict[str, Any]) -> Classes | None:
    """Return how a loss of torch's counts its targets, where its mean is one over these."""
    if which not in _COUNTING or settings["reduction"] != "mean":
        return None
    weight = settings["weight"]
    return Classes(None if weight is None else weight.detach().cpu().double().numpy(), settings["ignore_index"])


@dataclass(frozen=True)
class Classes:
    """The mass of class numbers in a mean: the weight of their class (1 without weights), 0 for ignored ones."""

    weight: np.ndarray | None = None
    ignored_class: int = IGNORED

    def __call__(self, labels: Any) -> np.ndarray:
        """Return the mass of each row."""
        numbers = np.asarray(labels)
        if numbers.dtype != np.int64:
            with np.errstate(invalid="ignore"):  # the loss complains of labels that are no numbers
                numbers = numbers.astype(np.int64)
        # A number that is no class is for the loss to refuse.
        each = 1.0 if self.weight is None else self.weight.take(numbers, mode="clip")
        masses: np.ndarray = np.where(numbers == self.ignored_class, 0.0, each).reshape(len(numbers), -1).sum(1)
        return masses


def align(output: torch.Tensor, target: torch.Tensor, classes: bool) -> torch.Tensor:
    """Give a target the dtype and shape that the loss compares the output with.

    >>> align(torch.zeros(2, 1), torch.tensor([1, 2]), classes=False)
    tensor([[1.],
            [2.]])
    >>> align(torch.zeros(2, 3), torch.tensor([[1.0], [2.0]]), classes=True)
    tensor([1, 2])
    """
    if classes:
        if target.is_floating_point() and target.shape == output.shape:
            return target.to(output.dtype)  # probabilities of every class
        shape = (output.shape[0], *output.shape[2:])
        whole = (target.reshape(shape) if target.shape != shape and _same_rows(target.shape, shape) else target).long()
        if target.is_floating_point() and target.device.type == "cpu":  # a GPU would have to wait for the answer
            _check_whole(target, whole)
        return whole
    if _same_rows(target.shape, output.shape):
        target = target.reshape(output.shape)
    if output.is_floating_point() and (target.is_floating_point() or target.shape == output.shape):
        target = target.to(output.dtype)
    return target


def _check_whole(target: torch.Tensor, whole: torch.Tensor) -> None:
    wrong = target.reshape(-1) != whole.reshape(-1)
    if bool(wrong.any()):
        raise DataError(
            f"labels are numbers of classes; got {float(target.reshape(-1)[wrong][0])!r}. Pass whole numbers, or use a "
            "loss for numbers, such as MSELoss.",
            code="labels-not-classes",
        )


def align_all(output: Any, target: Any, classes: bool) -> tuple[list[Any], list[Any]]:
    """Flatten outputs and targets and align each target with the output at its place, or under its key.

    Outputs of half precision become single ones first: a target never loses digits to them.

    Raises:
        DataError: Outputs and targets have names, but not the same ones.
    """
    if isinstance(output, torch.Tensor) and isinstance(target, torch.Tensor):
        return [output := full(output)], [align(output, target, classes)]
    outputs, targets = [full(leaf) for leaf in flatten(output)[0]], flatten(by_key(output, target))[0]
    if len(outputs) == len(targets):
        targets = [
            align(o, t, classes) if isinstance(o, torch.Tensor) and isinstance(t, torch.Tensor) else t
            for o, t in zip(outputs, targets, strict=True)
        ]
    return outputs, targets


def align_trees(output: Any, target: Any) -> Any:
    """Return targets as a loss that takes dicts gets them: each aligned with the output of its name or place, if any.

    Those that the outputs name come first, in the order of the outputs.
    """
    if isinstance(output, dict) and isinstance(target, dict):
        names = sorted(target, key=lambda name: [*output, name].index(name))
        return {name: align_trees(output.get(name), target[name]) for name in names}
    if isinstance(output, tuple | list) and isinstance(target, tuple | list) and len(output) == len(target):
        return [align_trees(o, t) for o, t in zip(output, target, strict=True)]
    pair = isinstance(output, torch.Tensor) and isinstance(target, torch.Tensor)
    return align(full(output), target, classes=False) if pair else target


def takes(function: Any, count: int) -> bool:
    """Say whether a loss, or another function of the user's, takes just so many arguments, not any number of them."""
    try:
        signature = inspect.signature(getattr(function, "forward", function))
        signature.bind(*range(count))
    except (TypeError, ValueError):  # it takes another number, or does not say
        return False
    return all(each.kind is not each.VAR_POSITIONAL for each in signature.parameters.values())


def has_dict(tree: Any) -> bool:
    """Say whether there is a dict in a tree."""
    return isinstance(tree, dict) or (isinstance(tree, tuple | list) and any(map(has_dict, tree)))


def by_key(output: Any, target: Any) -> Any:
    """Return the targets in the order of the outputs that have the same keys."""
    if isinstance(output, dict) and isinstance(target, dict):
        if output.keys() == target.keys():
            return {key: by_key(output[key], target[key]) for key in output}
        if output.keys() & target.keys() or len(output) == len(target):
            raise DataError(
                f"the model's outputs are named {list(output)}, but the targets are named {list(target)}: each output "
                "is compared with the target of its name. Name them alike.",
                code="target-names-differ",
            )
    elif isinstance(output, tuple | list) and isinstance(target, tuple | list) and len(output) == len(target):
        return [by_key(o, t) for o, t in zip(output, target, strict=True)]
    return target


def _same_rows(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Say whether shapes differ by dimensions of 1 alone: any other reshape would mix the values of a row."""
    return [size for size in one if size != 1] == [size for size in other if size != 1]
