"""Horovod: replicas of a torch model that agree by Horovod's collectives. Owns which tensors travel through it, and
when.

A gradient leaves as soon as the backward pass has it, during the pass, and Horovod puts those that are ready at
the same time into one message. Results are those of the other syncs: means over ranks of losses that are weighed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable

from orca.core.source import Batch
from orca.core.world import World
from orca.errors import ArgumentError
from orca.frameworks.torch.sync import Sync, backward_zeros, scaled, silenced
from orca.rows.tree import map_tree
from orca_classic.horovod.ranks import join, leave, together

_WIRES = (torch.float32, torch.float64)  # the type in which gradients are added up; half precision would lose digits


class HorovodSync(Sync):
    """The sync that averages gradients with Horovod; every rank updates all weights. It needs no wrapper."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, world: World, hands_on: bool = False
    ) -> None:
        super().__init__(model, optimizer, hands_on)
        self.world, self.agreed = world, False
        self.horovod, self.number = join(world)
        embeddings = [layer for layer in model.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
        self.sparse = {id(layer.weight) for layer in embeddings if layer.sparse}
        self.receivers: dict[str, Callable[[], None]] = {}
        self.idle_names: set[str] | None = None  # of a rank without rows, the weights that had gradients before
        self.hooks = self._listen()
        try:
            self._share([*model.parameters(), *model.buffers()], 0, "weights")
            self._share_optimizer()
        except BaseException:
            self.close()
            raise

    def open(self, batch: Batch) -> None:
        """Weigh this rank's gradients, where the user's own code makes them."""
        self._weigh(batch, self.world.size, self._quietly)

    def renew(self) -> None:
        """Listen to the gradients of the weights that are trained now."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = self._listen()

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        """Scale the loss and compute gradients: each leaves when it is there; return when all means are back."""
        self.agreed = False
        scaled(loss, weight).backward()
        if not self.alone and not self.agreed:
            self._agree()

    def idle(self, output: Any) -> None:
        """Give zeros to the means: through the model, whose own collectives need this rank too."""
        self.agreed = False
        with self._quietly():
            backward_zeros(output)
            if not self.alone and not self.agreed:
                self._agree()

    def step(self, leader: int, update: Callable[[], Any]) -> None:
        """Step the optimizer."""
        update()
        self.quiet.close()
        self._share(list(self.module.buffers()), leader, "buffers")

    def communicated(self) -> float:
        """Return nan: communication overlaps with both passes."""
        return float("nan")

    def close(self) -> None:
        """Leave Horovod; nothing can be sent after it."""
        super().close()
        for hook in self.hooks:
            hook.remove()
        self.receivers.clear()
        leave()

    def _listen(self) -> list[Any]:
        return [param.register_post_accumulate_grad_hook(partial(self._ready, name)) for name, param in self._trained()]

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Make this rank's backward passes contribute nothing: its rows are a template."""
        pairs = self._trained()
        names, params = [name for name, _ in pairs], [param for _, param in pairs]
        # Gradients that the user's own code has not cleared yet say nothing about this step.
        self.idle_names = idle_names = {name for name, param in pairs if param.grad is not None and not self.hands_on}
        try:
            with silenced(params, lambda number: idle_names.add(names[number])):
                yield
        finally:
            self.idle_names = None

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, param) for name, param in self.module.named_parameters() if param.requires_grad]

    def _ready(self, name: str, param: torch.Tensor) -> None:
        """Send a gradient during the backward pass."""
        if self.alone:
            return
        if name in self.receivers:
            raise ArgumentError(
                f"the gradient of {name!r} came twice in one backward pass. Where activations are checkpointed, "
                "pass use_reentrant=False to torch.utils.checkpoint."
            )
        if self.hands_on and not self.receivers:  # nobody calls us when the user's own backward pass is over
            Variable._execution_engine.queue_callback(self._agree)
        self._send(name, param)

    def _agree(self) -> None:
        """Send the gradients that the backward pass left out, and wait for the means.

        A weight that had no part in the loss has no gradient, and the optimizer must not touch it: that holds where
        it had no part on any rank. Elsewhere this rank's gradient is zero.
        """
        self.agreed = True
        pairs = self._trained()
        if not pairs:
            return
        idle = self.idle_names
        flags = [param.grad is not None if idle is None else name in idle for name, param in pairs]
        took_part = torch.tensor(flags, dtype=torch.float32)
        for name, param in pairs:
            if name not in self.receivers:
                if param.grad is None:
                    param.grad = _nothing(param, id(param) in self.sparse)
                self._send(name, param)
        with together(self.world):
            handle = self.horovod.allreduce_async_(took_part, name=self._name("who took part"), op=self.horovod.Sum)
            for receive in self.receivers.values():
                receive()
            self.horovod.synchronize(handle)
        self.receivers.clear()
        for (_, param), ranks in zip(pairs, took_part.tolist(), strict=True):
            if not ranks:
                param.grad = None

    def _send(self, name: str, param: torch.Tensor) -> None:
        """Send a gradient; remember how to receive its mean."""
        assert param.grad is not None
        with together(self.world):
            send = self._send_entries if param.grad.is_sparse else self._send_mean
            self.receivers[name] = send(self._name(f"gradient of {name}"), param, param.grad)

    def _send_mean(self, name: str, param: torch.Tensor, grad: torch.Tensor) -> Callable[[], None]:
        plain = (torch.view_as_real(grad) if grad.is_complex() else grad).detach()
        kind = plain.dtype if plain.dtype in _WIRES else torch.float32
        wire = plain.to(self._carrier(plain), kind).contiguous()
        if not wire.numel():
            return lambda: None
        if self.weight != 1.0:
            wire = wire * self.weight  # Horovod's own factors must be the same on all ranks
        handle = self.horovod.allreduce_async_(wire, name=name, op=self.horovod.Average)

        def receive() -> None:
            self.horovod.synchronize(handle)
            if wire is not plain:
                plain.copy_(wire)

        return receive

    def _send_entries(self, name: str, param: torch.Tensor, grad: torch.Tensor) -> Callable[[], None]:
        """Do the same for a sparse gradient: all ranks' entries are kept, as one process would have had them."""
        entries = {"indices": grad._indices().t(), "values": grad._values() * (self.weight / self.world.size)}
        handles = [
            self.horovod.allgather_async(part.to(self._carrier(part)).contiguous(), name=f"{name}: {what}")
            for what, part in entries.items()
        ]

        def receive() -> None:
            indices, values = (self.horovod.synchronize(handle).to(grad.device) for handle in handles)
            param.grad = torch.sparse_coo_tensor(indices.t(), values, grad.shape)

        return receive

    def _share(self, tensors: Sequence[torch.Tensor], leader: int, what: str) -> None:
        """Give every rank the leader's tensors, in one broadcast of their bytes."""
        parts = [tensor.detach() for tensor in tensors if tensor.numel()]
        if not parts:
            return
        carrier = self._carrier(parts[0])
        flat = torch.cat([part.to(carrier).contiguous().view(-1).view(torch.uint8) for part in parts])
        with together(self.world):
            self.horovod.broadcast_(flat, leader, name=self._name(what))
        if self.world.rank == leader:
            return
        sizes = [part.numel() * part.element_size() for part in parts]
        for part, piece in zip(parts, flat.split(sizes), strict=True):
            # A copy, as numbers of 4 or 8 bytes may not begin just anywhere.
            part.copy_(piece.clone().view(part.dtype).view(part.shape))

    def _share_optimizer(self) -> None:
        """Give every rank the optimizer of rank 0, where it has a state already."""
        mine = self.optimizer.state_dict() if self.world.rank == 0 and self.optimizer.state else None
        plain = map_tree(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, mine)
        state = self.world.broadcast(plain)
        if state is not None and self.world.rank:
            self.optimizer.load_state_dict(state)

    def _name(self, what: str) -> str:
        return f"{self.number}: {what}"

    def _carrier(self, tensor: torch.Tensor) -> torch.device:
        """Return the device from which Horovod takes a tensor: a build without CUDA takes those of the CPU alone."""
        return tensor.device if self.horovod.cuda_built() else torch.device("cpu")


def _nothing(param: torch.Tensor, sparse: bool) -> torch.Tensor:
    """Return a gradient of zero, in the kind this parameter's gradients have."""
    if not sparse:
        return torch.zeros_like(param)
    indices = torch.zeros((1, 0), dtype=torch.int64, device=param.device)
    return torch.sparse_coo_tensor(indices, param.new_zeros((0, *param.shape[1:])), param.shape)
