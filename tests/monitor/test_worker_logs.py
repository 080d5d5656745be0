"""Voice: lines of a rank arrive on the driver whole, in order and once, and nobody ever waits for them."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tqdm.std import tqdm

from orca.monitor import link as links
from orca.monitor import worker_logs
from orca.monitor.hub import Hub
from orca.monitor.link import Link
from orca.monitor.progress import Progress
from orca.monitor.protocol import Log, Ticket
from orca.monitor.worker_logs import Echo, Lines, speaking

logger = logging.getLogger("a.rank")


@contextmanager
def rank(level: int = logging.INFO, to_driver: bool = True) -> Iterator[list[Log]]:
    """A rank in this process; the list is what the driver has heard when the block has ended."""
    output: list[Log] = []
    with Hub(1, on_log=lambda _, line: output.append(line)) as hub:
        link = Link.connect(hub.ticket, 0, on_abort=lambda: None)
        try:
            with speaking(link, level, to_driver):
                yield output
        finally:
            link.close()


def texts(output: list[Log]) -> list[str]:
    return [line.text for line in output]


# Lines.


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        (["one\ntwo\n"], ["one", "two"]),
        (["o", "n", "e", "\n", "\n"], ["one", ""]),
        (["half"], ["half"]),
        (["dos\r\n", "split\r", "\n"], ["dos", "split"]),
        (["\r 0%", "\r 50%", "\r100%", "\n", "next\n"], ["100%", "next"]),
        (["\r 0%", "\r 50%"], [" 50%"]),
        (["a\rb\n"] * 3, ["b", "b", "b"]),
    ],
)
def test_pieces_become_the_lines_that_a_terminal_would_show(pieces: list[str], lines: list[str]) -> None:
    page = Lines()
    assert [line for piece in pieces for line in page.feed(piece)] + page.rest() == lines


def test_lines_of_a_program_that_rewrites_each_are_not_held_for_ever() -> None:
    page = Lines()
    lines = [line for number in range(100) for line in page.feed(f"x\r{number}\n")]
    assert lines == [str(number) for number in range(100 - worker_logs.HELD)]


def test_a_line_is_cut_and_says_so() -> None:
    page = Lines()
    (line,) = page.feed("x" * (1 << 20) + "\n")
    assert line == "x" * (64 << 10) + f"... ({(1 << 20) - (64 << 10)} more characters)"
    assert page.feed("short\n") == ["short"]


def test_progress_bars_of_a_worker_leave_their_last_state_only() -> None:
    with rank() as output:
        for _ in tqdm(range(3), desc="outer", file=sys.stderr, mininterval=0):
            for _ in tqdm(range(50), desc="inner", file=sys.stderr, mininterval=0, leave=False):
                pass
        print("done", file=sys.stderr)
    rows = [text for text in texts(output) if text.strip()]
    assert len(rows) <= 4 and rows[-1] == "done" and "100%" in rows[-2] and "outer" in rows[-2], rows


# A rank.


def test_prints_and_records_arrive_in_order_with_their_origin() -> None:
    with rank() as output:
        print("to stdout")
        print("to stderr", file=sys.stderr)
        logger.info("an %s", "info")
        logger.debug("too low")
        print("the end", end="")
    assert output == [
        Log("to stdout", "stdout"),
        Log("to stderr", "stderr"),
        Log("an info", "a.rank", logging.INFO),
        Log("the end", "stdout"),
    ]


def test_a_logger_with_a_lower_level_of_its_own_is_held_to_the_level() -> None:
    quiet = logging.getLogger("a.rank.detailed")
    quiet.setLevel(logging.DEBUG)
    with rank(logging.WARNING) as output:
        quiet.debug("no")
        quiet.info("no")
        quiet.warning("yes")
    assert texts(output) == ["yes"]


def test_a_record_brings_its_traceback() -> None:
    with rank() as output:
        try:
            raise KeyError("missing")
        except KeyError:
            logger.exception("it failed")
    assert output[0].text.startswith("it failed\nTraceback") and "KeyError: 'missing'" in output[0].text
    assert output[0].level == logging.ERROR


def test_streams_level_and_handlers_are_as_before_afterwards() -> None:
    root = logging.getLogger()
    before = (sys.stdout, sys.stderr, root.level, list(root.handlers))
    with pytest.raises(ValueError, match="bad"), rank(logging.DEBUG) as output:
        assert root.level == logging.DEBUG and sys.stdout is not before[0]
        print("last words", end="")
        raise ValueError("bad")
    assert texts(output) == ["last words"]
    assert (sys.stdout, sys.stderr, root.level, list(root.handlers)) == before


@pytest.mark.parametrize("how", ["unwanted", "unreachable", "thread"])
def test_streams_are_left_alone_where_they_are_not_ours_to_take(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    level = logging.getLogger().level

    def speak(link: Link) -> None:
        with speaking(link, logging.DEBUG, how != "unwanted"):
            assert logging.getLogger().level == logging.DEBUG
            print("here")

    output: list[Log] = []
    with Hub(1, on_log=lambda _, line: output.append(line)) as hub:
        ticket = Ticket("127.0.0.1", 1, "x", 1) if how == "unreachable" else hub.ticket
        with Link.connect(ticket, 0, on_abort=lambda: None) as link:
            if how == "thread":
                thread = threading.Thread(target=speak, args=[link])
                thread.start()
                thread.join()
            else:
                speak(link)
    assert output == [] and capsys.readouterr().out == "here\n" and logging.getLogger().level == level


def test_a_log_handler_that_kept_the_stream_speaks_in_the_next_job(capsys: pytest.CaptureFixture[str]) -> None:
    with rank():
        handler = logging.StreamHandler(sys.stderr)
    own = logging.getLogger("a.library")
    own.propagate = False
    own.addHandler(handler)
    try:
        own.warning("between")
        with rank() as output:
            own.warning("again")
    finally:
        own.removeHandler(handler)
    assert output == [Log("again", "stderr")] and capsys.readouterr().err == "between\n"


def test_a_forked_child_writes_to_the_workers_own_streams() -> None:
    reading, writing = os.pipe()
    own = os.fdopen(writing, "w")
    before, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), own, own
    try:
        with rank() as output:
            print("parent")
            child = os.fork()
            if child == 0:
                try:
                    print("child")
                    logger.warning("child warns")
                    sys.stdout.flush()
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
    finally:
        sys.stdout, sys.stderr = before
        own.close()
    with os.fdopen(reading) as pipe:
        assert pipe.read().splitlines()[0] == "child"
    assert texts(output) == ["parent"]


def test_the_stand_in_serves_those_who_need_a_descriptor(capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled(), rank():
        assert sys.stdout.fileno() == sys.__stdout__.fileno() and not sys.stdout.isatty()  # type: ignore[union-attr]
        assert sys.stdout.encoding == "utf-8" and sys.stdout.writable()
        sys.stdout.buffer.write(b"")
        sys.stdout.close()
        sys.stdout.writelines(["still ", "open\n"])
        with pytest.raises(TypeError, match="must be str, not bytes"):
            sys.stdout.write(b"x")  # type: ignore[arg-type]


def test_threads_do_not_tear_or_lose_lines() -> None:
    def talk(number: int) -> None:
        for turn in range(200):
            sys.stdout.write(f"{number}:{turn}\n")

    with rank() as output:
        threads = [threading.Thread(target=talk, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in range(4):
        assert [t for t in texts(output) if t.startswith(f"{number}:")] == [f"{number}:{turn}" for turn in range(200)]


def test_a_burst_of_many_lines_arrives_whole() -> None:
    with rank() as output:
        for number in range(20_000):
            print(number)
    printed = [line for line in output if line.origin == "stdout"]  # threads of other tests may log
    assert texts(printed) == [str(number) for number in range(20_000)]


def test_a_driver_that_cannot_keep_up_costs_lines_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LOG_BACKLOG", 1 << 20)
    output: list[Log] = []
    stuck = threading.Event()

    def slow(_: int, line: Log) -> None:
        assert stuck.wait(100)
        output.append(line)

    with Hub(1, on_log=slow) as hub, Link.connect(hub.ticket, 0, on_abort=lambda: None) as link:
        with speaking(link, logging.INFO, True):
            for number in range(500):
                print(f"{number:05d}", "x" * 60_000, flush=True)
            assert not output  # the driver has not read one line: nobody waited for it
            stuck.set()
            time.sleep(0.5)
            print("in time again")
    gap = next(index for index, line in enumerate(output) if "are missing here" in line.text)
    assert texts(output[gap:]) == [
        f"({500 - gap} lines are missing here: the driver could not keep up)",
        "in time again",
    ]
    assert [line.text[:5] for line in output[:gap]] == [f"{number:05d}" for number in range(gap)] and 0 < gap < 500
    assert output[gap].origin == "stderr"


def test_what_was_flushed_is_on_its_way_before_the_process_is_killed() -> None:
    output: list[Log] = []
    with Hub(1, on_log=lambda _, line: output.append(line)) as hub:
        child = os.fork()
        if child == 0:  # a rank: it makes its connection after the fork
            with speaking(Link.connect(hub.ticket, 0), logging.INFO, True):
                print("last words", flush=True)
                os.kill(os.getpid(), 9)
        os.waitpid(child, 0)
    assert texts(output) == ["last words"]


# The driver.


@contextmanager
def echoing() -> Iterator[Echo]:
    with Progress(enabled=False) as progress, Echo(progress) as echo:
        yield echo


def test_lines_appear_on_their_stream_with_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    with echoing() as echo:
        echo.line(1, Log("hello"))
        echo.line(0, Log("", "stdout"))
        echo.line(2, Log("trouble", "stderr"))
    assert capsys.readouterr() == ("[rank 1] hello\n[rank 0]\n", "[rank 2] trouble\n")


def test_records_go_through_the_drivers_logging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "orca.worker")
    with echoing() as echo:
        echo.line(1, Log("50% done", "a.rank", logging.INFO))
        echo.line(1, Log("not wanted here", "a.rank", logging.DEBUG))
    (record,) = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == ("orca.worker", "INFO", "[rank 1] a.rank: 50% done")
    assert (record.rank, record.origin) == (1, "a.rank")  # type: ignore[attr-defined]


def test_leaving_waits_until_all_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with echoing() as echo:
        for number in range(5000):
            echo.line(0, Log(str(number)))
    assert capsys.readouterr().out.splitlines() == [f"[rank 0] {number}" for number in range(5000)]


class Stuck(io.StringIO):
    """A stream that blocks until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def write(self, text: str) -> int:
        self.go.wait(20)
        return super().write(text)


def test_a_stopped_terminal_holds_up_nobody_and_the_gap_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_logs, "ECHO_BACKLOG", 1000)
    out, err = Stuck(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with echoing() as echo:
        for _ in range(1000):
            echo.line(0, Log("123456789"))
        assert not out.getvalue()  # nobody waited for the terminal
        out.go.set()
    count = out.getvalue().count("[rank 0] 123456789\n")
    assert 100 <= count <= 102
    assert err.getvalue() == f"({1000 - count} lines of the workers are missing here: the output could not keep up)\n"


def test_a_closed_stream_does_not_silence_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed, err = io.StringIO(), io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    monkeypatch.setattr(sys, "stderr", err)
    with echoing() as echo:
        echo.line(0, Log("lost"))
        time.sleep(0.1)
        echo.line(0, Log("shown", "stderr"))
    assert err.getvalue() == "[rank 0] shown\n"
    assert caplog.text.count("what the workers say cannot be shown") == 1


def test_a_character_that_the_terminal_does_not_know_is_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", out)
    with echoing() as echo:
        echo.line(0, Log("ä\ud800"))
    assert out.buffer.getvalue() == b"[rank 0] \\xe4\\ud800\n"  # type: ignore[attr-defined]
