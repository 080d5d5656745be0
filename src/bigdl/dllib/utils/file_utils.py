"""Files and paths, as bigdl.dllib.utils.file_utils names them."""

from orca.classic.paths import *

__all__ = [
    "convert_to_safe_path", "enable_hdfs_load", "enable_multi_fs_load", "enable_multi_fs_load_static",
    "enable_multi_fs_save", "exists", "is_file", "is_local_path", "mkdirs", "rmdir",
]  # fmt: skip
