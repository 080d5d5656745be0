"""WebHDFS: HDFS as a file system of fsspec, over HTTP. Owns which NameNode is asked, how long, and what answers mean.

fsspec's own WebHDFS takes every failure for "not there", waits for ever, and does not look at the answers of rename,
delete and read. What is different here:

- The NameNodes are asked all at once who is active, and again when the last word from them is some seconds old: what
  cannot be reached is said within PATIENCE.
- Content goes in one request, whatever its size, from and to files of this machine. A DataNode that does not answer is
  left out and another one asked for; a download goes on where it broke off.
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
from contextlib import nullcontext
from typing import IO, Any
from urllib.parse import quote, urlsplit

import requests
from fsspec.implementations.webhdfs import WebHDFS
from fsspec.spec import AbstractBufferedFile

from orca.errors import ArgumentError, OrcaError

PATIENCE = 8.0  # seconds until somebody must have said that a NameNode is active
CONNECT = 3.0  # seconds to reach a node that another node named
ANSWER = 60.0  # seconds without a byte of an answer, or of content
FRESH = 5.0  # seconds for which a NameNode that answered is taken to be there still
GIVEN_UP = 2.0  # seconds in which it is not asked again: cleaning up after a failure must not wait as long once more
ATTEMPTS = 3
CHUNK = 1 << 20
IN_MEMORY = 32 << 20  # bytes written to an open file before they go to this machine's disk
_ONCE = {"RENAME", "DELETE"}  # all else may be asked again when the answer was lost
_BROKEN = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)


class HdfsFileSystem(WebHDFS):
    """Be one HDFS.

    Args:
        root: How its paths begin: the scheme with a nameservice, or a NameNode's host and port.
        addresses: The web addresses of its NameNodes.
        user: The name to ask under; None with Kerberos.
        kerberos: Whether to show a Kerberos ticket.
        origin: Where the addresses come from, as a sentence for messages.
    """

    protocol = ("hdfs",)

    def __init__(
        self,
        root: str,
        addresses: tuple[str, ...],
        user: str | None = None,
        kerberos: bool = False,
        origin: str = "",
        **options: Any,
    ) -> None:
        if self._cached:
            return
        parts = urlsplit(addresses[0])
        super().__init__(
            parts.hostname, parts.port, kerberos=kerberos, user=user, use_https=parts.scheme == "https", **options
        )
        self.root, self.addresses, self.origin = root, tuple(addresses), origin
        self._active, self._heard = addresses[0], float("-inf")
        self._failed_at, self._failure = float("-inf"), ""

    # What is there

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return what is known of a file or folder."""
        place = self._strip_protocol(path)
        return _described(self._call("GETFILESTATUS", path=place).json()["FileStatus"], place)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """Return what a folder holds, by name; of a file, the file."""
        place = self._strip_protocol(path)
        found = [
            _described(status, f"{place.rstrip('/')}/{status['pathSuffix']}" if status["pathSuffix"] else place)
            for status in self._call("LISTSTATUS", path=place).json()["FileStatuses"]["FileStatus"]
        ]
        found.sort(key=lambda entry: str(entry["name"]))
        return found if detail else [entry["name"] for entry in found]

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Say whether there is something; a failure to ask is no answer."""
        return self._type_of(path) is not None

    def isdir(self, path: str) -> bool:
        """Say whether there is a folder."""
        return self._type_of(path) == "directory"

    def isfile(self, path: str) -> bool:
        """Say whether there is a file."""
        return self._type_of(path) == "file"

    # Changing it

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Make a folder."""
        place = self._strip_protocol(path)
        if self.exists(place):
            raise FileExistsError(errno.EEXIST, "is there already", self._told(place))
        if not create_parents and not self.isdir(self._parent(place)):
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", self._told(self._parent(place)))
        self._call("MKDIRS", method="put", path=place)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder and those it is in."""
        if exist_ok:
            self._call("MKDIRS", method="put", path=path)
        else:
            self.mkdir(path)

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Rename, at once. A file takes the place of a file; a folder that holds something is never replaced."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        answer = self._call("RENAME", method="put", path=source, destination=target, renameoptions="OVERWRITE")
        if answer.content and answer.json().get("boolean") is False:  # a gateway that knows no options
            raise OSError(f"{self._told(source)} was not renamed to {target}: one is missing, or the other is there.")

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove a file, a folder, or a list of them."""
        for place in [path] if isinstance(path, str) else path:
            answer = self._call("DELETE", method="delete", path=place, recursive="true" if recursive else "false")
            if answer.json().get("boolean") is False:
                raise FileNotFoundError(errno.ENOENT, "there is no such file", self._told(self._strip_protocol(place)))

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        self.rm(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        self.rm(path)

    # Content

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write a file."""
        self._upload(path, io.BytesIO(value), "x" if mode == "create" else "w")

    def put_file(self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **kwargs: Any) -> None:
        """Copy a file of this machine; of a folder, make the folder."""
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        with open(lpath, "rb") as source:
            size = os.fstat(source.fileno()).st_size
            self._upload(rpath, source, "x" if mode == "create" else "w")
        if callback is not None:
            callback.set_size(size)
            callback.absolute_update(size)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Return the bytes of a file, or those from start to end, which count from its end where they are negative."""
        content = io.BytesIO()  # hands its bytes over without a copy: they may be many
        for chunk in self._download(path, start, end):
            content.write(chunk)
        return content.getvalue()

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, outfile: Any = None, **kwargs: Any) -> None:
        """Copy a file to this machine; of a folder, make the folder."""
        sink = lpath if hasattr(lpath, "write") else outfile
        if sink is None and self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        if sink is None:
            os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        with open(lpath, "wb") if sink is None else nullcontext(sink) as target:
            for chunk in self._download(rpath, None, None, callback):
                target.write(chunk)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy a file on the cluster, through this machine."""
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        with _Upload(self, path2, "wb", autocommit=True) as target:
            for chunk in self._download(path1, None, None):
                target.write(chunk)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        if mode == "rb":
            return _Download(self, path, mode, block_size or self.blocksize, cache_options=cache_options, **kwargs)
        if mode not in ("wb", "ab", "xb"):
            raise ArgumentError(f"files of HDFS are opened to read, write or append (rb, wb, xb, ab); got {mode!r}.")
        return _Upload(self, path, mode, autocommit)

    def _upload(self, path: str, body: IO[bytes], mode: str) -> None:
        place = self._strip_protocol(path)
        if mode == "a" and self.exists(place):
            self._transfer("APPEND", "post", place, {}, body)
        else:
            self._transfer("CREATE", "put", place, {"overwrite": "false" if mode == "x" else "true"}, body)

    def _download(self, path: str, start: int | None, end: int | None, callback: Any = None) -> Iterator[bytes]:
        """Yield the bytes of a file; where the connection breaks, go on from there."""
        place = self._strip_protocol(path)
        info = self.info(place)
        if info["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, "is a folder, not a file", self._told(place))
        at, stop, _ = slice(start, end).indices(info["size"])
        if callback is not None:
            callback.set_size(max(0, stop - at))
        failures: list[str] = []
        while at < stop:
            before, why = at, "it ended too early"
            try:
                with self._transfer("OPEN", "get", place, {"offset": at, "length": stop - at}) as answer:
                    for chunk in answer.iter_content(CHUNK):
                        at += len(chunk)
                        if callback is not None:
                            callback.relative_update(len(chunk))
                        yield chunk
            except _BROKEN as error:
                why = _reason(error)
            if at < stop:
                failures = [*failures, why] if at == before else [why]
                if len(failures) == ATTEMPTS:
                    raise OrcaError(
                        f"{self._told(place)} cannot be read: its content broke off at byte {at} of {info['size']} "
                        f"{ATTEMPTS} times ({why}). See whether the DataNodes are healthy: hdfs fsck {place}"
                    )

    # Asking

    def _call(
        self,
        op: str,
        method: str = "get",
        path: str | None = None,
        data: Any = None,
        redirect: bool = True,
        **more: Any,
    ) -> requests.Response:
        """Ask the active NameNode; another one where it is gone or stands by by now."""
        place = self._strip_protocol(path) if path is not None else ""
        if time.monotonic() - self._heard > FRESH:
            self._find_active()
        for attempt in range(ATTEMPTS):
            try:
                answer = self._request(self._active, op, method, place, more, (CONNECT, ANSWER), redirect)
                self._check(answer, place)
            except _BROKEN as error:
                if attempt == ATTEMPTS - 1 or (op in _ONCE and not _never_sent(error)):
                    raise OrcaError(
                        f"{self._told(place)}: the NameNode {self._active} did not answer {op}: {_reason(error)}. It "
                        "may have done it: see what is there, and try again."
                    ) from error
            except _NotActive as error:
                if attempt == ATTEMPTS - 1:
                    raise OrcaError(
                        f"{self._told(place)}: the NameNode {self._active} does not do {op}: {error}. Try again later."
                    ) from error
            else:
                self._heard = time.monotonic()
                return answer
            self._find_active()
        raise AssertionError("unreachable")

    def _find_active(self) -> None:
        """Ask all NameNodes at once, and remember the first that is active."""
        if time.monotonic() - self._failed_at < GIVEN_UP:
            raise OrcaError(self._failure)
        answers: queue.SimpleQueue[tuple[str, BaseException | None]] = queue.SimpleQueue()
        for address in self.addresses:
            threading.Thread(target=self._probe, args=(address, answers), name="orca-hdfs", daemon=True).start()
        said: dict[str, BaseException] = {}
        until = time.monotonic() + PATIENCE
        while len(said) < len(self.addresses):
            try:
                address, error = answers.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if error is None:
                self._active, self._heard = address, time.monotonic()
                self.url = f"{address}/webhdfs/v1"
                return
            said[address] = error
        for error in said.values():
            if isinstance(error, OrcaError) and not isinstance(error, _NotActive):
                raise error
        silence = f"no answer within {PATIENCE:.0f} s"
        told = "; ".join(f"{at}: {_reason(said[at]) if at in said else silence}" for at in self.addresses)
        self._failed_at, self._failure = (
            time.monotonic(),
            (
                f"{self.root} cannot be reached over HTTP (WebHDFS): {told}. {self.origin} See that the NameNode runs, "
                "that dfs.webhdfs.enabled is not false, and that no firewall is between."
            ),
        )
        raise OrcaError(self._failure)

    def _probe(self, address: str, answers: queue.SimpleQueue[tuple[str, BaseException | None]]) -> None:
        try:
            self._check(self._request(address, "GETFILESTATUS", "get", "/", {}, (PATIENCE, PATIENCE), True), "/")
        except BaseException as error:
            answers.put((address, error))
        else:
            answers.put((address, None))
        finally:
            self.session.close()  # the thread ends, and its session with it

    def _transfer(
        self, op: str, method: str, place: str, parameters: dict[str, Any], body: IO[bytes] | None = None
    ) -> requests.Response:
        """Move content to or from a DataNode that the NameNode names; another one where that cannot be reached."""
        shunned: dict[str, BaseException] = {}
        for _ in range(ATTEMPTS):
            excluded = {"excludedatanodes": ",".join(shunned)} if shunned else {}
            try:
                answer = self._call(op, method, place, redirect=False, **parameters, **excluded)
            except OSError:
                if shunned:  # there is no other one
                    break
                raise
            location = answer.headers.get("Location")
            if location is None and body is None:
                return answer  # a gateway hands it over itself
            if location is None:
                raise OrcaError(f"{self._told(place)}: {self._active} named no node to write to. Is it a NameNode?")
            answer.close()
            if body is not None:
                body.seek(0)
            same = (
                urlsplit(location).netloc == urlsplit(self._active).netloc
            )  # a gateway, which knows us by our session
            try:
                answer = (self.session if same else self._plain_session).request(
                    method, self._apply_proxy(location), data=body, stream=body is None, timeout=(CONNECT, ANSWER),
                    headers={"Content-Type": "application/octet-stream"}, allow_redirects=False,
                )  # fmt: skip
            except _BROKEN as error:
                shunned[urlsplit(location).netloc.rsplit("@", 1)[-1]] = error
                if body is not None:
                    self._check_access(place)  # a DataNode that refuses does not wait for the rest
                if op == "APPEND" and not _never_sent(error):
                    break
                continue
            try:
                self._check(answer, place)
            except _NotActive as error:  # a DataNode that was sent to the former NameNode, or is no DataNode
                shunned[urlsplit(location).netloc.rsplit("@", 1)[-1]] = error
                self._find_active()
                continue
            return answer
        told = "; ".join(f"{node}: {_reason(error)}" for node, error in shunned.items())
        raise OrcaError(
            f"{self._told(place)}: the NameNode answers, but the DataNode it names cannot be reached or broke off "
            f"({told}). Its host name must resolve and its port be open on this machine; where they are not, use a "
            "gateway (HttpFS) with paths like webhdfs://gateway:14000/..."
        )

    def _check_access(self, place: str) -> None:
        """Raise where this user may not write a file."""
        while True:
            try:
                self._call("CHECKACCESS", path=place, fsaction="-w-")
            except FileNotFoundError:
                if place == "/":
                    return
                place = self._parent(place) or "/"
            except OSError:
                return
            else:
                return

    def _request(
        self,
        address: str,
        op: str,
        method: str,
        place: str,
        parameters: dict[str, Any],
        timeout: tuple[float, float],
        redirect: bool,
    ) -> requests.Response:
        return self.session.request(
            method.upper(),
            f"{address}/webhdfs/v1{quote(place, safe='/')}",
            params={**parameters, **self.pars, "op": op.upper()},
            timeout=timeout,
            allow_redirects=redirect,
            stream=op == "OPEN",  # a gateway answers with the content itself
        )

    def _check(self, answer: requests.Response, place: str) -> None:
        """Raise what an answer means, if it is no success."""
        if answer.status_code < 400:
            return
        try:
            remote = answer.json()["RemoteException"]
            kind, said = str(remote["exception"]), str(remote["message"]).split("\n", 1)[0]
        except (ValueError, KeyError, TypeError):
            kind, said = "", ""
        told, node = self._told(place), urlsplit(answer.url).netloc
        if kind == "StandbyException":
            raise _NotActive("it stands by")
        if "is not a directory" in said or kind == "ParentNotDirectoryException":
            raise NotADirectoryError(errno.ENOTDIR, said, told)
        if kind in ("AccessControlException", "SecurityException") or answer.status_code == 401:
            who = f"user {self.user}" if self.user else "the user of the Kerberos ticket"
            remedy = "Ask its owner for it, choose another folder, or set HADOOP_USER_NAME to who may."
            if answer.status_code == 401:
                remedy = "Get a ticket with kinit."
                if not self.kerb:
                    remedy = "It wants Kerberos: let HADOOP_CONF_DIR name settings that say so, and run kinit."
            raise OrcaError(f"{told}: {who} has no permission at {node}: {said or answer.reason}. {remedy}")
        if kind == "FileNotFoundException":
            raise FileNotFoundError(errno.ENOENT, said, told)
        if kind in ("FileAlreadyExistsException", "AlreadyBeingCreatedException"):
            raise FileExistsError(errno.EEXIST, said, told)
        if kind == "PathIsNotEmptyDirectoryException" or "is not empty" in said:
            raise OSError(errno.ENOTEMPTY, said, told)
        if kind in ("IllegalArgumentException", "UnsupportedOperationException", "InvalidPathException"):
            raise ArgumentError(f"{told}: HDFS refuses this path or request: {said}. Check the path.")
        if kind in ("SafeModeException", "RetriableException"):
            raise OrcaError(f"{told}: HDFS takes no changes now: {said} Wait until the NameNode has left safe mode.")
        if not kind:
            raise _NotActive(f"it answers HTTP {answer.status_code} {answer.reason}, and not as WebHDFS does")
        raise OSError(f"{told}: {node} says {kind}: {said}")

    def _type_of(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _told(self, place: str) -> str:
        return f"{self.root}{place}"

    # Connections: one set a thread, as sessions of requests are not made for several

    def _connect(self) -> None:
        self._here = threading.local()

    @property
    def session(self) -> requests.Session:
        """The connection of this thread to NameNodes, with its authentication."""
        if not hasattr(self._here, "session"):
            self._here.session = _session()
            if self.kerb:
                from requests_kerberos import OPTIONAL, HTTPKerberosAuth

                self._here.session.auth = HTTPKerberosAuth(mutual_authentication=OPTIONAL, **self.kerb_kwargs)
        return self._here.session

    @property
    def _plain_session(self) -> requests.Session:
        """The connection of this thread to DataNodes, whose addresses carry what authentication they need."""
        if not hasattr(self._here, "plain"):
            self._here.plain = _session()
        return self._here.plain

    # Paths

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return "/" + re.sub(r"^[a-z]+:(//[^/]*)?(?=/|$)", "", os.fspath(path)).strip("/")

    @classmethod
    def _parent(cls, path: str) -> str:
        return cls._strip_protocol(path).rsplit("/", 1)[0] or "/"

    def unstrip_protocol(self, name: str) -> str:
        """Return the whole path of a place."""
        return self._told(self._strip_protocol(name))


class _NotActive(OrcaError):
    """Say that this is not the active NameNode: it stands by, or is something else."""


class _Download(AbstractBufferedFile):
    """Read a file as it is needed."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.cat_file(self.path, start, end))


class _Upload(io.BufferedIOBase):
    """Collect what is written, and send it in one go when it is closed; nothing of it when its `with` failed."""

    autocommit = False  # until there is something to send: Python closes what could not be made

    def __init__(self, fs: HdfsFileSystem, path: str, mode: str, autocommit: bool) -> None:
        self.fs, self.path, self.mode = fs, path, mode
        self._before = fs.info(path)["size"] if mode == "ab" and fs.exists(path) else 0
        self._content = tempfile.SpooledTemporaryFile(IN_MEMORY, prefix="orca-")  # noqa: SIM115
        self.autocommit = autocommit

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._content.write(data)

    def tell(self) -> int:
        return self._before + self._content.tell()

    def close(self) -> None:
        if not self.closed:
            try:
                if self.autocommit:
                    self.commit()
            finally:
                super().close()

    def commit(self) -> None:
        """Send it."""
        with self._content:
            self.fs._upload(self.path, self._content, self.mode[:1])

    def discard(self) -> None:
        """Send nothing."""
        self._content.close()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is not None:
            self.autocommit = False
            self.discard()
        self.close()


def _session() -> requests.Session:
    session = requests.Session()
    # As Hadoop's own client does it: no proxy of the environment, no password from .netrc.
    session.trust_env = False
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    return session


def _described(status: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a status of HDFS as fsspec writes it."""
    return {
        **status,
        "name": place,
        "type": status["type"].lower(),
        "size": status["length"],
        "mtime": status["modificationTime"] / 1000,
    }


def _never_sent(error: BaseException) -> bool:
    """Say whether a request failed before the other side saw it."""
    return isinstance(error, requests.exceptions.ConnectTimeout) or "NewConnectionError" in repr(error)


def _reason(error: BaseException) -> str:
    """Return what went wrong with a connection in few words, without the address asked, which may carry a token."""
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
        if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, requests.RequestException):
            return str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    words = re.search(r"Connection refused|Name or service not known|No route to host|reset by peer", str(error))
    return words[0] if words else type(error).__name__
