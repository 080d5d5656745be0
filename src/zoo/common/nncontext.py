"""Spark as zoo.common.nncontext starts it, and what else its star import brings."""

from orca_classic.zoo.nncontext import *

__all__ = [
    "RDD", "RNG", "DataFrame", "EvaluatedResult", "JTensor", "JavaValue", "SQLContext", "Sample",
    "SparkConf", "SparkContext", "SparkFiles", "ZooContext", "ZooContextMeta", "callBigDlFunc", "check_version",
    "create_spark_conf", "create_tmp_path", "getOrCreateSparkContext", "get_analytics_zoo_conf", "get_dtype",
    "get_local_file", "get_node_and_core_number", "get_optimizer_version", "get_spark_context",
    "get_spark_sql_context", "glob", "init_engine", "init_env", "init_internal_nncontext", "init_nncontext",
    "init_spark_conf", "init_spark_on_k8s", "init_spark_on_k8s_cluster", "init_spark_on_local", "init_spark_on_yarn",
    "init_spark_on_yarn_cluster", "init_spark_standalone", "is_distributed", "load_conf", "np", "os", "re",
    "set_optimizer_version", "six", "stop_spark_standalone", "sys", "tempfile", "text_from_path", "threading",
    "to_list",
]  # fmt: skip
