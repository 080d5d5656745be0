"""Sync: how replicas of a torch model agree. Owns DistributedDataParallel and the sharded parameter sync.

All take a loss that is the mean over this rank's rows together with the rank's weight in the step,
rows x ranks / rows of the step: the mean over ranks is then exactly the mean over the rows of the step.
"""

from __future__ import annotations

import gc
import inspect
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from orca.core.source import Batch
from orca.core.world import World
from orca.rows.tree import flatten

# Optimizers whose update of an element looks at that element alone: they may work on slices of a flat vector.
# A class derived from one of them may do anything: it is not among them.
ELEMENTWISE = tuple(
    getattr(torch.optim, name)
    for name in "SGD Adam AdamW NAdam RAdam Adamax Adagrad Adadelta RMSprop Rprop ASGD".split()
    if hasattr(torch.optim, name)
)

_CLIP_SLACK = 1e-6  # as torch's clip_grad_norm_ adds to the norm

# How DistributedDataParallel calls the sharing of buffers before each forward pass: newer torch has a new name.
_BEFORE_FORWARD = "broadcast_buffers"
if "forward_sync_buffers" in inspect.signature(nn.parallel.DistributedDataParallel).parameters:
    _BEFORE_FORWARD = "forward_sync_buffers"


@dataclass(frozen=True)
class Clipping:
    """How gradients are clipped before each update: each into bounds, or all together to a norm."""

    bounds: tuple[float, float] | None = None
    norm: float | None = None

    def __bool__(self) -> bool:
        return self.bounds is not None or self.norm is not None


class Sync(Protocol):
    """The agreement of one replica with all others. Made when the model is on its device."""

    module: nn.Module

    def open(self, batch: Batch) -> None:
        """Hear of the step to come: how many rows each rank has."""

    def renew(self) -> None:
        """Follow a change of what is trained: `requires_grad`, or the optimizer's groups. All ranks call it."""

    def zero(self) -> None:
        """Forget the gradients of the last step."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Let backward passes add up gradients on this rank alone, until one outside of it."""

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        """Compute this rank's gradients and agree on them with the others."""

    def idle(self, output: Any) -> None:
        """Take part in a backward pass without rows: contribute nothing, and leave no gradient that others lack."""

    def clip(self, clipping: Clipping) -> None:
        """Clip the gradients all ranks agreed on, as one process would."""

    def step(self, leader: int, update: Callable[[], Any]) -> None:
        """Update the weights, the same on every rank; take over the buffers of the leader, which had rows."""

    def model_state(self) -> dict[str, Any]:
        """Return the model's state as one process would hold it; all ranks call it together."""

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's state as one process would hold it; all ranks call it together."""

    def communicated(self) -> float:
        """Return the seconds a step spends in averaging gradients, beside the backward pass or after it; a mean."""

    def close(self) -> None:
        """Let go of what lives outside of the process group."""


def sync_of(
    word: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    world: World,
    *,
    unused: bool = False,
    hands_on: bool = False,
    device: torch.device | None = None,
    kept: dict[str, Any] | None = None,
) -> Sync:
    """Return the sync for a word of the registry; an optimizer that looks at all weights at once is replicated.

    Args:
        word: "replicated", "sharded", "fully sharded" or "horovod".
        model: The model, on its device; one that is fully sharded need not be there.
        optimizer: Its optimizer, with its state.
        world: The ranks.
        unused: Whether parameters may take no part in a step.
        hands_on: Whether the user's own code calls backward: gradients are weighed when they are averaged.
        device: Where the shards of a fully sharded model go.
        kept: The state of its optimizer, of which each rank takes its part.
    """
    whole = isinstance(optimizer, torch.optim.LBFGS) or hands_on
    if word == "horovod":
        from orca.frameworks.torch.horovod import Horovod

        return Horovod(model, optimizer, world, hands_on)
    if word == "fully sharded":
        from orca.frameworks.torch.fsdp import FullySharded

        return FullySharded(model, optimizer, world, kept, device)
    if word == "sharded" and not whole:
        return Sharded(model, optimizer, world)
    return Replicated(model, optimizer, unused, hands_on) if world.size > 1 else Alone(model, optimizer)


class Replicated:
    """The sync that averages gradients with DistributedDataParallel; every rank updates all weights."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, unused: bool = False, hands_on: bool = False
    ) -> None:
        self.optimizer, self.model, self.unused, self.hands_on = optimizer, model, unused, hands_on
        self.weight, self.some_idle = 1.0, False
        self.used: set[int] = set()  # the numbers of the parameters that had a part in this rank's rows
        self.muted, self.quiet, self.hooks = False, ExitStack(), ExitStack()
        self.module: nn.Module = model
        self._wrap()
        _share_buffers(model)

    def open(self, batch: Batch) -> None:
        """Weigh this rank's gradients, where the user's own code makes them."""
        self.used.clear()
        self.some_idle = 0 in batch.shares
        if self.hands_on:
            self.weight = batch.rows * dist.get_world_size() / batch.step_rows
            self.quiet.close()
            if not batch.rows:
                self.quiet.enter_context(self._quietly())

    def renew(self) -> None:
        """Wrap the model anew: DistributedDataParallel averages what was trained when it was made."""
        self.close()
        self.module = self.model
        gc.collect()  # the old wrapper listens to gradients until it is gone
        self._wrap()

    def zero(self) -> None:
        """Forget the gradients of the last step."""
        self.optimizer.zero_grad()

    def no_sync(self) -> AbstractContextManager[None]:
        """Leave gradients where they are."""
        alone: AbstractContextManager[None] = getattr(self.module, "no_sync", nullcontext)()
        return alone

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        """Scale the loss; DistributedDataParallel averages while the backward pass goes on."""
        _scaled(loss, weight).backward()

    def idle(self, output: Any) -> None:
        """Send zeros back through the model, so that every bucket of gradients is still averaged."""
        with self._quietly():
            _backward_zeros(output)

    def clip(self, clipping: Clipping) -> None:
        """Clip the gradients, which are whole on every rank."""
        clip_gradients(held(self.optimizer), clipping)

    def step(self, leader: int, update: Callable[[], Any]) -> None:
        """Step the optimizer."""
        update()
        self.quiet.close()
        _share_buffers(self.model, leader)

    def model_state(self) -> dict[str, Any]:
        """Return the model's own state: it is whole on every rank."""
        return self.model.state_dict()

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's own state: it is whole on every rank."""
        return self.optimizer.state_dict()

    def communicated(self) -> float:
        """Return what DistributedDataParallel measured in every tenth step."""
        measured: dict[str, Any] = getattr(self.module, "_get_ddp_logging_data", dict)()
        return float(measured.get("avg_backward_comm_time", 0)) / 1e9

    def close(self) -> None:
        """Listen to gradients no more."""
        self.quiet.close()
        self.hooks.close()

    def _wrap(self) -> None:
        self.trained = [param for param in self.model.parameters() if param.requires_grad]
        if not self.trained:
            self.module = self.model
            return
        ids = [self.trained[0].device.index] if self.trained[0].device.type == "cuda" else None
        # Buffers are shared after each step, not before the next: validation must see rank 0's everywhere too.
        options: dict[str, Any] = {"device_ids": ids, _BEFORE_FORWARD: False, "find_unused_parameters": self.unused}
        wrapped = nn.parallel.DistributedDataParallel(self.model, **options)
        if self.hands_on:
            wrapped.register_comm_hook(self, _weigh_and_average)
        wrapped._set_ddp_runtime_logging_sample_rate(10)
        self.module = wrapped
        if self.unused:
            for number, param in enumerate(self.trained):
                self.hooks.callback(param.register_post_accumulate_grad_hook(partial(self._note, number)).remove)
            self.hooks.callback(self.optimizer.register_step_pre_hook(self._drop_unused).remove)

    def _note(self, number: int, param: torch.Tensor) -> None:
        if not self.muted:
            self.used.add(number)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Let what this rank's backward passes give be nothing: its rows are a template."""
        self.muted = True
        try:
            with silenced(self.trained, self.used.add):
                yield
        finally:
            self.muted = False

    def _drop_unused(self, *arguments: Any) -> None:
        """Leave no gradient where no true row had one: DistributedDataParallel takes a template for a row."""
        if self.some_idle:
            ranks = torch.tensor([float(number in self.used) for number in range(len(self.trained))])
            dist.all_reduce(ranks)
            for param, count in zip(self.trained, ranks.tolist(), strict=True):
                if not count:
                    param.grad = None


class Alone:
    """The sync of a single replica: nobody to agree with, and nothing that costs time."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.module, self.optimizer = model, optimizer

    def open(self, batch: Batch) -> None:
        """Know it already."""

    def renew(self) -> None:
        """Follow nothing: there is nobody else."""

    def zero(self) -> None:
        """Forget the gradients of the last step."""
        self.optimizer.zero_grad()

    def no_sync(self) -> AbstractContextManager[None]:
        """Change nothing."""
        return nullcontext()

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        """Compute the gradients."""
        _scaled(loss, weight).backward()

    def idle(self, output: Any) -> None:
        """Leave gradients of zero."""
        _backward_zeros(output)

    def clip(self, clipping: Clipping) -> None:
        """Clip the gradients."""
        clip_gradients(held(self.optimizer), clipping)

    def step(self, leader: int, update: Callable[[], Any]) -> None:
        """Step the optimizer."""
        update()

    def model_state(self) -> dict[str, Any]:
        """Return the model's own state."""
        return self.module.state_dict()

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's own state."""
        return self.optimizer.state_dict()

    def communicated(self) -> float:
        """Return no time."""
        return 0.0

    def close(self) -> None:
        """Hold nothing else."""


class Sharded:
    """Reduce-scatter gradients, update one slice of the weights a rank, all-gather the weights.

    Each rank holds the optimizer's state of its slice alone. The parameters of a group are one flat vector, cut into
    equal slices where the optimizer works element by element; for any other optimizer (Adafactor, Muon, ...) whole
    parameters are dealt out, so that it sees them in their shape. The optimizer object stays the user's own, with all
    settings of its groups: the groups just hold slices while it trains here.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> None:
        self.module, self.optimizer, self.world, self.alone = model, optimizer, world, False
        self.spent, self.times = 0.0, 0
        self.sliced, self.muted = True, False
        self.used: set[nn.Parameter] = set()  # those that had a part in this rank's rows since zero()
        self.hooks = ExitStack()
        for tensor in model.parameters():
            dist.broadcast(tensor.data, 0)
        _share_buffers(model)
        self._cut()

    def open(self, batch: Batch) -> None:
        """Need no more than each loss and its weight."""

    def renew(self) -> None:
        """Give the optimizer its whole parameters and state back, and cut anew."""
        state, mine = self._whole_state(), {id(param) for flat in self.flats for param in flat.mine}
        for flat in self.flats:
            for param in flat.params:
                param.grad = None
        self.optimizer.state = defaultdict(dict)
        for group, params, numbers in zip(self.optimizer.param_groups, self.whole, self.numbers, strict=False):
            group["params"] = [*params, *(param for param in group["params"] if id(param) not in mine)]
            for param, number in zip(params, numbers, strict=True):
                if state.get(number):
                    self.optimizer.state[param] = state[number]
        self._cut()

    def _cut(self) -> None:
        optimizer, world = self.optimizer, self.world
        saved = optimizer.state_dict()
        self.whole = [group["params"] for group in optimizer.param_groups]
        self.numbers = [group["params"] for group in saved["param_groups"]]
        self.flats: list[Slices | Deals] = []
        for group, numbers in zip(optimizer.param_groups, self.numbers, strict=True):
            mine: list[nn.Parameter] = []
            for params, places in _alike(group["params"], numbers):
                states = [saved["state"].get(number, {}) for number in places]
                sliced = self.sliced and type(optimizer) in ELEMENTWISE and _uniform(params, states)
                flat = Slices(params, places, world) if sliced else Deals(params, places, world)
                self.flats.append(flat)
                mine += flat.mine
            group["params"] = mine
        optimizer.state = defaultdict(dict)
        for flat in self.flats:
            for param, entries in flat.cut_state(saved["state"]):
                optimizer.state[param] = entries
        cut = {number for flat in self.flats for number in flat.numbers}
        self.resting = {number: entries for number, entries in saved["state"].items() if number not in cut}  # frozen
        self.hooks.close()
        for param in (param for flat in self.flats for param in flat.params):
            self.hooks.callback(param.register_post_accumulate_grad_hook(self._note).remove)

    def zero(self) -> None:
        """Forget the gradients of the last step."""
        self.used.clear()
        for flat in self.flats:
            flat.grads.zero_()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients where they are."""
        self.alone = True
        yield
        self.alone = False

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        """Compute gradients and bring the mean of each slice to the rank that owns it."""
        _scaled(loss, weight).backward()
        if not self.alone:
            self._reduce()

    def idle(self, output: Any) -> None:
        """Give zeros to the means."""
        self.muted = True
        _backward_zeros(output)
        self.muted = False
        if not self.alone:
            self._reduce()

    def clip(self, clipping: Clipping) -> None:
        """Clip the slices; a norm is that of all ranks' slices together."""
        if clipping.bounds is not None:
            for flat in self.flats:
                flat.mean.clamp_(*clipping.bounds)
        if clipping.norm is not None and self.flats:
            squares = torch.stack([flat.mean.double().square().sum() for flat in self.flats]).sum()
            dist.all_reduce(squares)
            factor = (clipping.norm / (squares.sqrt() + _CLIP_SLACK)).clamp(max=1.0)
            for flat in self.flats:
                flat.mean.mul_(factor)

    def step(self, leader: int, update: Callable[[], Any]) -> None:
        """Update this rank's slices and gather everyone's."""
        update()
        for flat in self.flats:
            flat.gather_weights()
        _share_buffers(self.module, leader)

    def model_state(self) -> dict[str, Any]:
        """Return the model's own state: weights are gathered after each step."""
        return self.module.state_dict()

    def optimizer_state(self) -> dict[str, Any]:
        """Gather the slices of the state and cut them into the parameters' shapes."""
        groups = self.optimizer.state_dict()["param_groups"]
        whole = [{**group, "params": numbers} for group, numbers in zip(groups, self.numbers, strict=True)]
        return {"state": self._whole_state(), "param_groups": whole}

    def _whole_state(self) -> dict[int, dict[str, Any]]:
        state = dict(self.resting)
        for flat in self.flats:
            state.update(flat.gather_state(self.optimizer.state))
        return dict(sorted(state.items()))

    def close(self) -> None:
        """Listen to gradients no more."""
        self.hooks.close()

    def communicated(self) -> float:
        """Return the mean time of bringing gradients to their ranks."""
        return self.spent / max(self.times, 1)

    def _note(self, param: nn.Parameter) -> None:
        if not self.muted:
            self.used.add(param)

    def _reduce(self) -> None:
        began = time.perf_counter()
        unused = self._unused()
        if unused and any(isinstance(flat, Slices) for flat in self.flats):
            self._deal_out()
        for flat in self.flats:
            flat.reduce_gradients()
            flat.leave_alone(unused)
        self.spent, self.times = self.spent + time.perf_counter() - began, self.times + 1

    def _unused(self) -> set[nn.Parameter]:
        """Return the parameters that had no part in any rank's rows: the optimizer must not touch them."""
        params = [param for flat in self.flats for param in flat.params]
        ranks = torch.tensor([float(param in self.used) for param in params])
        dist.all_reduce(ranks)
        return {param for param, count in zip(params, ranks.tolist(), strict=True) if not count}

    def _deal_out(self) -> None:
        """Deal whole parameters out from now on: a slice has one count of steps for all of its parameters."""
        self.sliced, grads = False, {param: param.grad for flat in self.flats for param in flat.params}
        self.renew()
        for param, grad in grads.items():
            if param.grad is not None and grad is not None:
                param.grad.copy_(grad)


class Flat:
    """Parameters as views of one vector of `size` equal chunks, of which this rank owns one."""

    def __init__(self, params: list[nn.Parameter], numbers: list[int], offsets: list[int], chunk: int, world: World):
        self.params, self.numbers, self.offsets, self.chunk, self.world = params, numbers, offsets, chunk, world
        self.weights = torch.zeros(chunk * world.size, dtype=params[0].dtype, device=params[0].device)
        self.grads = torch.zeros_like(self.weights)
        for param, offset in zip(params, offsets, strict=True):
            view = self.weights[offset : offset + param.numel()].view(param.shape)
            view.copy_(param.data)
            param.data = view
            param.grad = self.grads[offset : offset + param.numel()].view(param.shape)
        self.own = slice(chunk * world.rank, chunk * (world.rank + 1))
        self.mean = torch.zeros_like(self.weights[self.own])
        self.mine: list[nn.Parameter] = []

    def reduce_gradients(self) -> None:
        """Bring the mean over ranks of this rank's chunk here: a reduce-scatter."""
        size, chunk = self.world.size, self.chunk
        if self.grads.is_cuda:
            dist.reduce_scatter_tensor(self.mean, self.grads)
        else:  # gloo of torch < 2.6 has no reduce-scatter; the exchange and the sum are the same traffic
            received = torch.empty_like(self.grads)
            dist.all_to_all_single(received, self.grads)
            torch.sum(received.view(size, chunk), 0, out=self.mean)
        self.mean /= size

    def leave_alone(self, unused: set[nn.Parameter]) -> None:
        """Give the optimizer no gradient for these parameters; slices are never cut where there are some."""

    def gather_weights(self) -> None:
        """Give every rank all weights: an all-gather in place."""
        own = self.weights[self.own].clone()
        dist.all_gather_into_tensor(self.weights, own)

    def _own(self, start: int, stop: int, shape: torch.Size) -> nn.Parameter:
        """Return a part of this rank's chunk as a parameter that the optimizer may update."""
        param = nn.Parameter(self.weights[self.own][start:stop].view(shape))
        param.grad = self.mean[start:stop].view(shape)
        return param


class Slices(Flat):
    """Parameters cut into equal slices, anywhere: for optimizers that work element by element."""

    def __init__(self, params: list[nn.Parameter], numbers: list[int], world: World) -> None:
        offsets = _offsets(params)
        chunk = -(-(offsets[-1] + params[-1].numel()) // world.size)
        super().__init__(params, numbers, offsets, chunk, world)
        self.mine = [self._own(0, chunk, torch.Size([chunk]))]

    def cut_state(self, state: dict[int, dict[str, Any]]) -> Iterator[tuple[nn.Parameter, dict[str, Any]]]:
        """Yield the slice and its part of a whole optimizer state."""
        entries: dict[str, Any] = {}
        for key, first in state.get(self.numbers[0], {}).items():
            if not _follows(first, self.params[0]):
                entries[key] = first.clone() if isinstance(first, torch.Tensor) else first
                continue
            flat = torch.zeros_like(self.weights, dtype=first.dtype)
            for param, number, offset in zip(self.params, self.numbers, self.offsets, strict=True):
                flat[offset : offset + param.numel()] = state[number][key].reshape(-1)
            entries[key] = flat[self.own].clone()
        if entries:
            yield self.mine[0], entries

    def gather_state(self, state: dict[Any, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Return the whole state of these parameters, by number."""
        whole: dict[int, dict[str, Any]] = {number: {} for number in self.numbers}
        entries = state.get(self.mine[0], {})
        for key, value in entries.items():
            sliced = _follows(value, self.mine[0])
            flat = torch.zeros_like(self.weights, dtype=value.dtype) if sliced else None
            if flat is not None:
                dist.all_gather_into_tensor(flat, value.contiguous())
            for param, number, offset in zip(self.params, self.numbers, self.offsets, strict=True):
                part = value if flat is None else flat[offset : offset + param.numel()].view(param.shape)
                whole[number][key] = part.clone() if isinstance(part, torch.Tensor) else part
        return whole if entries else {}


class Deals(Flat):
    """Deal whole parameters out, the largest first to the rank with the least: for optimizers that need shapes."""

    def __init__(self, params: list[nn.Parameter], numbers: list[int], world: World) -> None:
        loads = [0] * world.size
        owner: dict[int, tuple[int, int]] = {}
        for at in sorted(range(len(params)), key=lambda at: (-params[at].numel(), at)):
            rank = loads.index(min(loads))
            owner[at] = (rank, loads[rank])
            loads[rank] += params[at].numel()
        chunk = max(loads)
        offsets = [owner[at][0] * chunk + owner[at][1] for at in range(len(params))]
        super().__init__(params, numbers, offsets, chunk, world)
        here = [at for at in range(len(params)) if owner[at][0] == world.rank]
        self.here, self.originals = [numbers[at] for at in here], [params[at] for at in here]
        self.mine = [self._own(owner[at][1], owner[at][1] + params[at].numel(), params[at].shape) for at in here]
        self.means = [param.grad for param in self.mine]

    def leave_alone(self, unused: set[nn.Parameter]) -> None:
        """Give the optimizer no gradient for these parameters."""
        for param, mean, whole in zip(self.mine, self.means, self.originals, strict=True):
            param.grad = None if whole in unused else mean

    def cut_state(self, state: dict[int, dict[str, Any]]) -> Iterator[tuple[nn.Parameter, dict[str, Any]]]:
        """Yield this rank's parameters and their state."""
        for param, number in zip(self.mine, self.here, strict=True):
            if state.get(number):
                yield param, dict(state[number])

    def gather_state(self, state: dict[Any, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Return the whole state of these parameters, by number."""
        own = {n: state[p] for p, n in zip(self.mine, self.here, strict=True) if p in state}
        return {number: entries for told in self.world.all_gather(own) for number, entries in told.items()}


def held(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters that an optimizer updates; the gradients of others are nobody's, and never forgotten."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def clip_gradients(params: Iterable[nn.Parameter], clipping: Clipping) -> None:
    """Clip whole gradients in place."""
    trained = [param for param in params if param.grad is not None]
    if clipping.bounds is not None and trained:
        low, high = clipping.bounds
        grads = [param.grad for param in trained if param.grad is not None]
        torch._foreach_clamp_min_(grads, low)
        torch._foreach_clamp_max_(grads, high)
    if clipping.norm is not None:
        nn.utils.clip_grad_norm_(trained, clipping.norm)


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
    weighed = bucket.buffer().mul_(sync.weight / dist.get_world_size())
    future = dist.all_reduce(weighed, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def _alike(params: list[nn.Parameter], numbers: list[int]) -> Iterator[tuple[list[nn.Parameter], list[int]]]:
    """Yield a group's trained parameters by dtype and device, with their numbers: a flat vector has one of each.

    Those without a dimension go apart: their state looks like the counters of an optimizer.
    """
    kinds: dict[Any, tuple[list[nn.Parameter], list[int]]] = {}
    for param, number in zip(params, numbers, strict=True):
        if param.requires_grad:
            alike = kinds.setdefault((param.dtype, param.device, param.dim() > 0), ([], []))
            alike[0].append(param)
            alike[1].append(number)
    yield from kinds.values()


def _uniform(params: list[nn.Parameter], states: list[dict[str, Any]]) -> bool:
    """Say whether the states of all parameters are alike: shaped as the parameter, or the same number."""
    if not params[0].dim():
        return False
    for param, state in zip(params, states, strict=True):
        if state.keys() != states[0].keys():
            return False
        for key, value in state.items():
            same = _follows(states[0][key], params[0])
            if _follows(value, param) != same or (not same and not _equal(value, states[0][key])):
                return False
    return True


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool((one == other).all())
    return bool(one == other)


def _follows(value: Any, param: torch.Tensor) -> bool:
    """Say whether a state entry has one number for each of the parameter's."""
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == param.shape


def _offsets(params: list[nn.Parameter]) -> list[int]:
    offsets = [0]
    for param in params[:-1]:
        offsets.append(offsets[-1] + param.numel())
    return offsets


def _scaled(loss: torch.Tensor, weight: float) -> torch.Tensor:
    return loss if weight == 1.0 else loss * weight  # even shares are the common case, and a tiny model's steps short


def _share_buffers(model: nn.Module, leader: int = 0) -> None:
    """Give every rank the leader's buffers: its running statistics count. One broadcast for each kind of number."""
    kinds: dict[Any, list[torch.Tensor]] = {}
    for buffer in model.buffers():
        kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer.detach())
    for buffers in kinds.values():
        flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
        dist.broadcast(flat, leader)
        for buffer, shared in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(shared.view_as(buffer))


def _backward_zeros(output: Any) -> None:
    leaves = [leaf for leaf in flatten(output)[0] if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    torch.autograd.backward(leaves, [torch.zeros_like(leaf) for leaf in leaves])
