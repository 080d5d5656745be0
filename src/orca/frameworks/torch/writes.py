"""Writes: models whose forward passes write into weights in a way that torch does not notice."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from orca.errors import ArgumentError


def refuse_max_norm(models: Sequence[nn.Module], ranks: int) -> None:
    """Refuse embeddings that shorten the vectors they look up if there are several ranks: replicas would drift apart.

    Raises:
        ArgumentError: An embedding has `max_norm`.
    """
    for model in models if ranks > 1 else ():
        for name, module in model.named_modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
                raise ArgumentError(
                    f"{type(module).__name__} {name!r} has max_norm={module.max_norm}: its forward pass writes into "
                    f"the weights of the rows it looks up, which are others on each of {ranks} workers. Leave max_norm "
                    "out and shorten the vectors in forward() after the lookup, or train with one worker.",
                    code="embedding-max-norm",
                )
