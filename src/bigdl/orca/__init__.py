"""The context, as bigdl.orca names it."""

from orca.cluster.context import OrcaContext, init_orca_context, stop_orca_context

__all__ = ["OrcaContext", "init_orca_context", "stop_orca_context"]
