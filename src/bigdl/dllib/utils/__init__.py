"""What programs need besides, as bigdl.dllib.utils names it."""

__all__: list[str] = []
