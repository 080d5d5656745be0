"""Writes: forward passes that write into weights. Owns how they are noticed, and which of them are refused.

Each replica would write values of its own rows, and they would drift apart. A write that does not depend on rows (a
clamp of the weights, say) is the same on every rank, and allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from orca.core.world import World
from orca.errors import ArgumentError

_WATCHED = 3  # steps at the beginning of a fit


class Writes:
    """A watch over the weights of models during the forward passes of a fit's first steps.

    Args:
        nets: The models.
        world: The ranks.
        whole: Whether every rank has whole weights, so that a write can be seen.

    Raises:
        ArgumentError: An embedding writes into its weights (max_norm), and there are several ranks.
    """

    def __init__(self, nets: Sequence[nn.Module], world: World, whole: bool = True) -> None:
        self.world, self.steps_left = world, _WATCHED if world.size > 1 and whole else 0
        self.parameters = [pair for net in nets for pair in net.named_parameters()]
        for net in nets if world.size > 1 else ():
            for name, module in net.named_modules():
                if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
                    raise ArgumentError(
                        f"{type(module).__name__} {name!r} has max_norm={module.max_norm}: its forward pass writes "
                        f"into the weights of the rows it looks up, which are others on each of {world.size} workers. "
                        "Leave max_norm out and shorten the vectors in forward() after the lookup, or train with one "
                        "worker."
                    )

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch one step's forward passes; all ranks do it together."""
        if not self.steps_left:
            yield
            return
        self.steps_left -= 1
        before = [param._version for _, param in self.parameters]
        yield
        pairs = zip(self.parameters, before, strict=True)
        digests = {name: _digest(param) for (name, param), version in pairs if param._version != version}
        everyone = self.world.all_gather(digests)
        names = sorted(name for own in everyone for name in own if any(own[name] != o.get(name) for o in everyone))
        if names:
            raise ArgumentError(
                f"the forward pass writes into the weight {names[0]!r}, and not the same on each of "
                f"{self.world.size} workers, so that they drift apart. Keep what is written in a buffer "
                "(register_buffer), write in a callback after the step, or train with one worker."
            )


def _digest(param: nn.Parameter) -> tuple[str, str]:
    """Return two numbers that tell whether weights are the same."""
    flat = param.detach().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    places = torch.arange(1, flat.numel() + 1, device=flat.device, dtype=torch.float64)
    return float(flat.double().sum()).hex(), float((flat.double() * places).sum()).hex()  # texts: NaN is not NaN
