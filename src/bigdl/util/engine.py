"""The engine of BigDL."""

from orca_classic.zoo.nncontext import create_spark_conf, get_node_and_core_number, init_engine

__all__ = ["create_spark_conf", "get_node_and_core_number", "init_engine"]
