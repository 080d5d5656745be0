"""Paged: tensors that lie in files without a name. Owns how a model is built, and gathered, where memory is too small.

The system keeps them in memory as far as there is room, and writes the rest to the disk.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from orca.errors import OrcaError

_LARGE = 1 << 20  # bytes from which on a tensor is worth a file, or a mapping of its own
_M_MMAP_THRESHOLD = -3  # of malloc.h


class Pages:
    """Tensors in files, of which little stays in memory."""

    def __init__(self) -> None:
        self._places: set[int] = set()
        self._last: mmap.mmap | None = None

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor that lies in a file, or in memory where it is small.

        Raises:
            OrcaError: The disk is full.
        """
        if tensor.nbytes < _LARGE:
            return tensor.clone()
        if self._last is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._last.madvise(mmap.MADV_DONTNEED)  # the contents stay in the file
        self._last = _mapped(tensor.nbytes)
        copy = torch.frombuffer(self._last, dtype=tensor.dtype).view(tensor.shape)
        copy.copy_(tensor)
        self._places.add(copy.data_ptr())
        return copy

    def hold(self, tensor: torch.Tensor) -> bool:
        """Say whether a tensor lies in one of the files."""
        return tensor.data_ptr() in self._places


@contextmanager
def building_on_disk() -> Iterator[None]:
    """Let the weights of modules that are built meanwhile lie in files; they are drawn as ever."""
    pages = Pages()

    def move(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is None or is_lazy(param) or param.device.type != "cpu" or pages.hold(param.data):
            return
        if param.nbytes >= _LARGE:
            param.data = pages.copy(param.data)

    hook = register_module_parameter_registration_hook(move)
    try:
        yield
    finally:
        hook.remove()


def give_memory_back() -> None:
    """Let this process give freed tensors back to the system at once.

    glibc keeps them for reuse: blocks that are gathered and freed, one after the other, would stay as if all were held.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)


def _mapped(size: int) -> mmap.mmap:
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # else a full disk kills the process when it writes
            else:
                file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise OrcaError(
            f"cannot put {size} bytes of weights into a file in {tempfile.gettempdir()}: {error}. Make room there, or "
            "choose a folder on a local disk that has room for the whole model (TMPDIR).",
            code="no-room-for-weights",
        ) from error
