"""Tensors: arrays on a rank's device and back. Owns devices, precisions, and the forms a batch takes for a model."""

from __future__ import annotations

import copy
import inspect
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orca.core.resources import own_gpu
from orca.core.source import Batch
from orca.core.world import World
from orca.errors import DataError
from orca.monitor.tracebacks import owner
from orca.monitor.verbosity import is_debug
from orca.rows.tree import cut_rows, flatten, listed, map_tree

# Words of torch when a layer of floating-point weights gets integers.
_MISMATCH = re.compile(
    "same dtype|scalar type|should be the same|must have the type|not implemented for '(Long|Int|Short|Char|Byte|Bool)'"
)
# Words of torch about shapes that a layer does not take.
_SHAPES = re.compile("shape|size|dimension|channels")
_INTEGERS = re.compile(r"(?i)\b(long|int|short|char|byte|bool)(tensor)?\b")
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Place:
    """The destination of tensors: a device, and the precision in which a model takes floating-point numbers."""

    device: torch.device
    precision: torch.dtype

    @classmethod
    def of(cls, net: nn.Module, device: torch.device) -> Place:
        """Return the place of a model: its features come in the precision of its weights."""
        first = next((p for p in net.parameters() if p.is_floating_point()), None)
        return cls(device, first.dtype if first is not None else torch.get_default_dtype())

    def features(self, x: Any) -> Any:
        """Return features as tensors in the model's precision."""
        return map_tree(lambda leaf: self._tensor(leaf, cast=True), x)

    def targets(self, y: Any) -> Any:
        """Return targets as tensors, as they are."""
        return map_tree(lambda leaf: self._tensor(leaf, cast=False), y)

    def loaded(self, batch: Batch) -> list[Any]:
        """Return a batch as a loader gives it: features, and the target last; one without rows has its template twice.

        Targets come in the model's precision, too, as user code expects; in single precision for a model of less.
        """
        x, y = (batch.x, batch.y) if batch.rows else (twice(batch.x), twice(batch.y))
        features = listed(self.features(x))
        single = replace(self, precision=torch.float32) if self.precision in HALVES else self
        return features if y is None else [*features, single.features(y)]

    def _tensor(self, leaf: Any, cast: bool) -> Any:
        if isinstance(leaf, torch.Tensor):
            cast = cast and leaf.dtype != self.precision and leaf.is_floating_point()
            return self._move(leaf.to(self.precision) if cast else leaf)
        array = np.asarray(leaf)
        if array.dtype.kind not in "biufc":
            raise DataError(
                f"a torch model cannot take values of type {array.dtype} (for example {array.reshape(-1)[:1]}). "
                "Turn such columns into numbers first, for instance with StringIndexer or a cast.",
                code="bad-dtype",
            )
        if not array.flags.writeable or not array.flags.c_contiguous:
            array = np.array(array)
        tensor = torch.from_numpy(array)
        if cast and tensor.is_floating_point():
            tensor = tensor.to(self.precision)
        return self._move(tensor)

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == self.device:
            return tensor
        if self.device.type == "cuda" and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()  # from where it travels in the background
        return tensor.to(self.device, non_blocking=True)


def device_of(world: World) -> torch.device:
    """Return this rank's own GPU; the CPU if no rank sees a GPU."""
    gpu = own_gpu(world.rank, world.resources)
    if gpu is None:
        return torch.device("cpu")
    torch.cuda.set_device(gpu)
    return torch.device("cuda", gpu)


def answering_device(gpu: str | None) -> torch.device:
    """Return the GPU of this number, else the first, else the CPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return torch.device("cpu")
    return torch.device("cuda", int(gpu) if gpu and gpu.isdigit() and int(gpu) < count else 0)


def call(module: nn.Module, x: Any, columns: Sequence[str] = ()) -> Any:
    """Call a model: several features are its arguments.

    Args:
        module: The model.
        x: Its inputs, tensors.
        columns: The names of the columns that these are; () for data without columns.

    Raises:
        DataError: The model takes another number of inputs, or a layer of torch's takes other shapes.
    """
    inputs = x if isinstance(x, tuple | list) else [x]
    try:
        return module(*inputs)
    except (RuntimeError, TypeError) as error:
        misfit = _other_number(error, module, inputs, columns) or _other_shapes(error, inputs)
        if misfit is None:
            raise
        raise DataError(misfit, code="inputs-do-not-fit") from (error if is_debug() else None)


def _other_number(error: Exception, module: nn.Module, inputs: Sequence[Any], columns: Sequence[str]) -> str | None:
    """Return that a model takes another number of inputs; None for another error."""
    if not isinstance(error, TypeError):
        return None
    if isinstance(module, DistributedDataParallel):
        module = module.module
    forward = inspect.signature(module.forward)
    try:
        forward.bind(*inputs)
    except TypeError:
        if len(columns) == len(inputs) > 1:
            given = f"{len(inputs)} columns ({', '.join(columns)})"
            remedy = "Put them into one column of arrays, or let forward take them all"
        else:
            given = f"{len(inputs)} array{'s' * (len(inputs) > 1)}"
            remedy = "Put them into one array, or let forward take them all; predict takes features without labels"
        parameters = ", ".join(forward.parameters)
        return (
            f"{type(module).__name__}.forward({parameters}) does not fit the features: {given}, each an argument of "
            f"its own. {remedy}."
        )
    return None


def _other_shapes(error: Exception, inputs: Sequence[Any]) -> str | None:
    """Return that a layer of torch's takes inputs of other shapes; None for other errors, and in code of the user's."""
    words = str(error).strip().partition("\n")[0]
    if type(error) is not RuntimeError or not _SHAPES.search(words):
        return None
    if any(not owner(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)):
        return None
    shapes = " and ".join(str(tuple(leaf.shape)) for leaf in flatten(list(inputs))[0])
    return (
        f"the model does not take features of the shape {shapes}, a batch of rows. Change its layers or the features. "
        f"(torch: {words})"
    )


def integer_inputs(error: Exception, x: Any, columns: Sequence[str]) -> DataError | None:
    """Return the error that a model got integers where it computes in floating-point numbers; None for another one.

    Args:
        error: The error of its forward pass.
        x: Its inputs, tensors.
        columns: The names of the columns that these are; () for data without columns.
    """
    words = str(error).strip().splitlines()[0] if str(error).strip() else ""
    # The indices of an embedding must be integers. Other words are about two types of floating-point numbers.
    if not _MISMATCH.search(words) or "indices" in words or not _INTEGERS.search(words):
        return None
    leaves = flatten(x)[0]
    places = [place for place, leaf in enumerate(leaves) if not (leaf.is_floating_point() or leaf.is_complex())]
    if not places:
        return None
    if len(columns) == len(leaves):
        names = [columns[place] for place in places]
        what = f"the column{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"
        name = names[0]
        remedy = f"Cast integers: df[{name!r}].astype('float32') in pandas, or col({name!r}).cast('float')"
    else:
        what = f"input {', '.join(str(place + 1) for place in places)} of {len(leaves)}"
        remedy = "Pass floating-point numbers, for instance x.astype('float32')"
    kinds = ", ".join(sorted({str(leaves[place].dtype).removeprefix("torch.") for place in places}))
    return DataError(
        f"a layer of the model takes floating-point numbers and got integers: {what} ({kinds}). {remedy}, or call "
        f".float() in the model's forward. (torch: {words})",
        code="integer-inputs",
    )


def floats(x: Any) -> Any:
    """Return a tree of tensors with integers as floating-point numbers."""
    return map_tree(lambda leaf: leaf if leaf.is_floating_point() else leaf.to(torch.get_default_dtype()), x)


def twice(tree: Any) -> Any:
    """Return every row of a tree twice: batch norm needs two."""
    return None if tree is None else map_tree(_twice, tree)


def _twice(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return at_home(leaf).repeat_interleave(2, dim=0)
    return np.repeat(np.asarray(leaf), 2, axis=0)


def pieces_of(batch: Batch, pieces: int) -> list[Batch]:
    """Return a batch in up to so many pieces of about the same number of rows."""
    pieces = min(pieces, batch.rows)
    if pieces <= 1:
        return [batch]
    edges = [batch.rows * number // pieces for number in range(pieces + 1)]
    return [
        replace(
            batch,
            x=cut_rows(batch.x, slice(start, stop)),
            y=None if batch.y is None else cut_rows(batch.y, slice(start, stop)),
            rows=stop - start,
            weights=None if batch.weights is None else batch.weights[start:stop],
            masses=None if batch.masses is None else batch.masses[start:stop],
        )
        for start, stop in pairwise(edges)
    ]


def template_of(batch: Batch) -> Batch:
    """Return a batch without rows, which has the first row as its template."""
    y = None if batch.y is None else cut_rows(batch.y, slice(0, 1))
    return replace(batch, x=cut_rows(batch.x, slice(0, 1)), y=y, rows=0, weights=None)


def first_row(x: Any) -> Any:
    """Return the first row of a tree, in this machine's memory."""
    return map_tree(at_home, cut_rows(x, slice(0, 1)))


def at_home(leaf: Any) -> Any:
    """Return a tensor in this machine's memory."""
    return leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf


def copied(state: Any, tensors: bool = True) -> Any:
    """Return a deep copy of a state dict, its tensors in the machine's memory, or as they are."""
    leaves = [leaf for leaf in flatten(state)[0] if isinstance(leaf, torch.Tensor)]
    copies: dict[int, Any] = {id(leaf): leaf.detach().cpu().clone() if tensors else leaf for leaf in leaves}
    whole: dict[str, Any] = copy.deepcopy(dict(state), copies)
    return whole


def squeezed(leaf: Any) -> Any:
    """Return a tensor or an array without its dimensions of size 1 but the first."""
    return leaf.reshape([leaf.shape[0], *(size for size in leaf.shape[1:] if size != 1)])


def full(leaf: Any) -> Any:
    """Return a tensor of half precision in single precision."""
    return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype in HALVES else leaf


def to_numpy(leaf: Any) -> np.ndarray:
    """Return a tensor as an array, half precision as single precision; an array unchanged."""
    if isinstance(leaf, np.ndarray) and leaf.dtype != object:
        return leaf
    if not isinstance(leaf, torch.Tensor):
        raise DataError(
            "a model must answer with tensors, arrays, or tuples, lists and dicts of them; "
            f"got {type(leaf).__name__} among its outputs. Leave it out of what forward returns (attention without "
            "weights, for one, returns None).",
            code="bad-output",
        )
    dense = leaf.detach() if leaf.layout is torch.strided else leaf.detach().to_dense()
    array: np.ndarray = full(dense).cpu().numpy()
    return array
