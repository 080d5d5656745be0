"""Names of BigDL, for programs written for it."""

__all__: list[str] = []
