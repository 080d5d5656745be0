"""What BigDL's programs share."""

__all__: list[str] = []
