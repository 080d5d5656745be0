"""Progress: what a terminal shows of the beats, and that nothing else is shown anything."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from orca.monitor import verbosity
from orca.monitor.heartbeat import Beat, EpochEnd
from orca.monitor.progress import Progress


class Terminal:
    """A pseudo terminal: `stream` writes to it; `states` are what its last line was, one after the other."""

    def __init__(self, columns: int = 120, lines: int = 24) -> None:
        self.inner, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.stream: TextIO = open(slave, "w")  # noqa: SIM115
        self.text = ""
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self.inner, 1 << 16):
                self.text += data.decode(errors="replace")
        except OSError:  # a pseudo terminal that was closed at the other side
            pass

    def close(self) -> None:
        if not self.stream.closed:
            self.stream.close()
            self.reader.join()
            os.close(self.inner)

    @property
    def states(self) -> list[str]:
        self.close()
        return [state.strip() for state in re.split(r"[\r\n]+", self.text) if state.strip()]


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


@contextmanager
def shown_on(terminal: Terminal, enabled: bool = True) -> Iterator[Progress]:
    """Show progress on a terminal. (pytest sets sys.stderr anew after the fixtures.)"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", terminal.stream)
        with Progress(enabled) as progress:
            yield progress


def beat(epoch: int, step: int, steps: int = 4, rank: int = 0, loss: float | None = None, rows: int = 0) -> Beat:
    return Beat(rank, epoch, step, steps, loss=loss, rows=rows)


def test_a_bar_shows_epoch_steps_time_left_loss_and_rows_a_second(terminal: Terminal) -> None:
    with shown_on(terminal) as progress:
        for step in range(5):
            progress.beat(beat(3, step, 10, loss=0.25, rows=3000 * step))
            time.sleep(0.1)
    last = terminal.states[-1]
    match = re.fullmatch(r"epoch 3:  40%\|\S+ *\| 4/10 \[00:00<00:0\d, loss=0.2500, rows/s=([\d.]+)k\]", last)
    assert match and 3 < float(match[1]) < 33, last  # 3000 rows a step, of 0.1 s or more


def test_one_bar_an_epoch_and_one_that_others_followed_is_full(terminal: Terminal) -> None:
    with shown_on(terminal) as progress:
        for one in (beat(1, 0), beat(1, 2), beat(2, 1), beat(2, 3)):
            progress.beat(one)
    steps = [re.search(r"epoch (\d): .* (\d)/4 ", state) for state in terminal.states]
    assert list(dict.fromkeys(items.groups() for items in steps if items)) == [
        *[("1", "0"), ("1", "2"), ("1", "4")],
        *[("2", "1"), ("2", "3")],
    ]
    assert terminal.text.count("\n") == 2  # each bar stays on a line of its own


def test_steps_before_the_first_beat_do_not_count_as_speed(terminal: Terminal) -> None:
    with shown_on(terminal) as progress:
        progress.beat(beat(1, 500, 1000, rows=500))
        time.sleep(0.2)
        progress.beat(beat(1, 502, 1000, rows=502))
    speed = re.search(r"502/1000 .*rows/s=([\d.]+)", terminal.states[-1])
    assert speed and float(speed[1]) < 11, terminal.states[-1]


def test_an_epoch_of_unknown_length_is_a_counter_until_it_is_known(terminal: Terminal) -> None:
    with shown_on(terminal) as progress:
        progress.beat(beat(1, 0, 0))
        time.sleep(0.05)
        progress.beat(beat(1, 7, 0, loss=1.5, rows=70))
        progress.beat(beat(2, 3, 7))
    assert any(re.match(r"epoch 1: 7step \[00:00, loss=1.5000, rows/s=", state) for state in terminal.states)
    assert re.match(r"epoch 2:  43%\|.* 3/7 ", terminal.states[-1])


def test_the_bar_stays_where_a_run_ended(terminal: Terminal) -> None:
    with pytest.raises(ValueError, match="bad"), shown_on(terminal) as progress:
        progress.beat(beat(1, 1, rows=1))
        time.sleep(0.1)
        progress.beat(beat(1, 2, rows=2))
        time.sleep(1.1)  # not time of the epoch
        raise ValueError("bad")
    speed = re.search(r" 2/4 \[00:00<00:00, rows/s=(\d+)", terminal.states[-1])
    assert speed and 3 < float(speed[1]) < 11, terminal.states[-1]


def test_the_results_of_an_epoch_take_the_place_of_its_bar_and_stay_in_sight(terminal: Terminal) -> None:
    ends = [EpochEnd(epoch, ["loss=0.25", "val_loss=0.5", "val_accuracy=0.75"], 12_345.0, 1.26) for epoch in (1, 2)]
    with shown_on(terminal) as progress:
        progress.beat(Beat(0, 1, 2, 4, loss=0.3, rows=200, seconds=0.1))  # the first: its speed is known
        progress.end_epoch(ends[0])
        progress.beat(beat(1, 4))  # late
        progress.beat(beat(2, 1, loss=0.2))
        progress.end_epoch(ends[1])
        progress.end_epoch(ends[1]._replace(epoch=3))  # too short for a beat
    shown = terminal.states
    first = re.compile(r"epoch 1:  50%\|.*\| 2/4 \[00:00<\S+, loss=0.3000, rows/s=2.00k\]")
    assert any(map(first.fullmatch, shown)), shown[:2]
    assert any(
        re.search(r"epoch 2: .* 1/4 .*loss=0.2000.*, val_loss=0.5, val_accuracy=0.75\]", state) for state in shown
    )
    results = "loss=0.25, val_loss=0.5, val_accuracy=0.75, 12.3k rows/s, 1.3 s"
    lines = [line.split("\r")[-1].strip() for line in terminal.text.replace("\r\n", "\n").split("\n")]
    assert lines == [*(f"epoch {epoch}: {results}" for epoch in (1, 2, 3)), ""]


def test_only_rank_0_in_training_is_shown(terminal: Terminal) -> None:
    with shown_on(terminal) as progress:
        progress.beat(beat(1, 1, rank=1))
        progress.beat(beat(0, 0, steps=0))
    assert terminal.states == []


def test_switched_off_it_is_silent_and_a_late_beat_too(terminal: Terminal) -> None:
    with shown_on(terminal, enabled=False) as progress:
        progress.beat(beat(1, 1))
    with shown_on(terminal) as progress:
        pass
    progress.beat(beat(1, 1))
    assert terminal.states == []


def test_lines_written_aside_do_not_tear_the_bar(terminal: Terminal) -> None:
    with shown_on(terminal) as progress:
        progress.beat(beat(1, 1))
        with progress.aside():
            terminal.stream.write("a line\nand another\n")
        progress.beat(beat(1, 2))
    terminal.close()
    rows = [row.split("\r")[-1].strip() for row in terminal.text.replace("\r\n", "\n").split("\n")]
    assert rows[:2] == ["a line", "and another"]
    assert re.match(r"epoch 1:  50%\|.* 2/4 ", rows[2]) and len(rows) == 4 and rows[3] == ""


def test_a_terminal_that_does_not_tell_its_size_gets_a_bar() -> None:
    terminal = Terminal(0, 0)
    with shown_on(terminal) as progress:
        progress.beat(beat(1, 2))
    assert " 2/4 " in terminal.states[-1]


def test_nothing_is_written_into_a_pipe() -> None:
    program = """
    from orca.monitor.progress import Progress
    from orca.monitor.heartbeat import Beat
    with Progress() as progress:
        for step in range(4):
            progress.beat(Beat(0, 1, step, 4, loss=0.5, rows=step))
            with progress.aside():
                pass
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, env=env, check=True)
    assert (result.stdout, result.stderr) == (b"", b"")


@pytest.mark.parametrize("level", ["warning", "error"])
def test_above_info_nothing_is_shown(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    monkeypatch.setattr(verbosity, "_requested", level)
    with Progress() as progress:
        progress.beat(Beat(0, 1, 1, 4))
        progress.end_epoch(EpochEnd(1, ["loss=0.5"], 10.0, 1.0))
    assert terminal.states == []
