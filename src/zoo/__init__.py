"""Names of Analytics Zoo, for programs written for it."""

from orca_classic.zoo.nncontext import init_nncontext, init_spark_conf, init_spark_on_local, init_spark_on_yarn

__all__ = ["init_nncontext", "init_spark_conf", "init_spark_on_local", "init_spark_on_yarn"]
