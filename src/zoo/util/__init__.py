"""What programs need besides, as zoo.util names it."""

__all__: list[str] = []
