"""ForkServer: a process that has loaded a framework and forks ranks. Owns starting, watching and ending such ranks.

Importing a framework takes seconds, and every rank would pay for it in every call. A server imports once and is kept
until the program ends; a rank begins in milliseconds as a copy of it. It is a process of its own because a fork of the
user's would carry over threads, a JVM and CUDA; it runs nothing but imports, so it has none of these.

Each rank has a channel between driver and server. The server answers on it with the rank's exit code; when the
driver closes it, or dies, the server kills the rank.

Not multiprocessing's fork server: it imports the program's `__main__` again, has one environment for all children,
and its children outlive a killed driver.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import os
import pickle
import re
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from orca.core.loading import NEEDED, draw_anew, load

AVAILABLE = sys.platform == "linux"  # elsewhere, system libraries do not survive a fork
KEPT = 2  # servers at a time: each holds its modules in memory
# No library reads these when it is loaded: shells, tools, Ray and Spark change them, and a rank has the driver's path.
_TRANSIENT = re.compile(
    "PYTEST_CURRENT_TEST|PWD|OLDPWD|COLUMNS|LINES|_|PYTHONPATH|PYTHONBREAKPOINT|JAVA_HOME|CUBLAS_WORKSPACE_CONFIG"
    "|(RAY|SPARK|PYSPARK)_.*"
)
_END = struct.Struct("=qq")  # the exit code of a rank, and the most memory it had
_END_WITHIN = 1.0  # seconds until a server that closed its channels has ended
_MAX_FILES = 16
_GLANCE = 0.01  # seconds between two looks at running ranks; many Pythons have no os.pidfd_open, nor do older kernels
_KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Start:
    """The things that a rank needs at its start besides open files.

    Attributes:
        arguments: Its arguments, before the numbers of its open files.
        environment: Its environment variables.
        path: Its sys.path.
        modules: Those that the server loads before it forks.
    """

    arguments: tuple[int, ...]
    environment: dict[str, str]
    path: tuple[str, ...]
    modules: tuple[str, ...]


class ForkedRank:
    """A rank that a server forked; it is held as a subprocess.Popen is."""

    def __init__(self, channel: socket.socket, server: subprocess.Popen[bytes]) -> None:
        self._channel, self._server = channel, server
        self._code: int | None = None
        self.peak_memory = 0  # bytes, once it has ended

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
                message = self._channel.recv(_END.size)
            except (BlockingIOError, TimeoutError):
                return None
            except ConnectionError:
                message = b""
            if message:
                self._code, self.peak_memory = _END.unpack(message)
            else:  # without its server a rank is killed too
                self._code = self._end_of_server()
        return self._code

    def _end_of_server(self) -> int:
        """Return the signal that ended the server: a library may crash where it is loaded, or the system kill it."""
        with suppress(subprocess.TimeoutExpired):
            if (code := self._server.wait(_END_WITHIN)) < 0:
                return code
        return -signal.SIGKILL


class ForkServer:
    """A server as the driver sees it; it ends when the driver does."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # -m or -c alone would look for modules in the working directory first, as the driver may not.
            code = (
                "import sys; sys.path[:] = filter(None, sys.path); from orca.engines.forkserver import main; main({})"
            )
            command = [sys.executable, "-c", code.format(theirs.fileno())]
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )

    @property
    def alive(self) -> bool:
        """Say whether it still runs."""
        return self._process.poll() is None

    def start(self, start: Start, files: Iterable[int]) -> ForkedRank:
        """Fork a rank with these open files, and with the working directory and output of this process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryFile() as request, open(os.devnull, "wb") as null:
            pickle.dump(start, request)
            request.flush()
            output = [number if _is_inherited(number) else null.fileno() for number in (1, 2)]
            folder = os.open(os.curdir, os.O_PATH)  # its name may be gone
            try:
                with suppress(ConnectionError):  # it is gone: the channel tells so
                    socket.send_fds(self._socket, [b"+"], [theirs.fileno(), request.fileno(), folder, *output, *files])
            finally:
                os.close(folder)
        return ForkedRank(ours, self._process)

    def retire(self) -> None:
        """Let it end with the last of its ranks."""
        self._socket.close()

    def end(self) -> None:
        """End it now, and its ranks with it."""
        self._process.kill()
        self._process.wait()


def _is_inherited(number: int) -> bool:
    """Say whether a new process gets this descriptor; where standard output is closed, a file may have its number."""
    with suppress(OSError):
        return os.get_inheritable(number)
    return False


_lock = threading.Lock()
_servers: dict[frozenset[tuple[str, str]], ForkServer] = {}  # by their environment; the one used last comes last
_old_servers: list[ForkServer] = []


def start_rank(start: Start, files: Iterable[int]) -> ForkedRank:
    """Start a rank in the server with its environment: libraries read some variables only when they are loaded."""
    key = frozenset(item for item in start.environment.items() if not _TRANSIENT.fullmatch(item[0]))
    with _lock:  # until the server knows of the rank: another thread may retire it
        server = _servers.pop(key, None)
        if server is None or not server.alive:
            server = ForkServer(start.environment)
        _servers[key] = server
        _retire(list(_servers)[:-KEPT])
        return server.start(start, files)


def _retire(keys: Iterable[frozenset[tuple[str, str]]]) -> None:
    for key in keys:
        _old_servers.append(_servers.pop(key))
        _old_servers[-1].retire()
    _old_servers[:] = [server for server in _old_servers if server.alive]


def servers() -> list[ForkServer]:
    """Return the servers that are kept for the next call."""
    with _lock:
        return list(_servers.values())


@atexit.register
def end_servers(survivors: Collection[ForkServer] = ()) -> None:
    """End the servers of this program; a daemon thread may still wait for ranks of theirs."""
    with _lock:
        _retire([key for key, server in _servers.items() if server not in survivors])
        for server in _old_servers:
            server.end()


def _leave_servers() -> None:
    """Leave them, in a fork of the driver, to the driver: with a copy of their sockets they would outlive it."""
    global _lock
    _lock = threading.Lock()
    _retire(list(_servers))


if AVAILABLE:
    os.register_at_fork(after_in_child=_leave_servers)


class Server:
    """The server itself: one thread that waits for requests, for the ends of ranks and for the driver to drop them."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ, self._answer)
        self._ranks: dict[int, socket.socket] = {}  # process -> its channel

    def serve(self) -> Start | None:
        """Fork ranks until the driver has gone, and return None; in each rank, return its Start."""
        driver = os.getppid()
        # A process that the driver forked may hold its sockets open.
        while (self._selector.get_map() or self._ranks) and os.getppid() == driver:
            for key, _ in self._selector.select(_GLANCE if self._ranks else None):
                start = key.data()
                if start is not None:
                    return start  # type: ignore[no-any-return]
            self._reap()
        return None

    def _answer(self) -> Start | None:
        _, files, *_ = socket.recv_fds(self._requests, 1, _MAX_FILES)
        if files:
            return self._fork(*files)
        self._selector.unregister(self._requests)  # the driver has closed it
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
            return _become(start, *files)
        for file in files:
            os.close(file)
        self._ranks[process] = socket.socket(fileno=channel)
        self._selector.register(self._ranks[process], selectors.EVENT_READ, partial(self._dropped, process))
        return None

    def _reap(self) -> None:
        """Tell the driver of the ranks that have ended."""
        for process in list(self._ranks):
            number, status, usage = os.wait4(process, os.WNOHANG)
            if number:
                code = os.waitstatus_to_exitcode(status)
                with self._ranks.pop(process) as channel, suppress(OSError):  # nobody may wait for it
                    with suppress(KeyError):
                        self._selector.unregister(channel)
                    channel.send(_END.pack(code, usage.ru_maxrss << 10))

    def _dropped(self, process: int) -> None:
        self._selector.unregister(self._ranks[process])
        os.kill(process, signal.SIGKILL)

    def _forget(self) -> None:
        """Close, in a rank, the server's own files."""
        self._selector.close()
        self._requests.close()
        for channel in self._ranks.values():
            channel.close()


def _become(start: Start, folder: int, *files: int) -> Start:
    """Turn this copy of the server into a rank; return its start with the numbers of its files as arguments."""
    ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, signal.SIGKILL)
    for number, file in enumerate(files[:2], 1):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(start.environment)
    os.fchdir(folder)
    os.close(folder)
    sys.path[:] = start.path
    importlib.invalidate_caches()  # of folders that were not there when the server looked
    draw_anew()
    return replace(start, arguments=(*start.arguments, *files[2:]))


def main(requests: int) -> None:
    """Serve; in a rank, run it."""
    # Of a terminal, or of all processes of a container: the driver ends in order, and this process with it.
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    load(NEEDED)
    start = Server(socket.socket(fileno=requests)).serve()
    if start is None:
        os._exit(0)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    from orca.engines import local  # which imports this module

    code = 0
    try:
        local.main(*start.arguments)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    _exit(code)


def _exit(code: int) -> None:
    """End as the interpreter does, but leave the memory to the system: taking all modules apart takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]  # joins threads; pools end theirs first
    atexit._run_exitfuncs()
    for thing in gc.get_objects():
        if issubclass(type(thing), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with suppress(Exception):
                thing.flush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)
