"""Resources: the CPUs and GPUs that a rank may use. Owns how ranks share those of a node."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orca.errors import ArgumentError


@dataclass(frozen=True)
class Grant:
    """The part of its node that an engine gives a rank.

    Attributes:
        cpus: How many CPUs; 0 if the engine limits none.
        gpus: The GPUs as the cluster names them: numbers among those that the process sees, or UUIDs. None if the
            engine assigns none: ranks share those that they see.
    """

    cpus: float = 0.0
    gpus: tuple[str, ...] | None = None


NO_LIMIT = Grant()


@dataclass(frozen=True)
class Inventory:
    """What a process may use; each rank tells the others.

    Attributes:
        node: The name of its machine; those of containers differ.
        cpus: The pools of CPUs that limit it: the name of each, and how many CPUs it has.
        gpus: The GPUs: the number of each in this process, and its UUID. One that was assigned and is not seen has the
            number -1 and the cluster's name for it.
    """

    node: str
    cpus: Sequence[tuple[str, float]]
    gpus: Sequence[tuple[int, str]]

    @classmethod
    def of(cls, host: str, grant: Grant) -> Inventory:
        """Return what this process may use, whose machine has this address."""
        affinity = _affinity()
        pools = [(f"affinity {affinity}", float(len(affinity))), cpu_quota()]
        if grant.cpus:
            pools.append((f"process {os.getpid()}", grant.cpus))
        seen = _gpu_uuids()
        gpus = list(enumerate(seen))
        if grant.gpus is not None:
            numbers = [_number_of(gpu, seen) for gpu in grant.gpus]
            gpus = [(n, seen[n] if n >= 0 else gpu) for n, gpu in zip(numbers, grant.gpus, strict=True)]
        return cls(f"{host}/{socket.gethostname()}", pools, gpus)


def cpus_of(rank: int, ranks: Sequence[Inventory]) -> int:
    """Return how many CPUs a rank may keep busy: in each pool its share among the ranks of its node that use it."""
    own = ranks[rank]
    names = [name for other in ranks if other.node == own.node for name, _ in other.cpus]
    return max(1, int(min(count / names.count(name) for name, count in own.cpus)))


def assigned_gpus(ranks: Sequence[Inventory]) -> list[int | None]:
    """Return the number, in its own process, of the GPU that each rank has to itself; None for a rank without one."""
    taken: set[str] = set()
    numbers: list[int | None] = []
    for inventory in ranks:
        free = [(number, uuid) for number, uuid in inventory.gpus if number >= 0 and uuid not in taken]
        numbers.append(free[0][0] if free else None)
        taken.update(uuid for _, uuid in free[:1])
    return numbers


def own_gpu(rank: int, ranks: Sequence[Inventory]) -> int | None:
    """Return the number of the GPU that a rank has to itself; None if no rank sees any.

    Raises:
        ArgumentError: Some ranks have a GPU of their own and others have not, or an assigned GPU is not usable.
    """
    for inventory in ranks:
        for number, name in inventory.gpus:
            if number < 0:
                raise ArgumentError(
                    f"the cluster assigned GPU {name!r} to a worker on {inventory.node}, which torch does not see "
                    "there. Install a torch for CUDA on the nodes, and let the cluster's discovery script name the "
                    "GPUs that its workers see.",
                    code="gpu-not-seen",
                )
    numbers, seen = assigned_gpus(ranks), {uuid for inventory in ranks for _, uuid in inventory.gpus}
    if seen and None in numbers:
        raise ArgumentError(
            f"{len(ranks)} workers need a GPU each and see {len(seen)}: worker {numbers.index(None)} on "
            f"{ranks[numbers.index(None)].node} has none of its own. Lower workers_per_node to the GPUs of a node, let "
            "Spark assign them (spark.task.resource.gpu.amount=1), or train on CPUs with CUDA_VISIBLE_DEVICES=-1.",
            code="too-few-gpus",
        )
    return numbers[rank]


def cores() -> int:
    """Return how many CPUs this process may keep busy: by its affinity and the quota of its cgroup."""
    return max(1, int(min(len(_affinity()), cpu_quota()[1])))


def cpu_quota(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> tuple[str, float]:
    """Return the cgroup, of version 1 or 2, that limits this process most, and its CPUs; infinity without a limit."""
    quotas = [("no cgroup", float("inf"))]
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            for tree in [root / controllers, root / "cpu"] if controllers else [root]:
                group = tree / path.lstrip("/")
                for folder in [group, *group.parents]:
                    with suppress(OSError, ValueError):  # "max" is no number; a container may not see all folders
                        quotas.append((str(folder), _quota_in(folder, version=1 if controllers else 2)))
    return min(quotas, key=lambda quota: quota[1])


def _quota_in(folder: Path, version: int) -> float:
    if version == 2:
        quota, period = map(int, (folder / "cpu.max").read_text().split())
    else:
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    return quota / period if quota > 0 else float("inf")


def _affinity() -> list[int]:
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return list(range(os.cpu_count() or 1))


def _gpu_uuids() -> list[str]:
    """Return the UUIDs of the GPUs that this process sees, in the order of their numbers."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [str(torch.cuda.get_device_properties(number).uuid) for number in range(count)]


def _number_of(gpu: str, uuids: Sequence[str]) -> int:
    """Return the number in this process of a GPU that the cluster assigned; -1 if the process does not see it."""
    if gpu.isdigit() and int(gpu) < len(uuids):
        return int(gpu)
    for names in (uuids, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")):
        if (name := gpu.removeprefix("GPU-")) in names and names.index(name) < len(uuids):
            return names.index(name)
    return -1
