"""Engine: the names of bigdl.util.common. Owns none of them; those of Spark load nothing until they are called."""

from orca.bigdl.datasets import to_sample_rdd
from orca.classic.nncontext import (
    RNG,
    EvaluatedResult,
    JavaValue,
    JTensor,
    Sample,
    callBigDlFunc,
    create_spark_conf,
    create_tmp_path,
    get_dtype,
    get_local_file,
    get_node_and_core_number,
    get_optimizer_version,
    get_spark_context,
    get_spark_sql_context,
    init_engine,
    is_distributed,
    set_optimizer_version,
    text_from_path,
    to_list,
)  # fmt: skip

__all__ = [
    "RNG", "EvaluatedResult", "JTensor", "JavaValue", "Sample", "callBigDlFunc", "create_spark_conf",
    "create_tmp_path", "get_dtype", "get_local_file", "get_node_and_core_number", "get_optimizer_version",
    "get_spark_context", "get_spark_sql_context", "init_engine", "is_distributed", "set_optimizer_version",
    "text_from_path", "to_list", "to_sample_rdd",
]  # fmt: skip
