"""Names of bigdl.dlframes."""

__all__: list[str] = []
