"""Files, paths and Samples, as bigdl.dllib.utils.file_utils names them."""

from orca_classic.bigdl.datasets import set_core_number
from orca_classic.zoo.paths import *
from orca_classic.zoo.sample import JTensor, Sample

__all__ = [
    "JTensor", "Sample", "convert_to_safe_path", "enable_hdfs_load", "enable_multi_fs_load",
    "enable_multi_fs_load_static", "enable_multi_fs_save", "exists", "is_file", "is_local_path", "mkdirs", "rmdir",
    "set_core_number",
]  # fmt: skip
