"""Files, paths and Samples, as bigdl.dllib.utils.file_utils names them."""

from orca.bigdl.datasets import set_core_number
from orca.classic.paths import *
from orca.classic.sample import JTensor, Sample

__all__ = [
    "JTensor", "Sample", "convert_to_safe_path", "enable_hdfs_load", "enable_multi_fs_load",
    "enable_multi_fs_load_static", "enable_multi_fs_save", "exists", "is_file", "is_local_path", "mkdirs", "rmdir",
    "set_core_number",
]  # fmt: skip
