"""Names of Analytics Zoo, for programs written for it."""

__all__: list[str] = []
