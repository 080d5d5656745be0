"""Names of bigdl.dllib.feature."""

__all__: list[str] = []
