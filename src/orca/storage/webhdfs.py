"""WebHDFS: HDFS as a file system of fsspec, over HTTP. Owns the choice of NameNode, timeouts, and errors.

fsspec's own WebHDFS takes every failure for "not there", waits forever, and ignores the answers of rename, delete and
read. The differences:

- The NameNodes are asked all at once which one is active, and again when its last answer is some seconds old: a
  cluster that cannot be reached is reported within PATIENCE.
- Content goes in one request, whatever its size, from and to files of this machine. A DataNode that does not answer is
  excluded and another one asked for; a download continues where it broke off.
- `mv` is HDFS's atomic rename: a file takes the place of a file, never "into" a folder.
- "Not there" is FileNotFoundError and nothing else is.

Addresses of DataNodes carry a delegation token under Kerberos: only their host and port appear in messages.
"""

from __future__ import annotations

import errno
import io
import os
import queue
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any
from urllib.parse import quote, urlsplit

import requests
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.implementations.webhdfs import WebHDFS
from fsspec.spec import AbstractBufferedFile

from orca.errors import ArgumentError, OrcaError
from orca.storage.hdfs import HdfsCluster

PATIENCE = 8.0  # seconds until some NameNode must have answered that it is active
CONNECT = 3.0  # seconds to reach a node that another node named
ANSWER = 60.0  # seconds without a byte of an answer, or of content
FRESH = 5.0  # seconds for which a NameNode that answered counts as active
GIVEN_UP = 2.0  # seconds in which a lost one is not asked again: the cleanup after a failure must not wait once more
ATTEMPTS = 3
CHUNK = 1 << 20
_ONCE = {"RENAME", "DELETE"}  # all else may be asked again when the answer was lost
_BROKEN = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
_ERRNO = {
    "FileNotFoundException": errno.ENOENT,
    "FileAlreadyExistsException": errno.EEXIST,
    "AlreadyBeingCreatedException": errno.EEXIST,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
}


class HdfsFileSystem(WebHDFS):
    """One HDFS, as a file system of fsspec.

    Args:
        cluster: How it is named and reached.
    """

    protocol = ("hdfs",)
    root_marker = "/"

    def __init__(self, cluster: HdfsCluster, **options: Any) -> None:
        if self._cached:
            return
        self.cluster = cluster
        self._active, self._last_answer = cluster.addresses[0], float("-inf")
        self._failure, self._failed_at = "", float("-inf")
        super().__init__(urlsplit(self._active).netloc, kerberos=cluster.kerberos, user=cluster.user, **options)

    # Listing

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return the properties of a file or folder."""
        return dict(super().info(self._strip_protocol(path)))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """Return the entries of a folder, by name; of a file, the file."""
        entries = super().ls(self._strip_protocol(path), detail=True)
        for entry in entries:
            entry["name"] = entry["name"].rstrip("/")  # fsspec lists a file as its own contents
        return entries if detail else [entry["name"] for entry in entries]

    @staticmethod
    def _process_info(info: dict[str, Any]) -> dict[str, Any]:
        info["mtime"] = info["modificationTime"] / 1000
        return dict(WebHDFS._process_info(info))

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Say whether there is something; a failure to ask is no answer."""
        return self._type_of(path) is not None

    def isdir(self, path: str) -> bool:
        """Say whether there is a folder."""
        return self._type_of(path) == "directory"

    def isfile(self, path: str) -> bool:
        """Say whether there is a file."""
        return self._type_of(path) == "file"

    def _type_of(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    # Changing it

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Rename, at once. A file takes the place of a file; a folder that holds something is never replaced."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        answer = self._call("RENAME", method="put", path=source, destination=target, renameoptions="OVERWRITE")
        if answer.content and answer.json().get("boolean") is False:  # a gateway that knows no options
            raise OSError(
                f"{self.unstrip_protocol(source)} was not renamed to {target}: one is missing, or the other is there."
            )

    def rm(self, path: Any, recursive: bool = False, **kwargs: Any) -> None:
        """Remove a file, a folder, or a list of them."""
        for place in [path] if isinstance(path, str) else path:
            answer = self._call("DELETE", method="delete", path=place, recursive="true" if recursive else "false")
            if answer.json().get("boolean") is False:
                raise FileNotFoundError(errno.ENOENT, "there is no such file", self.unstrip_protocol(place))

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        self.rm(path)

    # Content

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write a file."""
        self._upload(path, io.BytesIO(value), "x" if mode == "create" else "w")

    def put_file(
        self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        """Copy a file of this machine; of a folder, make the folder."""
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        with open(lpath, "rb") as source:
            callback.set_size(os.fstat(source.fileno()).st_size)
            self._upload(rpath, source, "x" if mode == "create" else "w")
            callback.absolute_update(callback.size)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Return the bytes of a file, or those from start to end, which count from its end where they are negative."""
        content = io.BytesIO()  # hands its bytes over without a copy: they may be many
        for chunk in self._download(path, start, end):
            content.write(chunk)
        return content.getvalue()

    def get_file(self, rpath: str, lpath: str, callback: Any = DEFAULT_CALLBACK) -> None:
        """Copy a file to this machine; of a folder, make the folder."""
        if self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        with open(lpath, "wb") as target:
            for chunk in self._download(rpath, callback=callback):
                target.write(chunk)

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, autocommit: bool = True, **kwargs: Any
    ) -> Any:
        if mode == "rb":
            return _Download(self, path, mode, block_size or self.blocksize, **kwargs)
        if mode not in ("wb", "ab", "xb") or not autocommit:
            request = repr(mode) if autocommit else "a transaction"
            raise ArgumentError(
                f"files of HDFS are opened to read, write or append (rb, wb, xb, ab); got {request}.",
                code="bad-file-mode",
            )
        return _Upload(self, path, mode[0], self.info(path)["size"] if mode == "ab" and self.exists(path) else 0)

    def _upload(self, path: str, body: IO[bytes], mode: str) -> None:
        if mode == "a" and self.exists(path):
            self._transfer("APPEND", "post", path, body)
        else:
            self._transfer("CREATE", "put", path, body, overwrite="false" if mode == "x" else "true")

    def _download(
        self, path: str, start: int | None = None, end: int | None = None, callback: Any = DEFAULT_CALLBACK
    ) -> Iterator[bytes]:
        """Yield the bytes of a file; where the connection breaks, continue from there."""
        info = self.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, "is a folder, not a file", self.unstrip_protocol(path))
        offset, stop, _ = slice(start, end).indices(info["size"])
        callback.set_size(max(0, stop - offset))
        failures = 0  # since the last byte
        while offset < stop:
            reason, failures = "it ended too early", failures + 1
            try:
                with self._transfer("OPEN", "get", path, offset=offset, length=stop - offset) as answer:
                    for chunk in answer.iter_content(CHUNK):
                        offset, failures = offset + len(chunk), 0
                        callback.relative_update(len(chunk))
                        yield chunk
            except _BROKEN as error:
                reason = _reason(error)
            if offset < stop and failures == ATTEMPTS:
                raise OrcaError(
                    f"{self.unstrip_protocol(path)} cannot be read: its content broke off at byte {offset} of "
                    f"{info['size']} {ATTEMPTS} times ({reason}). See whether the DataNodes are healthy: hdfs fsck "
                    f"{info['name']}",
                    code="hdfs-unreadable",
                )

    # Asking

    def _call(
        self, op: str, method: str = "get", path: str = "/", data: Any = None, redirect: bool = True, **more: Any
    ) -> requests.Response:
        """Ask the active NameNode; another one where it is gone or on standby by now."""
        if time.monotonic() - self._last_answer > FRESH:
            self._find_active()
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                answer = self._request(self._active, op, method, path, (CONNECT, ANSWER), redirect, more)
            except (*_BROKEN, _NotActive) as error:
                is_lost = not isinstance(error, _NotActive)
                if not attempts_left or (is_lost and op in _ONCE and not _never_sent(error)):
                    remedy = "It may have done it: see what is there, and try again" if is_lost else "Try again later"
                    raise OrcaError(
                        f"{self.unstrip_protocol(path)}: the NameNode {self._active} did not answer {op}: "
                        f"{_reason(error)}. {remedy}.",
                        code="hdfs-no-answer",
                    ) from error
                self._find_active()
            else:
                self._last_answer = time.monotonic()
                return answer
        raise AssertionError("unreachable")

    def _find_active(self) -> None:
        """Ask all NameNodes at once, and remember the first that is active."""
        if time.monotonic() - self._failed_at < GIVEN_UP:
            raise OrcaError(self._failure, code="hdfs-no-answer")
        answers: queue.SimpleQueue[tuple[str, BaseException | None]] = queue.SimpleQueue()
        for address in self.cluster.addresses:
            threading.Thread(target=self._probe, args=(address, answers), name="orca-hdfs", daemon=True).start()
        silence: BaseException = _NotActive(f"no answer within {PATIENCE:.0f} s")
        errors, deadline = dict.fromkeys(self.cluster.addresses, silence), time.monotonic() + PATIENCE
        with suppress(queue.Empty):
            for _ in errors:
                address, error = answers.get(timeout=max(0.0, deadline - time.monotonic()))
                if error is None:
                    self._active, self._last_answer = address, time.monotonic()
                    return
                errors[address] = error
        for error in errors.values():
            if isinstance(error, OrcaError) and not isinstance(error, _NotActive):
                raise error
        reasons = "; ".join(f"{address}: {_reason(error)}" for address, error in errors.items())
        self._failed_at = time.monotonic()
        self._failure = (
            f"{self.cluster.root} cannot be reached over HTTP (WebHDFS): {reasons}. {self.cluster.origin} See that the "
            "NameNode runs, that dfs.webhdfs.enabled is not false, and that no firewall is between."
        )
        raise OrcaError(self._failure, code="hdfs-no-answer")

    def _probe(self, address: str, answers: queue.SimpleQueue[tuple[str, BaseException | None]]) -> None:
        try:
            self._request(address, "GETFILESTATUS", "get", "/", (PATIENCE, PATIENCE), True, {})
        except BaseException as error:
            answers.put((address, error))
        else:
            answers.put((address, None))
        finally:
            self.session.close()  # the thread ends, and its session with it

    def _transfer(
        self, op: str, method: str, path: str, body: IO[bytes] | None = None, **parameters: Any
    ) -> requests.Response:
        """Move content to or from a DataNode that the NameNode names; another one where that cannot be reached."""
        failures: dict[str, BaseException] = {}
        for _ in range(ATTEMPTS):
            exclusion = {"excludedatanodes": ",".join(failures)} if failures else {}
            try:
                answer = self._call(op, method, path, redirect=False, **parameters, **exclusion)
            except OSError:
                if failures:  # there is no other one
                    break
                raise
            location = answer.headers.get("Location")
            if location is None and body is None:
                return answer  # a gateway sends the content itself
            if location is None:
                raise OrcaError(
                    f"{self.unstrip_protocol(path)}: {self._active} named no node to write to. Is it a NameNode?",
                    code="hdfs-no-answer",
                )
            answer.close()
            node = urlsplit(location).netloc.rsplit("@", 1)[-1]
            try:
                return self._check(self._exchange(node, method, location, body), path)
            except _NotActive as error:  # a DataNode that was sent to the former NameNode, or is no DataNode
                failures[node] = error
                self._find_active()
            except _BROKEN as error:
                failures[node] = error
                if body is not None:
                    self._check_access(path)
                if op == "APPEND" and not _never_sent(error):
                    break
        raise self._unreachable(path, failures)

    def _unreachable(self, path: str, failures: dict[str, BaseException]) -> OrcaError:
        reasons = "; ".join(f"{node}: {_reason(error)}" for node, error in failures.items())
        return OrcaError(
            f"{self.unstrip_protocol(path)}: the NameNode answers, but the DataNode it names cannot be reached or "
            f"broke off ({reasons}). Its host name must resolve and its port be open on this machine; where they are "
            "not, use a gateway (HttpFS) with paths like webhdfs://gateway:14000/...",
            code="hdfs-data-node-unreachable",
        )

    def _exchange(self, node: str, method: str, location: str, body: IO[bytes] | None) -> requests.Response:
        """Send content to a DataNode, or ask it for some."""
        if body is not None:
            body.seek(0)
        # A gateway knows us by our session; the address of a DataNode carries the authentication that it needs.
        session = self.session if node == urlsplit(self._active).netloc else self._sessions.data
        return session.request(
            method, location, data=body, stream=body is None, timeout=(CONNECT, ANSWER), allow_redirects=False,
            headers={"Content-Type": "application/octet-stream"},
        )  # fmt: skip

    def _check_access(self, path: str) -> None:
        """Raise where this user may not write a file: a DataNode that refuses it closes, and does not say why."""
        with suppress(OSError):
            while not self.exists(path):
                path = self._parent(path)
            self._call("CHECKACCESS", path=path, fsaction="-w-")

    def _request(
        self, address: str, op: str, method: str, path: str, timeout: Any, redirect: bool, parameters: dict[str, Any]
    ) -> requests.Response:
        answer = self.session.request(
            method.upper(),
            f"{address}/webhdfs/v1{quote(self._strip_protocol(path), safe='/')}",
            params={**parameters, **self.pars, "op": op.upper()},
            timeout=timeout,
            allow_redirects=redirect,
            stream=op == "OPEN",  # a gateway answers with the content itself
        )
        return self._check(answer, path)

    def _check(self, answer: requests.Response, path: str) -> requests.Response:
        """Return an answer that is a success; raise the meaning of any other."""
        if answer.status_code < 400:
            return answer
        try:
            remote = answer.json()["RemoteException"]
            kind, message = str(remote["exception"]), str(remote["message"]).split("\n", 1)[0]
        except (ValueError, KeyError, TypeError):
            kind, message = "", ""
        where, node = self.unstrip_protocol(path), urlsplit(answer.url).netloc
        if kind == "StandbyException":
            raise _NotActive("it stands by")
        if "is not a directory" in message:  # HDFS calls it an AccessControlException
            raise NotADirectoryError(errno.ENOTDIR, message, where)
        if kind in ("AccessControlException", "SecurityException") or answer.status_code == 401:
            user = f"user {self.user}" if self.user else "the user of the Kerberos ticket"
            remedy = self._remedy(answer.status_code)
            raise OrcaError(
                f"{where}: {user} has no permission at {node}: {message or answer.reason}. {remedy}",
                code="hdfs-no-permission",
            )
        if kind in _ERRNO or "is not empty" in message:
            raise OSError(_ERRNO.get(kind, errno.ENOTEMPTY), message, where)  # Python finds the class by the number
        if kind in ("IllegalArgumentException", "UnsupportedOperationException", "InvalidPathException"):
            raise ArgumentError(
                f"{where}: HDFS refuses this path or request: {message}. Check the path.", code="bad-hdfs-path"
            )
        if kind in ("SafeModeException", "RetriableException"):
            raise OrcaError(
                f"{where}: HDFS takes no changes now: {message} Wait until the NameNode has left safe mode.",
                code="hdfs-safe-mode",
            )
        if not kind:
            raise _NotActive(f"it answers HTTP {answer.status_code} {answer.reason}, and not as WebHDFS does")
        raise OSError(f"{where}: {node} says {kind}: {message}")

    def _remedy(self, status: int) -> str:
        if status != 401:
            return "Ask its owner for it, choose another folder, or set HADOOP_USER_NAME to who may."
        if self.kerb:
            return "Get a ticket with kinit."
        return "It wants Kerberos: let HADOOP_CONF_DIR name settings that say so, and run kinit."

    def _connect(self) -> None:
        self._sessions = _Sessions(self.kerb)

    @property
    def session(self) -> requests.Session:
        """The connection of this thread to NameNodes, with its authentication."""
        return self._sessions.names

    # Paths

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return "/" + re.sub(r"^[a-z]+:(//[^/]*)?(?=/|$)", "", os.fspath(path)).strip("/")

    def unstrip_protocol(self, name: str) -> str:
        """Return the whole path of a place."""
        return f"{self.cluster.root}{self._strip_protocol(name)}"


class _NotActive(OrcaError):
    """The answer of a server that is not the active NameNode: it stands by, or is something else."""


class _Sessions(threading.local):
    """A thread's connections to NameNodes and to DataNodes: sessions of requests are not made for several threads."""

    def __init__(self, kerberos: bool) -> None:
        self.names, self.data = requests.Session(), requests.Session()
        for session in (self.names, self.data):
            # As Hadoop's own client does it: no proxy of the environment, no password from .netrc.
            session.trust_env = False
            session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
        if kerberos:
            from requests_kerberos import OPTIONAL, HTTPKerberosAuth

            self.names.auth = HTTPKerberosAuth(mutual_authentication=OPTIONAL)


class _Download(AbstractBufferedFile):
    """A file that is read as it is needed."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.cat_file(self.path, start, end))


class _Upload(io.BufferedRandom):
    """A file that is written to this machine's disk, and sent in one go when it is closed, unless its `with` failed."""

    def __init__(self, fs: HdfsFileSystem, path: str, mode: str, size: int) -> None:
        super().__init__(tempfile.TemporaryFile(prefix="orca-", buffering=0))  # noqa: SIM115
        self.destination, self.size, self.failed = (fs, path, mode), size, False

    def tell(self) -> int:
        return self.size + super().tell()  # after the content that was there when it was opened to append

    def close(self) -> None:
        if self.closed:
            return
        try:
            if not self.failed:
                self.flush()
                fs, path, mode = self.destination
                fs._upload(path, self.raw, mode)  # type: ignore[arg-type]
        finally:
            super().close()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.failed = kind is not None
        self.close()


def _never_sent(error: BaseException) -> bool:
    """Say whether a request failed before the other side saw it."""
    return isinstance(error, requests.exceptions.ConnectTimeout) or "NewConnectionError" in repr(error)


def _reason(error: BaseException) -> str:
    """Return why a connection failed, in few words and without the address asked, which may carry a token."""
    if isinstance(error, OrcaError):
        return str(error)
    if isinstance(error, requests.exceptions.SSLError):
        if "CERTIFICATE_VERIFY_FAILED" not in str(error):
            return "it speaks no TLS that is known here"
        return "its certificate is not trusted here: let REQUESTS_CA_BUNDLE name the file of its authority"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
