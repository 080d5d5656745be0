"""ForkServer: a process that has loaded what ranks need and forks them. Owns starting, watching and ending such ranks.

Importing a framework takes seconds, and every rank would pay for it in every call. A server imports once and is kept
until the program ends; a rank begins in milliseconds as a copy of it. It is a process of its own because a fork of the
user's would carry over threads, a JVM and CUDA; it runs nothing but imports, so it has none of these.

Each rank has a channel between driver and server. The server answers on it with the rank's exit code; when the
driver closes it, or dies, the server kills the rank.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from orca.core.engine import preload
from orca.core.loading import draw_anew, load

AVAILABLE = sys.platform == "linux"  # elsewhere, system libraries do not survive a fork
KEPT = 2  # servers at a time: each holds what it has loaded
# No library reads these when it is loaded: shells and tools keep them up to date, and a rank gets the driver's path.
_TRANSIENT = ("PYTEST_CURRENT_TEST", "PWD", "OLDPWD", "COLUMNS", "LINES", "_", "PYTHONPATH")
_CODE_BYTES = 8
_MAX_FILES = 16
_KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Start:
    """The things that a rank needs at its start besides open files.

    Attributes:
        arguments: What it is called with, before the numbers of its open files.
        environment: Its environment variables.
        folder: Its working directory.
        path: Where it looks for modules.
        modules: What the server loads before it forks.
    """

    arguments: tuple[int, ...]
    environment: dict[str, str]
    folder: str
    path: tuple[str, ...]
    modules: tuple[str, ...]


class ForkedRank:
    """A rank that a server forked; it is held as a subprocess.Popen is."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the rank runs."""
        return self._receive(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the rank has ended."""
        code = self._receive(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("rank", timeout or 0.0)
        self._channel.close()
        return code

    def kill(self) -> None:
        """Let the server kill the rank, if it runs."""
        if self._code is None:
            with suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)

    def _receive(self, timeout: float | None) -> int | None:
        if self._code is None:
            self._channel.settimeout(timeout)
            try:
                message = self._channel.recv(_CODE_BYTES)
            except (BlockingIOError, TimeoutError):
                return None
            except ConnectionError:
                message = b""
            # Without its server, which the system may have killed for memory, a rank is killed too.
            self._code = int.from_bytes(message, sys.byteorder, signed=True) if message else -signal.SIGKILL
        return self._code


class ForkServer:
    """A server as the driver sees it; it ends when the driver does."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "orca.engines.forkserver", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def start(self, start: Start, files: Iterable[int]) -> ForkedRank:
        """Fork a rank with these open files, and with the standard output and error of this process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryFile() as request:
            pickle.dump(start, request)
            request.flush()
            with suppress(BrokenPipeError):  # it is gone: the channel tells so
                socket.send_fds(self._socket, [b"+"], [theirs.fileno(), request.fileno(), 1, 2, *files])
        return ForkedRank(ours)

    def load(self, modules: Iterable[str]) -> None:
        """Let it load modules in the background."""
        with suppress(BrokenPipeError):
            self._socket.send(b" ".join(name.encode() for name in modules))

    def retire(self) -> None:
        """Let it end with the last of its ranks."""
        self._socket.close()

    def wait(self) -> None:
        """Return when it has ended."""
        self._process.wait()


_lock = threading.Lock()
_servers: dict[frozenset[tuple[str, str]], ForkServer] = {}  # by their environment; the one used last comes last
_retired: list[ForkServer] = []


def server_for(environment: dict[str, str]) -> ForkServer:
    """Return the server with this environment: libraries read some variables only when they are loaded."""
    key = frozenset(item for item in environment.items() if item[0] not in _TRANSIENT)
    with _lock:
        server = _servers.pop(key, None)
        if server is None or not server.alive:
            server = ForkServer(environment)
        _servers[key] = server
        _retire(list(_servers)[:-KEPT])
    return server


def _retire(keys: Iterable[frozenset[tuple[str, str]]]) -> None:
    for key in keys:
        _retired.append(_servers.pop(key))
        _retired[-1].retire()
    _retired[:] = [server for server in _retired if server.alive]


@atexit.register
def end_servers() -> None:
    """End all servers of this program."""
    with _lock:
        _retire(list(_servers))
        for server in _retired:
            server.wait()


class Server:
    """The server itself: one thread that waits for requests, for the ends of ranks and for the driver to drop them."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ, self._answer)
        self._ranks: dict[int, tuple[int, socket.socket]] = {}  # process -> its descriptor, its channel

    def serve(self) -> Start | None:
        """Fork ranks until the driver has gone, and return None; in each rank, return what it starts with."""
        while self._selector.get_map():
            for key, _ in self._selector.select():
                start = key.data()
                if start is not None:
                    return start  # type: ignore[no-any-return]
        return None

    def _answer(self) -> Start | None:
        message, files, *_ = socket.recv_fds(self._requests, 1 << 16, _MAX_FILES)
        if files:
            return self._fork(*files)
        if message:
            load(message.decode().split())
        else:
            self._selector.unregister(self._requests)
        return None

    def _fork(self, channel: int, request: int, *files: int) -> Start | None:
        with open(request, "rb") as stream:
            stream.seek(0)
            start: Start = pickle.load(stream)
        load(start.modules)
        process = os.fork()
        if not process:
            os.close(channel)
            self._forget()
            return _become(start, files)
        for file in files:
            os.close(file)
        end = os.pidfd_open(process)
        self._ranks[process] = end, socket.socket(fileno=channel)
        self._selector.register(end, selectors.EVENT_READ, partial(self._ended, process))
        self._selector.register(self._ranks[process][1], selectors.EVENT_READ, partial(self._dropped, process))
        return None

    def _ended(self, process: int) -> None:
        end, channel = self._ranks.pop(process)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        with suppress(OSError):  # nobody waits for it
            channel.send(code.to_bytes(_CODE_BYTES, sys.byteorder, signed=True))
        with suppress(KeyError):
            self._selector.unregister(channel)
        self._selector.unregister(end)
        os.close(end)
        channel.close()

    def _dropped(self, process: int) -> None:
        if process in self._ranks:  # it may have ended in the same moment
            self._selector.unregister(self._ranks[process][1])
            os.kill(process, signal.SIGKILL)

    def _forget(self) -> None:
        """Close, in a rank, the server's own files."""
        self._selector.close()
        self._requests.close()
        for end, channel in self._ranks.values():
            os.close(end)
            channel.close()


def _become(start: Start, files: tuple[int, ...]) -> Start:
    """Turn this copy of the server into a rank; return its start with the numbers of its files as arguments."""
    ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files[:2], 1):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(start.environment)
    os.chdir(start.folder)
    sys.path[:] = start.path
    draw_anew()
    return replace(start, arguments=(*start.arguments, *files[2:]))


def main(requests: int) -> None:
    """Serve; in a rank, run it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, meant for the driver
    preload()
    start = Server(socket.socket(fileno=requests)).serve()
    code = 0
    if start is not None:
        from orca.engines import local  # which imports this module

        try:
            local.main(*start.arguments)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            code = 1
    _exit(code)


def _exit(code: int) -> None:
    """End as the interpreter does, but leave the memory to the system: taking all modules apart takes a second."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]))
