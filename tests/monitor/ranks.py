"""Ranks: links to a hub inside this process, or in processes of their own; for the tests of hub and link."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from orca.monitor.hub import Hub
from orca.monitor.link import Link
from orca.monitor.protocol import Ticket

RANK = """
import json, os, sys, time
from orca.monitor.heartbeat import *
from orca.monitor.hub import Hub
from orca.monitor.link import Link
from orca.monitor.protocol import Ticket
ticket = Ticket(**json.loads(sys.argv[1]))
rank = int(sys.argv[2])
link = Link.connect(ticket, rank)
assert link.connected
"""


@contextmanager
def spawned(ticket: Ticket, *bodies: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Run each body as the rank of its position in a process of its own, and leave none behind."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with ExitStack() as stack:
        processes = []
        for rank, body in enumerate(bodies):
            command = [sys.executable, "-c", RANK + textwrap.dedent(body)]
            arguments = [json.dumps(dataclasses.asdict(ticket)), str(rank)]
            process = subprocess.Popen(command + arguments, env=env, text=True, stdout=subprocess.PIPE)
            stack.callback(stop, process)
            processes.append(process)
        yield processes


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@contextmanager
def linked(hub: Hub, **options: object) -> Iterator[list[Link]]:
    """Connect all ranks of a hub inside this process; an abort must not end it."""
    options.setdefault("on_abort", lambda: None)
    with ExitStack() as stack:
        links = [Link.connect(hub.ticket, rank, **options) for rank in range(hub.size)]  # type: ignore[arg-type]
        for link in links:
            stack.callback(link.close)
        yield links


def eventually(true: Callable[[], object], seconds: float = 3.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.01)
    return bool(true())


def raised(error: BaseException) -> BaseException:
    """Return the error with a traceback that shows this function."""
    try:
        raise error
    except BaseException as caught:
        return caught


@contextmanager
def linked_some(hub: Hub, count: int) -> Iterator[list[Link]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Link.connect(hub.ticket, rank, on_abort=lambda: None)) for rank in range(count)]
