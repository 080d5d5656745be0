"""Paths: small helpers for paths that programs of BigDL call. Owns their names."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from orca.data.file import (
    enable_multi_fs_load,
    enable_multi_fs_load_static,
    enable_multi_fs_save,
    exists,
    is_file,
    rmdir,
)
from orca.data.file import enable_multi_fs_load as enable_hdfs_load
from orca.data.file import makedirs as mkdirs

__all__ = [
    "convert_to_safe_path", "enable_hdfs_load", "enable_multi_fs_load", "enable_multi_fs_load_static",
    "enable_multi_fs_save", "exists", "is_file", "is_local_path", "mkdirs", "rmdir",
]  # fmt: skip


def convert_to_safe_path(input_path: str, follow_symlinks: bool = True) -> str:
    """Return the absolute path, without `..` and, with follow_symlinks, without symbolic links."""
    return os.path.realpath(input_path) if follow_symlinks else os.path.abspath(input_path)


def is_local_path(path: str) -> bool:
    """Say whether a path is one of this machine."""
    return urlsplit(path).scheme in ("", "file")
