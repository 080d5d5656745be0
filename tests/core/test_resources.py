from __future__ import annotations

import os
from pathlib import Path

import pytest

from orca.core.resources import Grant, Inventory, assigned_gpus, cores, cpu_quota, cpus_of, own_gpu
from orca.errors import ArgumentError

NO_CGROUP = ("no cgroup", float("inf"))


def groups_of(folder: Path, lines: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Return the files of a system's cgroups."""
    for name, text in files.items():
        (folder / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "fs" / name).write_text(text + "\n")
    (folder / "cgroup").write_text(lines)
    return folder / "cgroup", folder / "fs"


@pytest.mark.parametrize(
    ("lines", "files", "group", "cpus"),
    [
        ("0::/job/task\n", {"job/task/cpu.max": "max 100000", "job/cpu.max": "150000 100000"}, "job", 1.5),
        ("0::/job/task\n", {"job/task/cpu.max": "50000 100000", "job/cpu.max": "400000 100000"}, "job/task", 0.5),
        # A container sees its own cgroup as the root, and the path of its host.
        ("0::/docker/1\n", {"cpu.max": "200000 100000"}, "", 2.0),
        (
            "3:memory:/m\n2:cpu,cpuacct:/yarn/c1\n",
            {"cpu,cpuacct/yarn/c1/cpu.cfs_quota_us": "300000", "cpu,cpuacct/yarn/c1/cpu.cfs_period_us": "100000"},
            "cpu,cpuacct/yarn/c1",
            3.0,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"}, "cpu", 2.0),
    ],
)
def test_the_tightest_cgroup_limits_the_cpus(
    lines: str, files: dict[str, str], group: str, cpus: float, tmp_path: Path
) -> None:
    groups, root = groups_of(tmp_path, lines, files)
    assert cpu_quota(groups, root) == (str(root / group).rstrip("/"), cpus)


@pytest.mark.parametrize(
    ("lines", "files"),
    [
        ("0::/job\n", {"job/cpu.max": "max 100000"}),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}),
        ("0::/job\n", {}),
    ],
)
def test_cgroups_without_a_quota_limit_nothing(lines: str, files: dict[str, str], tmp_path: Path) -> None:
    assert cpu_quota(*groups_of(tmp_path, lines, files))[1] == float("inf")
    assert cpu_quota(tmp_path / "none", tmp_path)[1] == float("inf")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux: the affinity of a process")
def test_the_affinity_of_a_process_limits_its_cpus() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cores() == 1
        assert cpus_of(0, [Inventory.of("127.0.0.1", Grant())]) == 1
    finally:
        os.sched_setaffinity(0, allowed)


def inventory(*cpus: tuple[str, float], node: str = "a", gpus: tuple[tuple[int, str], ...] = ()) -> Inventory:
    return Inventory(node, [("affinity 0-15", 16.0), *cpus], gpus)


def test_ranks_share_the_cpus_of_a_node_a_quota_and_an_executor() -> None:
    alone = [inventory() for _ in range(4)]
    assert [cpus_of(rank, alone) for rank in range(4)] == [4] * 4
    containers = [inventory(("cgroup x", 3.0)), inventory(("cgroup x", 3.0)), inventory(("cgroup y", 2.5))]
    assert [cpus_of(rank, containers) for rank in range(3)] == [1, 1, 2]
    executors = [inventory(("process 1", 2.0)), inventory(("process 2", 8.0)), inventory(node="b")]
    assert [cpus_of(rank, executors) for rank in range(3)] == [2, 8, 16]
    assert cpus_of(0, [inventory(("cgroup x", 0.25))]) == 1


def test_each_rank_takes_a_gpu_of_its_own() -> None:
    both = ((0, "one"), (1, "two"))
    assert assigned_gpus([inventory(gpus=both), inventory(gpus=both)]) == [0, 1]
    # Two executors of a node, each of which sees one GPU as its number 0.
    isolated = [inventory(gpus=((0, "one"),)), inventory(gpus=((0, "two"),))]
    assert [own_gpu(rank, isolated) for rank in range(2)] == [0, 0]
    # Spark has assigned the second to the first rank.
    assert assigned_gpus([inventory(gpus=both[1:]), inventory(gpus=both[:1])]) == [1, 0]


def test_ranks_without_a_gpu_of_their_own_are_refused_and_not_trained_on_cpus() -> None:
    assert own_gpu(0, [inventory(), inventory()]) is None
    shared = [inventory(gpus=((0, "one"),)), inventory(gpus=((0, "one"),))]
    for rank in range(2):
        with pytest.raises(ArgumentError, match=r"2 workers need a GPU each and see 1: worker 1 on a has none"):
            own_gpu(rank, shared)
    with pytest.raises(ArgumentError, match=r"see 1: worker 1 on b has none"):
        own_gpu(0, [shared[0], inventory(node="b")])


def test_an_assigned_gpu_that_torch_does_not_see_is_named() -> None:
    missing = [Inventory.of("127.0.0.1", Grant(gpus=("17",)))]
    assert missing[0].gpus == [(-1, "17")] and assigned_gpus(missing) == [None]
    with pytest.raises(ArgumentError, match=r"assigned GPU '17' to a worker on 127\.0\.0\.1/.*torch does not see"):
        own_gpu(0, missing)
