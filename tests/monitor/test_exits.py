from __future__ import annotations

import signal
from pathlib import Path

import pytest

from orca.monitor.exits import SILENT_END, ended, memory_limit, resident_memory, silent_end, stack_in

FAULT = """Fatal Python error: Segmentation fault

Thread 0x00007f0000000001 (most recent call first):
  File "selectors.py", line 468 in select

Current thread 0x00007f0000000000 (most recent call first):
  File "model.py", line 3 in forward

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""


@pytest.mark.parametrize("code", [-signal.SIGKILL, 128 + signal.SIGKILL])
def test_a_killed_process_most_often_had_no_memory(code: int) -> None:
    reason = ended(code, 3_400_000_000, 4_000_000_000)
    assert reason.startswith(f"its process was ended by SIGKILL (exit code {code}): most often for want of memory")
    assert reason.endswith(
        "It held 3.4 GB of memory when it was last seen; all processes there together may hold 4.0 GB"
    )
    assert "GB" not in ended(code)


@pytest.mark.parametrize("code", [0, 1, 70, 127, 128, 255, -200])
def test_a_code_that_is_no_signal_is_shown_as_it_is(code: int) -> None:
    assert ended(code) == f"its process ended with exit code {code}"


def test_a_signal_without_a_usual_cause_is_named() -> None:
    assert ended(-signal.SIGHUP) == "its process was ended by SIGHUP (exit code -1)"


def test_the_words_of_a_fault_name_the_signal() -> None:
    assert silent_end(FAULT) == ended(-signal.SIGSEGV)
    assert silent_end("Fatal Python error: Illegal instruction\n") == ended(-signal.SIGILL)
    assert silent_end("Fatal Python error: of a kind that nobody knows") == SILENT_END
    reason = silent_end("", 2_000_000_000)
    assert reason.startswith(f"{SILENT_END}. It held 2.0 GB of memory when it was last seen. If that was too much: ")
    assert reason.endswith("or give the workers more memory")  # what to do comes last
    [frame] = stack_in(FAULT).splitlines()[1:]
    assert frame == '  File "model.py", line 3 in forward'
    others = stack_in(FAULT.replace("Current", "Another"))  # a thread of a library has no frames of Python
    assert "selectors.py" in others and "model.py" in others and "torch._C" not in others


def test_memory_of_this_process_is_less_than_it_may_have() -> None:
    assert 10_000_000 < resident_memory() < memory_limit()


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/pod/box\n", {"pod/memory.max": "3000", "pod/box/memory.max": "max"}, 3000),
        ("0::/pod/box\n", {"memory.max": "2000", "pod/box/memory.max": "5000"}, 2000),
        ("0::/../elsewhere\n", {"memory.max": "4000"}, 4000),  # of a container: the root is its own group
        ("4:memory:/box\n3:cpu:/x\n", {"memory/box/memory.limit_in_bytes": "6000"}, 6000),
        ("4:memory:/hidden\n", {"memory/memory.limit_in_bytes": "7000"}, 7000),
        ("0::/\n", {"memory.max": "max"}, None),
    ],
)
def test_the_tightest_group_limits_memory(
    tmp_path: Path, groups: str, files: dict[str, str], limit: int | None
) -> None:
    root = tmp_path / "groups"
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    (tmp_path / "own").write_text(groups)
    machine = memory_limit(tmp_path / "none", root)
    assert memory_limit(tmp_path / "own", root) == (limit or machine)
