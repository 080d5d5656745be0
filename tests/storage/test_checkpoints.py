from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from orca.core.state import State
from orca.errors import ArgumentError, OrcaError
from orca.monitor.heartbeat import STORAGE, Heartbeat
from orca.storage import files
from orca.storage.checkpoints import CheckpointWriter, new_run, newest_run, path_of, prefix_in, versions
from raised import raises


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "kept")
        return
    yield "memory://kept"
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


def write(state: State, path: str) -> None:
    about = json.dumps([state.epoch, state.steps]).encode()
    files.write(path, {"weights": state.payload["w"], "state.json": about}, {"weights", "state.json"})


def modes(folder: Path) -> set[int]:
    """Return the permissions of a folder and all in it."""
    return {part.stat().st_mode & 0o777 for part in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize("dated", [False, True])
def test_a_folder_that_a_fit_makes_is_the_users_alone(tmp_path: Path, dated: bool) -> None:
    made, there = tmp_path / "a" / "made", tmp_path / "there"
    there.mkdir()
    for folder in (made, there):
        for steps in (1, 2):
            run = new_run(str(folder), dated)
            with CheckpointWriter(run, write, prefix_in(run)) as writer:
                writer.keep(State(1, steps, {"w": b"1"}))
    assert modes(made) == {0o700, 0o600}
    mask = os.umask(0)
    os.umask(mask)
    assert modes(there) == {0o777 & ~mask, 0o666 & ~mask}


def write_file(state: State, path: str) -> None:
    files.write(path, {"": b"%d" % state.steps}, set())


def state(steps: int) -> State:
    return State(steps=steps, payload={"w": b"w" * steps})


def names(folder: str) -> list[str]:
    fs, place = fsspec.core.url_to_fs(folder)
    return sorted(os.path.basename(name) for name in fs.ls(place, detail=False))


def test_fits_that_begin_together_have_folders_of_their_own(folder: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(new_run, [folder] * 16))
    assert len(set(runs)) == 16
    last = new_run(folder)
    for number, run in enumerate([*runs, last]):
        with CheckpointWriter(run, write) as keeper:
            keeper.keep(state(100 - number))
        assert versions(run) == [100 - number]
    assert newest_run(folder) == last


def test_fits_are_ordered_by_their_number_and_come_after_dated_ones_of_before(folder: str) -> None:
    runs = ["2026-11-16_10-11-25", "2026-11-16_10-11-25-1", "run-000002-00", "run-000010-00", "run-1000000-00"]
    assert newest_run(folder) is None
    for run in runs:
        with CheckpointWriter(f"{folder}/{run}", write, prefix_in(run)) as keeper:
            keeper.keep(state(1))
        assert newest_run(folder) == f"{folder}/{run}"
    for run, number in ((new_run(folder), 1000001), (new_run(f"{folder}/other"), 1)):
        assert re.fullmatch(rf".*/run-0*{number}-[0-9a-f]{{16}}", run)
    assert newest_run(folder) == f"{folder}/run-1000000-00"  # those without a checkpoint do not count


def test_dated_folders_are_later_than_those_before_and_one_fit_s_own(folder: str) -> None:
    future = f"{folder}/2999-12-31_23-59-58"
    with CheckpointWriter(future, write, prefix_in(future)) as keeper:
        keeper.keep(state(7))
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda _: new_run(folder, dated=True), range(6)))
    assert len({*runs, future}) == 7 and all(run > future for run in runs)
    local = not folder.startswith("memory")
    assert all(re.fullmatch(r".*/\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(-[0-9a-f]{16})?", run) for run in runs)
    assert all((len(run) == len(future)) is local for run in runs)  # no random digits where none are needed
    assert newest_run(folder) == future and path_of(future) == f"{future}/model.7"
    numbered = new_run(folder)
    with CheckpointWriter(numbered, write, prefix_in(numbered)) as keeper:
        keeper.keep(state(3))
    assert newest_run(folder) == numbered and path_of(numbered) == f"{numbered}/orca.3"  # the one written last


def test_optim_methods_beside_versions_are_no_versions_and_go_with_them(folder: str) -> None:
    def write_both(kept: State, path: str) -> None:
        files.write(f"{path.rpartition('/')[0]}/optimMethod-Adam.{kept.steps}", {"": b"{}"}, None)
        write(kept, path)

    run = new_run(folder, dated=True)
    with CheckpointWriter(run, write_both, prefix_in(run), keep=2) as keeper:
        for steps in (9, 10, 11):
            keeper.keep(state(steps))
    assert names(run) == ["model.10", "model.11", "optimMethod-Adam.10", "optimMethod-Adam.11"]
    for prefix in ("orca", "model", "optimMethod-Adam", None):
        assert (versions(run, prefix), path_of(run, prefix=prefix)) == ([10, 11], f"{run}/model.11")
    assert newest_run(folder, None) == newest_run(folder) == run


class Objects(MemoryFileSystem):
    """A store that has no folders without files."""

    protocol = "objects"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass


def test_number_of_a_fit_is_taken_before_its_first_checkpoint_where_folders_are_no_things() -> None:
    fsspec.register_implementation("objects", Objects, clobber=True)
    numbers = [new_run("objects://kept").split("-")[1] for _ in range(3)]
    assert numbers == ["000001", "000002", "000003"] and newest_run("objects://kept") is None


@pytest.mark.parametrize("writer", [write, write_file])
def test_the_newest_versions_stay(folder: str, writer: Any) -> None:
    with CheckpointWriter(folder, writer, keep=2) as keeper:
        for steps in (0, 8, 9, 10, 100):
            keeper.keep(state(steps))
    assert versions(folder) == [10, 100]
    assert path_of(folder) == f"{folder}/orca.100"
    assert path_of(folder + "/", 10) == f"{folder}/orca.10"
    assert names(folder) == ["orca.10", "orca.100"]
    with CheckpointWriter(folder, writer, prefix="all") as keeper:
        for steps in range(4):
            keeper.keep(state(steps))
    assert versions(folder, "all") == [0, 1, 2, 3]


def test_a_name_of_ones_own_is_no_version_and_stays(folder: str) -> None:
    with CheckpointWriter(folder, write, keep=1) as keeper:
        for steps in (1, 2, 3):
            keeper.keep(state(steps), name="last.ckpt")
            keeper.keep(state(steps))
    assert names(folder) == ["last.ckpt", "orca.3"]
    fs, place = fsspec.core.url_to_fs(folder)
    assert json.loads(fs.cat_file(f"{place}/last.ckpt/state.json")) == [0, 3]


def test_what_was_just_written_stays_even_where_an_older_run_went_further(folder: str) -> None:
    with CheckpointWriter(folder, write) as keeper:
        for steps in (500, 600, 700):
            keeper.keep(state(steps))
    with CheckpointWriter(folder, write, keep=2) as keeper:
        keeper.keep(state(5))
    assert versions(folder) == [5, 700]


def test_keep_returns_at_once_and_writes_one_state_at_a_time(folder: str) -> None:
    gate, running, most = threading.Event(), [0], [0]

    def slow(state: State, path: str) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        assert gate.wait(20)
        write(state, path)
        running[0] -= 1

    keeper = CheckpointWriter(folder, slow)
    keeper.keep(state(1))
    assert versions(folder) == []  # it is still at the gate
    second = threading.Thread(target=keeper.keep, args=(state(2),))
    second.start()
    second.join(0.3)
    assert second.is_alive()  # bounded memory: the next waits for the former
    gate.set()
    second.join(20)
    keeper.close()
    assert versions(folder) == [1, 2]
    assert most == [1]
    assert not [thread for thread in threading.enumerate() if thread.name == "orca-checkpoint"]


def test_waiting_for_a_slow_write_shows_as_waiting_for_storage(folder: str) -> None:
    gate, heartbeat, phases = threading.Event(), Heartbeat(), []

    def slow(state: State, path: str) -> None:
        assert gate.wait(20)
        write(state, path)

    keeper = CheckpointWriter(folder, slow)
    keeper.keep(state(1))
    key = threading.Thread(target=lambda: (_seen(heartbeat, phases), gate.set()))
    key.start()
    with heartbeat.current():
        keeper.keep(state(2))  # the former one is waited for
        keeper.close()
    key.join()
    assert phases == [STORAGE] and heartbeat.phase != STORAGE
    assert versions(folder) == [1, 2]


def _seen(heartbeat: Heartbeat, phases: list[int]) -> None:
    while heartbeat.phase != STORAGE:
        threading.Event().wait(0.005)
    phases.append(heartbeat.phase)


def test_close_need_not_wait(folder: str) -> None:
    gate = threading.Event()
    keeper = CheckpointWriter(folder, lambda state, path: (gate.wait(20), write(state, path))[1])
    keeper.keep(state(1))
    keeper.close(wait=False)
    assert versions(folder) == []  # the gate is closed
    gate.set()
    keeper.close()
    assert versions(folder) == [1]


def test_a_failed_write_is_told_by_the_next_keep_and_then_it_goes_on(folder: str) -> None:
    def full(state: State, path: str) -> None:
        if state.steps == 2:
            raise OSError("No space left on device")
        write(state, path)

    keeper = CheckpointWriter(folder, full, keep=1, storage_timeout=0)
    for steps in (1, 2):
        keeper.keep(state(steps))
    said = (
        r"the checkpoint .*kept/orca.2 could not be written in 0 s \(storage_timeout\): OSError: No space left on "
        r"device\. .*has room.*resume from"
    )
    with pytest.raises(OrcaError, match=said) as caught:
        keeper.keep(state(3))
    assert isinstance(caught.value.__cause__, OSError)
    assert versions(folder) == [1]  # nothing is removed for a write that failed
    keeper.keep(state(4))
    keeper.close()
    assert versions(folder) == [4]
    keeper.keep(state(2))
    with raises("checkpoint-not-written"):
        keeper.close()
    keeper.close()  # it is said once


def test_a_failed_write_does_not_hide_the_error_of_the_training(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(state: State, path: str) -> None:
        raise OSError("No space left on device")

    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ZeroDivisionError),
        CheckpointWriter(folder, fail) as keeper,
    ):
        keeper.keep(state(1))
        raise ZeroDivisionError
    assert "orca.1 could not be written in 600 s (storage_timeout): OSError: No space left" in caplog.text


def take_away(place: Path) -> None:
    """Put a file in the place of a folder."""
    place.rename(place.with_name("away"))
    place.write_text("in the way")


def bring_back(place: Path) -> None:
    place.unlink()
    place.with_name("away").rename(place)


def test_a_write_that_fails_is_tried_again_while_others_follow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "kept"
    with caplog.at_level(logging.WARNING), CheckpointWriter(str(place), write) as keeper:
        keeper.keep(state(1))
        keeper.wait()
        take_away(place)
        keeper.keep(state(2))
        while "trying again" not in caplog.text:
            threading.Event().wait(0.01)
        for steps in (3, 4, 5):
            keeper.keep(state(steps))  # none of them waits
        bring_back(place)
    assert versions(str(place)) == [1, 2, 5]
    assert re.search(r"checkpoint .*orca\.2 could not be written \(\w+: .*\); trying again in 1 s", caplog.text)
    skipped = re.findall(r"checkpoint (orca\.\d) is skipped: (orca\.\d) takes its place", caplog.text)
    assert skipped == [("orca.3", "orca.4"), ("orca.4", "orca.5")]


def test_storage_that_stays_away_is_one_error_and_a_wrong_state_is_not_tried_again(tmp_path: Path) -> None:
    keeper = CheckpointWriter(str(tmp_path / "kept"), write, storage_timeout=1.5)
    keeper.keep(state(1))
    keeper.wait()
    take_away(tmp_path / "kept")
    began = time.monotonic()
    keeper.keep(state(2))
    with pytest.raises(OrcaError, match=r"kept/orca\.2 could not be written in 1\.5 s .*: \w+Error: ") as caught:
        keeper.close()
    assert 1.4 < time.monotonic() - began < 6 and str(tmp_path / "kept") in str(caught.value).splitlines()[0]
    keeper = CheckpointWriter(str(tmp_path / "other"), write)
    keeper.keep(State(steps=2, payload={}))
    with pytest.raises(OrcaError, match=r"orca\.2 could not be written: KeyError: 'w'"):
        keeper.close()


def test_files_with_names_of_their_own_are_never_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "kept"
    with CheckpointWriter(str(place), write) as keeper:
        keeper.keep(state(1), name="first")
        keeper.wait()
        take_away(place)
        keeper.keep(state(2), name="second")
        while "trying again" not in caplog.text:
            threading.Event().wait(0.01)
        keeper.keep(state(3), name="third")
        threading.Timer(0.3, bring_back, [place]).start()
        keeper.keep(state(4), name="fourth")  # waits
    assert names(str(place)) == ["first", "fourth", "second", "third"]


def test_half_written_and_half_removed_checkpoints_are_not_listed_and_are_cleaned(folder: str) -> None:
    fs, place = fsspec.core.url_to_fs(folder)
    with CheckpointWriter(folder, write) as keeper:
        keeper.keep(state(3))
    for name in (
        "orca.9/weights", "orca.2/weights", "orca.8.draft-01234567/state.json", "other.8.draft-01234567/state.json",
    ):  # fmt: skip
        fs.makedirs(os.path.dirname(f"{place}/{name}"), exist_ok=True)
        fs.pipe_file(f"{place}/{name}", b"")
    for name in ("orca.07", "orca.x", "orca.5.pt", "my.orca.4", "events.out.tfevents.1.host.0"):
        fs.pipe_file(f"{place}/{name}", b"")
    assert versions(folder) == versions(folder, None) == [3]
    assert path_of(folder, prefix=None) == f"{folder}/orca.3"
    with CheckpointWriter(folder, write) as keeper:
        keeper.keep(state(1), name="last.ckpt")
        assert "orca.2" in names(folder)  # where names are chosen, folders may be others'
        keeper.keep(state(9))
    assert versions(folder) == [3, 9]  # the half-written one was made again
    assert "orca.2" not in names(folder)
    assert [name for name in names(folder) if ".draft-" in name] == ["other.8.draft-01234567"]  # another's, perhaps


def test_what_is_not_there_is_told_with_what_is(folder: str) -> None:
    with raises("missing-checkpoint"):
        path_of(folder)
    assert versions(folder) == versions(folder, None) == []
    with CheckpointWriter(folder, write) as keeper:
        for steps in (3, 12):
            keeper.keep(state(steps))
    with raises("missing-checkpoint"):
        path_of(folder, 4)
    with pytest.raises(
        ArgumentError, match=r"kept holds no complete checkpoint net.<steps>. There are some with the prefix 'orca'"
    ):
        path_of(folder, prefix="net")
    with CheckpointWriter(folder, write, prefix="net") as keeper:
        keeper.keep(state(1))
    for ask in (versions, lambda folder, prefix: path_of(folder, 3, prefix)):
        with raises("several-prefixes", match="'net'"):
            ask(folder, None)
    fs, place = fsspec.core.url_to_fs(folder)
    fs.makedirs(f"{place}/empty")
    with raises("missing-checkpoint"):
        path_of(f"{folder}/empty", prefix=None)


def test_wrong_arguments_are_named(folder: str) -> None:
    with raises("bad-keep"):
        CheckpointWriter(folder, write, keep=0)
    with raises("bad-prefix"):
        CheckpointWriter(folder, write, prefix="a/b")


def test_every_listed_version_loads_wherever_the_process_was_killed(
    tmp_path: Path, run_program: Callable[..., Any]
) -> None:
    """Kill a training process 20 times while it writes and removes checkpoints, and look at what it left."""
    pytest.importorskip("torch")
    said = run_program(
        """
        import os, random, signal, sys, time
        import fsspec, torch
        from orca.storage.checkpoints import CheckpointWriter, path_of, versions
        from orca.core.state import State
        from orca.frameworks.torch.files import load_file, save_file

        torch.set_num_threads(1)  # threads do not survive a fork
        folder, drafts, total = sys.argv[1], 0, 0

        local = type(fsspec.filesystem("file"))
        write = local.pipe_file

        def write_slowly(fs, spot, data):  # so that the kill finds it at any point, however fast the disk
            write(fs, spot, data[: len(data) // 2])
            time.sleep(0.003)
            write(fs, spot, data)

        local.pipe_file = write_slowly

        def train():
            steps = max(versions(folder), default=0)
            with CheckpointWriter(folder, save_file, keep=3) as keeper:
                while True:
                    steps += 1
                    payload = {"models": [{"w": torch.full((50_000,), float(steps))}], "optimizers": []}
                    keeper.keep(State(steps=steps, payload=payload, position={"step": steps}))

        random.seed(0)
        for round in range(20):
            before = max(versions(folder), default=0)
            child = os.fork()
            if not child:
                train()
            while max(versions(folder), default=0) <= before:
                time.sleep(0.001)
            time.sleep(random.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            found = versions(folder)
            assert found and found[-1] > before, (before, found)
            for version in found:
                state, _ = load_file(path_of(folder, version))
                assert state.steps == version and state.position == {"step": version}
                assert torch.equal(state.payload["models"][0]["w"], torch.full((50_000,), float(version)))
            drafts += any(".draft-" in name for name in os.listdir(folder))
            total += len(found)
        with CheckpointWriter(folder, save_file, keep=3) as keeper:
            keeper.keep(State(steps=10**6, payload={"models": [{}]}))
        left = os.listdir(folder)
        assert len(left) == 3 and all(name.split(".")[1].isdigit() for name in left), left
        print(drafts, total)
        """,
        args=[str(tmp_path / "kept")],
    )
    drafts, total = map(int, said.stdout.split())
    assert drafts > 3  # it was killed in the middle of writing or removing, and often
    assert total > 20
