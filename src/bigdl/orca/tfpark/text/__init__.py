"""Models of texts, as bigdl.orca.tfpark.text names them."""

__all__: list[str] = []
