"""Fsdp: a model larger than a worker. Owns cutting weights, gradients and optimizer state into one shard a rank.

torch's FSDP2 does it: the weights of a block are whole on a rank only while it computes with them. Gradients are
averaged, and a rank's loss is weighed, as in every other sync.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

from orca.core.world import World
from orca.errors import ArgumentError
from orca.frameworks.torch.paged import Pages
from orca.frameworks.torch.sharded import ELEMENTWISE, follows
from orca.frameworks.torch.sync import Clipping, Sync, backward_zeros, held, scale_to_norm, scaled, share_buffers

# Parameters from which on a part of a model is gathered on its own: below, a collective costs more than it saves.
_LARGE = 2**20


class FullySharded(Sync):
    """The sync that shards everything with torch's fully_shard; every rank updates its shards.

    The optimizer object stays the user's own, with all settings of its groups: the groups hold the sharded parameters
    from now on.

    Args:
        model: The model with its weights; those of rank 0 count. It is changed in place.
        optimizer: Its optimizer, made for the parameters as they are.
        world: The ranks.
        optimizer_state: A whole state for the optimizer, of any sync, of which each rank takes its part; by default
            the optimizer's own.
        device: The device for the shards; by default the model's own. A model that is not there yet is brought
            there block by block: it need not fit there as a whole.

    Raises:
        ArgumentError: The model or the optimizer cannot be sharded.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        world: World,
        optimizer_state: dict[str, Any] | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(model, optimizer)
        self.world = world
        self.device = device or next(model.parameters(), torch.empty(0)).device
        _check(model, optimizer)
        for tensor in model.parameters():
            tensor.data = tensor.data.contiguous()
            dist.broadcast(tensor.data, 0)
        memory = optimizer_state or optimizer.state_dict()
        # The optimizer must not hold whole parameters while these are cut, one block after the other.
        places = _let_go(optimizer, model)
        self.scalars = shard(model, world, self.device)
        share_buffers(model)
        self._take_up(places, memory)
        self.params = held(optimizer)

    def renew(self) -> None:
        """Refuse: torch decides which gradients are averaged when it cuts the weights."""
        raise ArgumentError(
            "with shard_model, weights cannot be frozen or unfrozen (requires_grad) during a fit. Call fit once "
            "for each stage and set requires_grad in the model creator, or use a replicated or sharded backend.",
            code="frozen-weights-changed",
        )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients where they are: whole, on every rank."""
        self.model.set_requires_gradient_sync(False)  # type: ignore[operator]
        try:
            with super().no_sync():
                yield
        finally:
            self.model.set_requires_gradient_sync(True)  # type: ignore[operator]

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        """Scale the loss; gradients are averaged into their shards during the backward pass."""
        scaled(loss, weight).backward()
        self._average_scalars()

    def idle(self, output: Any) -> None:
        """Send zeros back through the model: this rank's shards need the others' gradients."""
        backward_zeros(output)
        self._average_scalars()

    def clip(self, clipping: Clipping) -> None:
        """Clip the shards; a norm is that of all ranks' shards together."""
        grads = [_local(param.grad) for param in self.params if param.grad is not None]
        if clipping.bounds is not None:
            for grad in grads:
                grad.clamp_(*clipping.bounds)
        if clipping.norm is not None:
            squares = torch.zeros((), dtype=torch.float64, device=self.device)
            for param in self.params:
                if param.grad is not None and (param.dim() or self.world.rank == 0):  # scalars are on every rank
                    squares += _local(param.grad).double().square().sum()
            scale_to_norm(grads, squares, clipping.norm)

    def step(self, leader: int, update: Callable[[], Any]) -> None:
        """Update this rank's shards."""
        update()
        share_buffers(self.model, leader)

    def model_state(self) -> dict[str, Any]:
        """Return the whole state in files of rank 0; nothing on other ranks."""
        return gathered(self.model.state_dict(), self.world)

    def optimizer_state(self) -> dict[str, Any]:
        """Return the whole state in files of rank 0, by the numbers of the parameters; the settings elsewhere."""
        local, pages = self.optimizer.state_dict(), Pages()
        state = {number: gathered(entries, self.world, pages) for number, entries in local["state"].items()}
        return {"state": state if self.world.rank == 0 else {}, "param_groups": local["param_groups"]}

    def communicated(self) -> float:
        """Return nan: communication overlaps with both passes."""
        return float("nan")

    def _take_up(self, places: list[list[str | nn.Parameter]], memory: dict[str, Any]) -> None:
        """Give the optimizer the sharded parameters, the settings of a state, and this rank's shards of that state."""
        parameters = dict(self.model.named_parameters())
        pairs: list[tuple[int, nn.Parameter]] = []
        for group, names, entry in zip(self.optimizer.param_groups, places, memory["param_groups"], strict=True):
            group["params"] = [parameters[name] if isinstance(name, str) else name for name in names]
            pairs += zip(entry["params"], group["params"], strict=True)
        self.optimizer.load_state_dict({"state": {}, "param_groups": memory["param_groups"]})
        for number, param in pairs:
            if memory["state"].get(number):
                entries = memory["state"][number].items()
                self.optimizer.state[param] = {key: cut(value, param, self.world) for key, value in entries}

    def _average_scalars(self) -> None:
        if self.alone:
            return
        for param in self.scalars:
            if param.grad is not None:
                dist.all_reduce(param.grad)
                param.grad /= self.world.size


def gathered(entries: dict[str, Any], world: World, pages: Pages | None = None) -> dict[str, Any]:
    """Return a dict with whole tensors in files, gathered one after the other; an empty one on other ranks than 0."""
    whole: dict[str, Any] = {}
    pages = pages or Pages()
    for key, value in entries.items():
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        if world.rank == 0:
            whole[key] = pages.copy(full.detach().cpu()) if isinstance(full, torch.Tensor) else full
    return whole


def shard(model: nn.Module, world: World, device: torch.device) -> list[nn.Parameter]:
    """Cut a model's weights, the same on every rank, among the ranks; return those that stay whole on each.

    Args:
        model: The model. It is changed in place.
        world: The ranks.
        device: The device for the shards; the model is brought there block by block.
    """
    options: dict[str, Any] = {"mesh": init_device_mesh(device.type, (world.size,))}
    scalars = [param for param in model.parameters() if not param.dim()]
    for param in scalars:
        param.data = param.data.to(device)
    if scalars:
        options["ignored_params"] = set(scalars)  # nothing to cut: they stay on every rank
    blocks = [block for block in _blocks(model) if not _shares(block, model)]
    for block in [*blocks, model]:
        fully_shard(block, **options)
        if device.type == "cpu":
            block.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
            block.set_custom_reduce_scatter(_ReduceScatter())  # type: ignore[operator]
    model.register_forward_hook(_reshard_after_evaluation)
    return scalars


class _ReduceScatter:
    """A reduce-scatter between CPUs; that of gloo is an all-reduce of which each rank keeps a chunk: twice the traffic.

    torch wants the methods of its private class `Comm`.
    """

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return an empty tensor for the input or the output."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Write the sum over ranks of this rank's chunk of the input into the output."""
        chunks = torch.empty_like(input_tensor)
        dist.all_to_all_single(chunks, input_tensor, group=group)
        torch.sum(chunks.view(-1, len(output_tensor)), 0, out=output_tensor)


def _check(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    base = next(kind for kind in type(optimizer).__mro__ if kind.__module__.startswith("torch.optim"))
    if base is not torch.optim.Optimizer and base not in ELEMENTWISE:
        raise ArgumentError(
            f"fully sharded training cannot use {base.__name__}: it must see whole weights. Pass one that works "
            "number by number, such as AdamW, or use a replicated or sharded backend.",
            code="optimizer-needs-whole-weights",
        )
    kinds = sorted({str(param.dtype) for param in model.parameters() if param.requires_grad and param.dim()})
    if len(kinds) > 1:
        raise ArgumentError(
            f"fully sharded training needs all trained weights in one precision; got {', '.join(kinds)}. Convert the "
            "model, for instance with model.float(), or use a replicated backend.",
            code="mixed-precision-weights",
        )


def _let_go(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[list[str | nn.Parameter]]:
    """Take parameters and state out of an optimizer; return the parameters' names, group by group."""
    names = {id(param): name for name, param in model.named_parameters()}
    places: list[list[str | nn.Parameter]] = []
    for group in optimizer.param_groups:
        places.append([names.get(id(param), param) for param in group["params"]])
        group["params"] = []
    optimizer.state = defaultdict(dict)
    return places


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the parts of a model that are gathered on their own, inner ones first.

    Repeated blocks of a list, and large parts. A single layer only where its container is certain to call it: others
    may be looked into instead (attention reads the weights of its projections, a head those of an embedding).
    """
    children = [child for child in module.children() if _size(child)]
    is_list = isinstance(module, nn.ModuleList | nn.Sequential)
    for child in children:
        has_layers = any(True for _ in child.children())
        is_callable = type(child).forward is not nn.Module.forward  # a list is not: there is nothing to gather before
        repeats = is_list and has_layers and sum(type(other) is type(child) for other in children) > 1
        if repeats and is_callable:
            yield child
        elif has_layers and not isinstance(child, nn.MultiheadAttention):
            inner = list(_blocks(child))
            yield from inner
            if is_callable and _size(child) - sum(map(_size, inner)) >= _LARGE:
                yield child
        elif isinstance(module, nn.Sequential) and _size(child) >= _LARGE:
            yield child


def _shares(block: nn.Module, model: nn.Module) -> bool:
    """Say whether a block has a parameter that the rest of the model has too: torch would untie them."""
    inside = {id(module) for module in block.modules()}
    own = {id(param) for param in block.parameters()}
    outside = (module for module in model.modules() if id(module) not in inside)
    return any(id(param) in own for module in outside for param in module.parameters(recurse=False))


def _size(module: nn.Module) -> int:
    return sum(param.numel() for param in module.parameters())


def _reshard_after_evaluation(module: nn.Module, features: Any, output: Any) -> None:
    """Free whole weights: torch keeps the outermost ones for a backward pass that does not come."""
    if not torch.is_grad_enabled():
        module.reshard()  # type: ignore[operator]


def cut(value: Any, param: torch.Tensor, world: World) -> Any:
    """Return this rank's shard of a weight, or of an entry of the optimizer's state, which is whole on every rank."""
    if not isinstance(value, torch.Tensor):
        return value
    mesh = getattr(param, "device_mesh", None)
    if not value.dim() or mesh is None:
        return value.clone()
    kind = param.dtype if value.is_floating_point() else value.dtype
    if not follows(value, param):
        return DTensor.from_local(value.to(param.device, kind, copy=True), mesh, [Replicate()], run_check=False)
    chunk = -(-len(value) // world.size)  # as torch cuts the parameter
    mine = value[chunk * world.rank : chunk * (world.rank + 1)].to(param.device, kind, copy=True)
    return DTensor.from_local(mine, mesh, [Shard(0)], run_check=False, shape=param.shape, stride=param.stride())


def _local(tensor: Any) -> torch.Tensor:
    """Return this rank's shard of a tensor, or the tensor where it is whole."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
