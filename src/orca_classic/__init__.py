"""Orca Classic: what programs for Analytics Zoo, BigDL, TensorFlow 1 and MXNet need, on top of `orca`."""

from orca.monitor.tracebacks import add_home

add_home(__path__[0])
