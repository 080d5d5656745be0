"""Models of texts, as zoo.tfpark.text names them."""

__all__: list[str] = []
