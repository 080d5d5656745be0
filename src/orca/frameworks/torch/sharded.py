"""Sharded: replicas of a torch model that share the work of the optimizer. Owns how weights and its state are cut.

Not FSDP2 or ZeroRedundancyOptimizer: between CPUs both send 3 times the weights' size a step instead of 2, as gloo's
reduce-scatter is an all-reduce.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import nn, optim

from orca.core.world import World
from orca.frameworks.torch.sync import Clipping, Sync, backward_zeros, scale_to_norm, scaled, share_buffers

# Optimizers whose update of an element looks at that element alone: they may work on slices of a flat vector.
# A class derived from one of them may do anything: it is not among them.
ELEMENTWISE = (
    optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adagrad, optim.Adadelta,
    optim.RMSprop, optim.Rprop, optim.ASGD,
)  # fmt: skip


class Sharded(Sync):
    """The sync that reduce-scatters gradients, updates one slice of the weights a rank and all-gathers the weights.

    Each rank holds the optimizer's state of its slice alone. The parameters of a group are one flat vector, cut into
    equal slices where the optimizer works element by element; for any other optimizer (Adafactor, Muon, ...) whole
    parameters are dealt out, so that it sees them in their shape. The optimizer object stays the user's own, with all
    settings of its groups: the groups just hold slices while it trains here.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> None:
        super().__init__(model, optimizer)
        self.world = world
        self.seconds, self.times = 0.0, 0
        self.sliced, self.muted = True, False
        self.participants: set[nn.Parameter] = set()  # those that had a part in this rank's rows since zero()
        self.hooks = ExitStack()
        for tensor in model.parameters():
            dist.broadcast(tensor.data, 0)
        share_buffers(model)
        self._cut()

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
        memory = optimizer.state_dict()
        self.whole = [group["params"] for group in optimizer.param_groups]
        self.numbers = [group["params"] for group in memory["param_groups"]]
        self.flats: list[Slices | Deals] = []
        for group, numbers in zip(optimizer.param_groups, self.numbers, strict=True):
            mine: list[nn.Parameter] = []
            for params, places in _alike(group["params"], numbers):
                states = [memory["state"].get(number, {}) for number in places]
                is_sliced = self.sliced and type(optimizer) in ELEMENTWISE and _uniform(params, states)
                flat = Slices(params, places, world) if is_sliced else Deals(params, places, world)
                self.flats.append(flat)
                mine += flat.mine
            group["params"] = mine
        optimizer.state = defaultdict(dict)
        for flat in self.flats:
            for param, entries in flat.cut_state(memory["state"]):
                optimizer.state[param] = entries
        numbers = {number for flat in self.flats for number in flat.numbers}
        self.frozen_state = {number: entries for number, entries in memory["state"].items() if number not in numbers}
        self.hooks.close()
        for param in (param for flat in self.flats for param in flat.params):
            self.hooks.callback(param.register_post_accumulate_grad_hook(self._note).remove)

    def zero(self) -> None:
        """Forget the gradients of the last step."""
        self.participants.clear()
        for flat in self.flats:
            flat.grads.zero_()

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        """Compute gradients and bring the mean of each slice to the rank that owns it."""
        scaled(loss, weight).backward()
        if not self.alone:
            self._reduce()

    def idle(self, output: Any) -> None:
        """Give zeros to the means."""
        self.muted = True
        backward_zeros(output)
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
            scale_to_norm([flat.mean for flat in self.flats], squares, clipping.norm)

    def step(self, leader: int, update: Callable[[], Any]) -> None:
        """Update this rank's slices and gather everyone's."""
        update()
        for flat in self.flats:
            flat.gather_weights()
        share_buffers(self.model, leader)

    def optimizer_state(self) -> dict[str, Any]:
        """Gather the slices of the state and cut them into the parameters' shapes."""
        groups = self.optimizer.state_dict()["param_groups"]
        whole = [{**group, "params": numbers} for group, numbers in zip(groups, self.numbers, strict=True)]
        return {"state": self._whole_state(), "param_groups": whole}

    def _whole_state(self) -> dict[int, dict[str, Any]]:
        state = dict(self.frozen_state)
        for flat in self.flats:
            state.update(flat.gather_state(self.optimizer.state))
        return dict(sorted(state.items()))

    def close(self) -> None:
        """Stop listening to gradients."""
        super().close()
        self.hooks.close()

    def communicated(self) -> float:
        """Return the mean time of bringing gradients to their ranks."""
        return self.seconds / max(self.times, 1)

    def _note(self, param: nn.Parameter) -> None:
        if not self.muted:
            self.participants.add(param)

    def _reduce(self) -> None:
        began = time.perf_counter()
        idle = self._unused()
        if idle and any(isinstance(flat, Slices) for flat in self.flats):
            self._deal_out()
        for flat in self.flats:
            flat.reduce_gradients()
            flat.leave_alone(idle)
        self.seconds, self.times = self.seconds + time.perf_counter() - began, self.times + 1

    def _unused(self) -> set[nn.Parameter]:
        """Return the parameters that had no part in any rank's rows: the optimizer must not touch them."""
        params = [param for flat in self.flats for param in flat.params]
        ranks = torch.tensor([float(param in self.participants) for param in params])
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
        else:  # the reduce-scatter of gloo is an all-reduce of everything, which is twice the traffic of this exchange
            slices = torch.empty_like(self.grads)
            dist.all_to_all_single(slices, self.grads)
            torch.sum(slices.view(size, chunk), 0, out=self.mean)
        self.mean /= size

    def leave_alone(self, idle: set[nn.Parameter]) -> None:
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
        *offsets, total = accumulate((param.numel() for param in params), initial=0)
        chunk = -(-total // world.size)
        super().__init__(params, numbers, offsets, chunk, world)
        self.mine = [self._own(0, chunk, torch.Size([chunk]))]

    def cut_state(self, state: dict[int, dict[str, Any]]) -> Iterator[tuple[nn.Parameter, dict[str, Any]]]:
        """Yield the slice and its part of a whole optimizer state."""
        entries: dict[str, Any] = {}
        for key, first in state.get(self.numbers[0], {}).items():
            if not follows(first, self.params[0]):
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
            is_slice = follows(value, self.mine[0])
            flat = torch.zeros_like(self.weights, dtype=value.dtype) if is_slice else None
            if flat is not None:
                dist.all_gather_into_tensor(flat, value.contiguous())
            for param, number, offset in zip(self.params, self.numbers, self.offsets, strict=True):
                part = value if flat is None else flat[offset : offset + param.numel()].view(param.shape)
                whole[number][key] = part.clone() if isinstance(part, torch.Tensor) else part
        return whole if entries else {}


class Deals(Flat):
    """Whole parameters, dealt out, the largest first to the rank with the least: for optimizers that need shapes."""

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

    def leave_alone(self, idle: set[nn.Parameter]) -> None:
        """Give the optimizer no gradient for these parameters."""
        for param, mean, whole in zip(self.mine, self.means, self.originals, strict=True):
            param.grad = None if whole in idle else mean

    def cut_state(self, state: dict[int, dict[str, Any]]) -> Iterator[tuple[nn.Parameter, dict[str, Any]]]:
        """Yield this rank's parameters and their state."""
        for param, number in zip(self.mine, self.here, strict=True):
            if state.get(number):
                yield param, dict(state[number])

    def gather_state(self, state: dict[Any, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Return the whole state of these parameters, by number."""
        own = {n: state[p] for p, n in zip(self.mine, self.here, strict=True) if p in state}
        return {number: entries for states in self.world.all_gather(own) for number, entries in states.items()}


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
            same = follows(states[0][key], params[0])
            if follows(value, param) != same or (not same and not _equal(value, states[0][key])):
                return False
    return True


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool((one == other).all())
    return bool(one == other)


def follows(value: Any, param: torch.Tensor) -> bool:
    """Say whether a state entry has one number for each of the parameter's."""
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == param.shape
