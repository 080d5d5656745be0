"""Sync: how replicas of a torch model agree. Owns the steps of every way, and DistributedDataParallel.

All take a loss that is the mean over this rank's rows together with the rank's weight in the step,
rows x ranks / rows of the step: the mean over ranks is then exactly the mean over the rows of the step.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from orca.core.source import Batch
from orca.core.world import World
from orca.rows.tree import flatten

_CLIP_SLACK = 1e-6  # as torch's clip_grad_norm_ adds to the norm
_NUMPY_KINDS = (torch.float32, torch.float64)  # whose sums numpy forms as torch does: it has no bfloat16

# How DistributedDataParallel calls the sharing of buffers before each forward pass: torch 2.10 has another name.
_BEFORE_FORWARD = "broadcast_buffers"
if "forward_sync_buffers" in inspect.signature(nn.parallel.DistributedDataParallel).parameters:
    _BEFORE_FORWARD = "forward_sync_buffers"


@dataclass(frozen=True)
class Clipping:
    """The limits of gradients before each update: bounds of each, or a norm of all together."""

    bounds: tuple[float, float] | None = None
    norm: float | None = None

    def __bool__(self) -> bool:
        return self.bounds is not None or self.norm is not None


class Sync:
    """The agreement of one replica with all others, made when the model is on its device. This one is alone.

    Attributes:
        module: The model as it is trained.
        alone: Whether backward passes add up gradients on this rank alone.
        hands_on: Whether the user's own code calls backward.
        weight: This rank's weight in the step, where it does.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, hands_on: bool = False) -> None:
        self.model, self.optimizer, self.hands_on = model, optimizer, hands_on
        self.module: nn.Module = model
        self.alone, self.weight = False, 1.0
        self.quiet = ExitStack()

    def open(self, batch: Batch) -> None:
        """Prepare for a step of so many rows on each rank."""

    def renew(self) -> None:
        """Follow a change of the trained weights: `requires_grad`, or the optimizer's groups. All ranks call it."""

    def zero(self) -> None:
        """Forget the gradients of the last step, by the optimizer's own way where it has one: torch's takes longer."""
        if type(self.optimizer).zero_grad is not torch.optim.Optimizer.zero_grad:
            self.optimizer.zero_grad()
            return
        for param in held(self.optimizer):
            param.grad = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes add up gradients on this rank alone, until one outside of it."""
        self.alone = True
        yield
        self.alone = False

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        """Compute this rank's gradients and agree on them with the others."""
        scaled(loss, weight).backward()

    def idle(self, output: Any) -> None:
        """Take part in a backward pass without rows: contribute nothing, and leave no gradient that others lack."""
        backward_zeros(output)

    def clip(self, clipping: Clipping) -> None:
        """Clip the gradients all ranks agreed on, as one process would."""
        clip_gradients(held(self.optimizer), clipping)

    def step(self, leader: int, update: Callable[[], Any]) -> None:
        """Update the weights, the same on every rank; take over the buffers of the leader, which had rows."""
        update()

    def model_state(self) -> dict[str, Any]:
        """Return the model's state as one process would hold it; all ranks call it together."""
        return self.model.state_dict()

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's state as one process would hold it; all ranks call it together."""
        return self.optimizer.state_dict()

    def communicated(self) -> float:
        """Return the seconds a step spends in averaging gradients, beside the backward pass or after it; a mean."""
        return 0.0

    def close(self) -> None:
        """Let go of resources outside of the process group."""
        self.quiet.close()

    def _weigh(self, batch: Batch, size: int, quietly: Callable[[], AbstractContextManager[None]]) -> None:
        """Weigh this rank's gradients of a step to come, where the user's own code makes them: none without rows."""
        if self.hands_on:
            self.weight = batch.rows * size / batch.step_rows
            self.quiet.close()
            if not batch.rows:
                self.quiet.enter_context(quietly())


def sync_of(
    word: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    world: World,
    *,
    unused: bool = False,
    hands_on: bool = False,
    device: torch.device | None = None,
    optimizer_state: dict[str, Any] | None = None,
) -> Sync:
    """Return the sync for a word of the registry; an optimizer that looks at all weights at once is replicated.

    Args:
        word: "replicated", "sharded", "fully sharded", or "module:Class" of a plug-in's subclass of Sync.
        model: The model, on its device; one that is fully sharded need not be there.
        optimizer: Its optimizer, with its state.
        world: The ranks.
        unused: Whether parameters may take no part in a step.
        hands_on: Whether the user's own code calls backward: gradients are weighed when they are averaged.
        device: The device for the shards of a fully sharded model.
        optimizer_state: The state of its optimizer, of which each rank takes its part.
    """
    whole = isinstance(optimizer, torch.optim.LBFGS) or hands_on
    if ":" in word:
        return resolve_name(word)(model, optimizer, world, hands_on)
    if word == "fully sharded":
        from orca.frameworks.torch.fsdp import FullySharded

        return FullySharded(model, optimizer, world, optimizer_state, device)
    if word == "sharded" and not whole:
        from orca.frameworks.torch.sharded import Sharded

        return Sharded(model, optimizer, world)
    return Replicated(model, optimizer, world, unused, hands_on) if world.size > 1 else Sync(model, optimizer)


class Replicated(Sync):
    """The sync that averages gradients with DistributedDataParallel; every rank updates all weights.

    Gradients of ranks on one machine that are not on a GPU are added up in shared memory: gloo's ring over the loopback
    device takes several times as long.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        world: World,
        unused: bool = False,
        hands_on: bool = False,
    ) -> None:
        super().__init__(model, optimizer, hands_on)
        self.world, self.unused, self.some_idle = world, unused, False
        self.participants: set[int] = set()  # the numbers of the parameters that had a part in this rank's rows
        self.muted, self.shares_memory, self.hooks = False, False, ExitStack()
        self._wrap()
        share_buffers(model)

    def open(self, batch: Batch) -> None:
        """Weigh this rank's gradients, where the user's own code makes them."""
        self.participants.clear()
        self.some_idle = 0 in batch.shares
        self._weigh(batch, self.world.size, self._quietly)

    def renew(self) -> None:
        """Wrap the model anew: DistributedDataParallel averages the weights that were trained when it was made."""
        self.close()
        gc.collect()  # the old wrapper listens to gradients until it is gone
        self._wrap()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients where they are: else they are averaged during a backward pass."""
        with getattr(self.module, "no_sync", nullcontext)():
            yield

    def idle(self, output: Any) -> None:
        """Send zeros back through the model, so that every bucket of gradients is still averaged."""
        with self._quietly():
            backward_zeros(output)

    def step(self, leader: int, update: Callable[[], Any]) -> None:
        """Step the optimizer."""
        update()
        self.quiet.close()
        share_buffers(self.model, leader)

    def communicated(self) -> float:
        """Return DistributedDataParallel's own measurement, taken in every tenth step.

        Sums in shared memory are in the phase of waiting already.
        """
        if self.shares_memory:
            return 0.0
        times: dict[str, Any] = getattr(self.module, "_get_ddp_logging_data", dict)()
        return float(times.get("avg_backward_comm_time", 0)) / 1e9

    def close(self) -> None:
        """Stop listening to gradients; let go of the wrapper."""
        super().close()
        self.hooks.close()
        self.module = self.model

    def _wrap(self) -> None:
        self.weights = [param for param in self.model.parameters() if param.requires_grad]
        if not self.weights:
            self.module = self.model
            return
        ids = [self.weights[0].device.index] if self.weights[0].device.type == "cuda" else None
        # Buffers are shared after each step, not before the next: validation must see rank 0's everywhere too.
        options: dict[str, Any] = {"device_ids": ids, _BEFORE_FORWARD: False, "find_unused_parameters": self.unused}
        wrapper = nn.parallel.DistributedDataParallel(self.model, **options)
        summed = self.world.sums is not None and ids is None
        self.shares_memory = summed and all(param.dtype.to_real() in _NUMPY_KINDS for param in self.weights)
        if self.hands_on or summed:
            # Weakly: the wrapper is ours, and the collector does not see that its reducer, in C++, holds this.
            wrapper.register_comm_hook(weakref.proxy(self), _weigh_and_average)
        wrapper._set_ddp_runtime_logging_sample_rate(10)
        self.module = wrapper
        if self.unused:
            for number, param in enumerate(self.weights):
                self.hooks.callback(param.register_post_accumulate_grad_hook(partial(self._note, number)).remove)
            self.hooks.callback(self.optimizer.register_step_pre_hook(self._drop_unused).remove)

    def _note(self, number: int, param: torch.Tensor) -> None:
        if not self.muted:
            self.participants.add(number)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Make this rank's backward passes contribute nothing: its rows are a template."""
        self.muted = True
        try:
            with silenced(self.weights, self.participants.add):
                yield
        finally:
            self.muted = False

    def _drop_unused(self, *arguments: Any) -> None:
        """Leave no gradient where no true row had one: DistributedDataParallel takes a template for a row."""
        if self.some_idle:
            ranks = torch.tensor([float(number in self.participants) for number in range(len(self.weights))])
            dist.all_reduce(ranks)
            for param, count in zip(self.weights, ranks.tolist(), strict=True):
                if not count:
                    param.grad = None


def held(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters that an optimizer updates; gradients of others are never cleared."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def clip_gradients(params: Iterable[nn.Parameter], clipping: Clipping) -> None:
    """Clip whole gradients in place."""
    weights = [param for param in params if param.grad is not None]
    if clipping.bounds is not None and weights:
        low, high = clipping.bounds
        grads = [param.grad for param in weights if param.grad is not None]
        torch._foreach_clamp_min_(grads, low)
        torch._foreach_clamp_max_(grads, high)
    if clipping.norm is not None:
        nn.utils.clip_grad_norm_(weights, clipping.norm)


@contextmanager
def silenced(params: Sequence[torch.Tensor], note: Callable[[int], Any]) -> Iterator[None]:
    """Let backward passes give no gradient but zeros, and no entries of a sparse one.

    Args:
        params: Trained weights.
        note: Told the number of each that had a gradient before.
    """

    def silence(number: int, grad: torch.Tensor) -> torch.Tensor:
        if params[number].grad is not None:
            note(number)
        return nothing_like(grad)

    hooks = [param.register_hook(partial(silence, number)) for number, param in enumerate(params)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def nothing_like(grad: torch.Tensor) -> torch.Tensor:
    """Return a gradient of zero of the same kind: a sparse one has no entries."""
    if not grad.is_sparse:
        return torch.zeros_like(grad)
    return torch.sparse_coo_tensor(grad._indices()[:, :0], grad._values()[:0], grad.shape)


def _weigh_and_average(sync, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are texts
    """Average a bucket of gradients over the ranks, each with its weight in the step."""
    gradients = bucket.buffer().mul_(sync.weight / sync.world.size)
    dense = gradients.layout is torch.strided and gradients.dtype in _NUMPY_KINDS
    if sync.world.sums is not None and dense and gradients.is_cpu:
        sync.world.sums.add_in_place(gradients.numpy())
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(gradients)
        return future
    future = dist.all_reduce(gradients, async_op=True).get_future()
    return future.then(lambda result: result.value()[0])


def scale_to_norm(grads: Sequence[torch.Tensor], squares: torch.Tensor, norm: float) -> None:
    """Clip this rank's parts of the gradients to a norm over all ranks; `squares` is the sum of those of this rank."""
    dist.all_reduce(squares)
    factor = (norm / (squares.sqrt() + _CLIP_SLACK)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factor)


def scaled(loss: torch.Tensor, weight: float) -> torch.Tensor:
    """Return a loss times its weight in the step."""
    return loss if weight == 1.0 else loss * weight  # even shares are the common case, and a tiny model's steps short


def share_buffers(model: nn.Module, leader: int = 0) -> None:
    """Give every rank the leader's buffers: its running statistics count. One broadcast for each kind of number."""
    kinds: dict[Any, list[torch.Tensor]] = {}
    for buffer in model.buffers():
        kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer.detach())
    for buffers in kinds.values():
        flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
        dist.broadcast(flat, leader)
        for buffer, piece in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(piece.view_as(buffer))


def backward_zeros(output: Any) -> None:
    """Send gradients of zero back through a model, from all of its outputs."""
    leaves = [leaf for leaf in flatten(output)[0] if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    torch.autograd.backward(leaves, [torch.zeros_like(leaf) for leaf in leaves])
