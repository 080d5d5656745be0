"""The layer library and its triggers, as bigdl.dllib names them."""

__all__: list[str] = []
