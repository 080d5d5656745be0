"""HDFS over HTTP: on a real one where `make test-yarn` runs; how it fails on small servers that fail so."""

from __future__ import annotations

import json
import os
import pickle
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("requests")

from orca.errors import OrcaError
from orca.storage import files
from orca.storage.checkpoints import newest_run, path_of, versions
from orca.storage.files import filesystem
from orca.storage.hdfs import HdfsCluster
from orca.storage.webhdfs import HdfsFileSystem
from raised import raises

Answer = tuple[int, dict[str, str], bytes]
FOLDER = {"type": "DIRECTORY", "length": 0, "modificationTime": 0, "pathSuffix": ""}


def refusal(kind: str, message: str = "no", status: int = 403) -> Answer:
    return status, {}, json.dumps({"RemoteException": {"exception": kind, "message": message}}).encode()


def status_of(size: int | None = None) -> Answer:
    status = FOLDER if size is None else {**FOLDER, "type": "FILE", "length": size}
    return 200, {}, json.dumps({"FileStatus": status}).encode()


@contextmanager
def serving(answer: Callable[[str, str, dict[str, str]], Answer]) -> Iterator[str]:
    """Give the address of a server that answers (method and operation, path, parameters) so."""

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, body = answer(query.get("op", ""), parts.path.removeprefix("/webhdfs/v1"), query)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = handle_one

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def connect(*addresses: str) -> HdfsFileSystem:
    return HdfsFileSystem(HdfsCluster(f"hdfs://test-{uuid.uuid4().hex}", addresses, "ann", False, "From the test."))


@contextmanager
def silent() -> Iterator[str]:
    """Give an address where connections are taken and nothing is said."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        yield f"http://127.0.0.1:{door.getsockname()[1]}"


def closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return f"http://127.0.0.1:{door.getsockname()[1]}"


def test_the_active_namenode_is_found_among_dead_and_standing_by(monkeypatch: pytest.MonkeyPatch) -> None:
    standing_by = {"first"}
    asked: list[str] = []

    def namenode(name: str) -> Callable[..., Answer]:
        def answer(op: str, path: str, query: dict[str, str]) -> Answer:
            asked.extend([f"{name} {path}"] if path != "/" else [])
            return refusal("StandbyException") if name in standing_by else status_of()

        return answer

    with serving(namenode("first")) as first, serving(namenode("second")) as second, silent() as hung:
        fs = connect(closed(), hung, first, second)
        assert fs.isdir("/here")
        assert asked[-1] == "second /here"
        standing_by.symmetric_difference_update({"first", "second"})  # the other one takes over
        assert fs.isdir("/there")
        assert asked[-1] == "first /there"
        standing_by.add("first")
        monkeypatch.setattr("orca.storage.webhdfs.PATIENCE", 1.0)
        with pytest.raises(OrcaError, match=f"{second}: it stands by"):
            fs.isdir("/nowhere")


@pytest.mark.slow
def test_a_namenode_that_takes_calls_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orca.storage.webhdfs.PATIENCE", 1.5)
    with silent() as hung:
        with pytest.raises(OrcaError, match=rf"cannot be reached over HTTP .WebHDFS.: {hung}: no answer"):
            connect(hung).exists("/a")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, {}, b"<html>"), "it answers HTTP 404 Not Found, and not as WebHDFS does.*dfs.webhdfs.enabled"),
        ((401, {}, b""), "has no permission.*It wants Kerberos: let HADOOP_CONF_DIR"),
        (refusal("SafeModeException", "Name node is in safe mode."), "takes no changes now: Name node is in safe mode"),
        (refusal("AccessControlException", "Permission denied"), "user ann has no permission.*Permission denied"),
        (refusal("IllegalArgumentException", "Bad path"), "refuses this path or request: Bad path"),
    ],
)
def test_a_refusal_is_told_and_is_never_taken_for_absence(answer: Answer, message: str) -> None:
    with serving(lambda op, path, query: answer) as address:
        for ask in ("exists", "isdir", "isfile", "ls"):
            with pytest.raises(OrcaError, match=message):
                getattr(connect(address), ask)("/a")


def test_a_write_to_a_namenode_that_fell_silent_waits_for_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orca.storage.webhdfs.PATIENCE", 1.5)
    with silent() as hung:
        fs = connect(hung)
        with pytest.raises(OrcaError, match="no answer"), files.replacing(fs, "/one") as draft:
            fs.pipe_file(draft, b"1")  # what follows is the removal of the draft


def test_nobody_at_the_address_is_told_with_the_reason() -> None:
    address = closed()
    with pytest.raises(OrcaError, match=rf"{address}: Connection refused\. From the test\. See that the NameNode runs"):
        connect(address).exists("/a")
    with pytest.raises(OrcaError, match=r"://nowhere.invalid:9870: .*These addresses are a guess.*HADOOP_CONF_DIR"):
        filesystem("hdfs://nowhere.invalid:8020/a")[0].exists("/a")


def test_another_datanode_is_asked_for_and_a_token_is_never_told() -> None:
    content = b"0123456789"

    def datanode(op: str, path: str, query: dict[str, str]) -> Answer:
        return 200, {}, content[int(query["offset"]) :]

    dead = closed()
    with serving(datanode) as alive:

        def namenode(op: str, path: str, query: dict[str, str]) -> Answer:
            if op != "OPEN":
                return status_of(len(content) if path == "/file" else None)
            node = alive if urlsplit(dead).netloc in query.get("excludedatanodes", "") and spare else dead
            return 307, {"Location": f"{node}/webhdfs/v1{path}?op=OPEN&delegation=SECRET&offset={query['offset']}"}, b""

        with serving(namenode) as address:
            spare = True
            assert connect(address).cat_file("/file") == content
            spare = False
            with raises("hdfs-data-node-unreachable") as lost:
                connect(address).cat_file("/file")
            assert "SECRET" not in str(lost.value)
            assert urlsplit(dead).netloc in str(lost.value)


def test_a_download_goes_on_where_it_broke_off() -> None:
    mega = 1 << 20
    content, offsets = os.urandom(3 * mega), []

    def answer(op: str, path: str, query: dict[str, str]) -> Answer:
        if op != "OPEN":
            return status_of(len(content) if path == "/file" else None)
        offsets.append(int(query["offset"]))
        part = content[offsets[-1] :][: int(query["length"])]
        return 200, {"Content-Length": str(len(part)), "Connection": "close"}, part[: mega * 3 // 2]  # and no more

    with serving(answer) as address:
        assert connect(address).cat_file("/file") == content
        assert len(offsets) > 1 and offsets == sorted(set(offsets))  # nothing was asked for twice
        assert connect(address).cat_file("/file", 10, 30 - len(content)) == content[10:30]


def test_content_that_always_breaks_off_is_told() -> None:
    def answer(op: str, path: str, query: dict[str, str]) -> Answer:
        if op != "OPEN":
            return status_of(10 if path == "/file" else None)
        return 200, {"Content-Length": "0"}, b""

    with serving(answer) as address:
        with raises("hdfs-unreadable"):
            connect(address).cat_file("/file")


def test_a_rename_whose_answer_is_lost_is_not_done_twice() -> None:
    asked: list[str] = []

    def answer(op: str, path: str, query: dict[str, str]) -> Answer:
        asked.append(op)
        if op == "RENAME":
            raise ConnectionAbortedError  # closes the connection without an answer
        return status_of()

    with serving(answer) as address:
        with pytest.raises(OrcaError, match="did not answer RENAME.*It may have done it"):
            connect(address).mv("/a", "/b")
    assert asked.count("RENAME") == 1


def test_files_are_opened_to_read_write_or_append_outside_transactions() -> None:
    fs = connect(closed())
    with raises("bad-file-mode"):
        fs.open("/a", "r+b")
    with fs.transaction, raises("bad-file-mode"):
        fs.open("/a", "wb")


# On a real HDFS


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a new folder on the HDFS of HADOOP_CONF_DIR, of a user who is not its superuser."""
    assert os.environ["HADOOP_CONF_DIR"]
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")
    path = f"hdfs:///user/ann/{uuid.uuid4().hex[:8]}"
    fs, place = filesystem(path)
    fs.makedirs(place)
    yield path
    fs.rm(place, recursive=True)


@pytest.mark.yarn
def test_what_is_written_is_read_again(home: str, tmp_path: Path) -> None:
    fs, root = filesystem(home)
    for name in ("a b", "a%20b", "100%", "a+b", "ü", "a=b&c", "a?b#c", "a[1]*", "a;b,c"):
        fs.pipe_file(f"{root}/{name}", name.encode())
        assert fs.cat_file(f"{root}/{name}") == name.encode()
        fs.mv(f"{root}/{name}", f"{root}/moved {name}")
        assert [fs.exists(f"{root}/{name}"), fs.isfile(f"{root}/moved {name}")] == [False, True]
        fs.rm_file(f"{root}/moved {name}")
    assert fs.ls(root) == []
    big = os.urandom(3 << 20)
    (tmp_path / "big").write_bytes(big)
    fs.put_file(str(tmp_path / "big"), f"{root}/big")
    fs.get_file(f"{root}/big", str(tmp_path / "deep" / "back"))
    assert (tmp_path / "deep" / "back").read_bytes() == big
    assert fs.cat_file(f"{root}/big", 1 << 20, (1 << 20) + 5) == big[1 << 20 : (1 << 20) + 5]
    assert fs.cat_file(f"{root}/big", -7) == big[-7:]
    fs.pipe_file(f"{root}/empty", b"")
    assert (fs.cat_file(f"{root}/empty"), fs.info(f"{root}/empty")["size"]) == (b"", 0)
    fs.cp_file(f"{root}/big", f"{root}/copy")
    assert fs.ukey(f"{root}/copy") == fs.ukey(f"{root}/big")
    assert pickle.loads(pickle.dumps(fs)).du(root) == 2 * len(big)
    assert fs.unstrip_protocol(f"{root}/big").startswith("hdfs://127.0.0.1:")
    assert filesystem(fs.unstrip_protocol(root)) == (fs, root)


@pytest.mark.yarn
def test_open_files_are_sent_when_they_are_closed_and_not_when_they_failed(home: str) -> None:
    fs, root = filesystem(home)
    with fs.open(f"{root}/text", "w") as file:
        file.write("grün\n")
    with fs.open(f"{root}/text", "ab") as file:
        assert file.tell() == 6
        file.write(b"more\n")
    with fs.open(f"{root}/new", "a") as file:
        file.write("first\n")
    with fs.open(f"{root}/text") as file:
        file.seek(6)
        assert file.read() == b"more\n"
    with fs.open(f"{root}/text", "r") as file:
        assert file.read().splitlines() == ["grün", "more"]
    with pytest.raises(KeyError), fs.open(f"{root}/half", "wb") as file:
        file.write(b"1")
        raise KeyError
    assert fs.ls(root, detail=False) == [f"{root}/new", f"{root}/text"]
    with pytest.raises(FileExistsError), fs.open(f"{root}/new", "xb") as file:
        file.write(b"1")


@pytest.mark.yarn
def test_renames_and_removals_say_when_they_did_nothing(home: str) -> None:
    fs, root = filesystem(home)
    for name in ("one", "two", "folder/file", "full/file"):
        fs.pipe_file(f"{root}/{name}", name.encode())
    fs.mv(f"{root}/one", f"{root}/two")  # at once, in the place of the other
    assert fs.cat_file(f"{root}/two") == b"one"
    with pytest.raises(OSError, match="must both be directories"):
        fs.mv(f"{root}/two", f"{root}/folder")
    with pytest.raises(OSError, match="not empty"):
        fs.mv(f"{root}/folder", f"{root}/full")
    with pytest.raises(FileNotFoundError, match="rename source .*nothing is not found"):
        fs.mv(f"{root}/nothing", f"{root}/three")
    with pytest.raises(FileNotFoundError, match="hdfs://.*nothing"):
        fs.rm(f"{root}/nothing")
    with pytest.raises(OSError, match="not empty"):
        fs.rm(f"{root}/full")
    with pytest.raises(FileExistsError):
        fs.makedirs(f"{root}/full")
    fs.makedirs(f"{root}/full", exist_ok=True)
    with pytest.raises(NotADirectoryError):
        fs.pipe_file(f"{root}/two/inside", b"")
    assert not fs.exists(f"{root}/two/inside")
    with pytest.raises(IsADirectoryError):
        fs.cat_file(f"{root}/full")
    assert fs.ls(f"{root}/two", detail=False) == [f"{root}/two"]
    assert fs.find(root) == [f"{root}/folder/file", f"{root}/full/file", f"{root}/two"]


@pytest.mark.yarn
@pytest.mark.parametrize("size", [1, 100 << 20])  # a DataNode that refuses does not read on
def test_a_folder_of_others_is_closed(home: str, size: int) -> None:
    with pytest.raises(OrcaError, match="/orca-test: user ann has no permission.*Permission denied.*HADOOP_USER_NAME"):
        filesystem("hdfs:///")[0].pipe_file("/orca-test", b"0" * size)


@pytest.mark.yarn
def test_folders_go_up_and_down(home: str, tmp_path: Path) -> None:
    fs, root = filesystem(home)
    (tmp_path / "up" / "in [1]" / "empty").mkdir(parents=True)
    (tmp_path / "up" / "in [1]" / "a %20").write_text("1")
    fs.put(str(tmp_path / "up"), f"{root}/up", recursive=True)
    fs.get(f"{root}/up", str(tmp_path / "down"), recursive=True)
    assert sorted(str(path.relative_to(tmp_path / "down")) for path in (tmp_path / "down").rglob("*")) == [
        "in [1]", "in [1]/a %20", "in [1]/empty",
    ]  # fmt: skip


@pytest.mark.yarn
def test_a_file_is_there_at_every_moment_of_its_replacement(home: str) -> None:
    """Where two renames are needed, there is a moment without it."""
    fs, root = filesystem(home)
    files.write(f"{home}/one", {"": b"0"}, None)
    missing, stop = [], threading.Event()

    def look() -> None:
        other, _ = filesystem(home)
        while not stop.is_set():
            if not other.exists(f"{root}/one"):
                missing.append(time.time())

    watcher = threading.Thread(target=look)
    watcher.start()
    for number in range(1, 15):
        files.write(f"{home}/one", {"": str(number).encode()}, None)
    stop.set()
    watcher.join()
    assert missing == []
    assert fs.cat_file(f"{root}/one") == b"14"
    assert fs.ls(root, detail=False) == [f"{root}/one"]


@pytest.mark.yarn
def test_a_fit_of_two_workers_keeps_goes_on_and_is_saved_there(home: str) -> None:
    torch = pytest.importorskip("torch")
    import numpy as np

    from orca import Estimator
    from orca.triggers import SeveralIteration

    def estimator(**more: Any) -> Any:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return Estimator.from_torch(
            model=model, optimizer=optimizer, loss=torch.nn.MSELoss(), backend="local", workers_per_node=2, **more
        )

    x = np.random.default_rng(0).random((32, 3), dtype=np.float32)
    data = {"x": x, "y": x.sum(1, keepdims=True)}
    est = estimator(model_dir=f"{home}/kept")
    est.set_tensorboard(f"{home}/logs", "app")
    est.fit(data, epochs=1, batch_size=8, checkpoint_trigger=SeveralIteration(2))
    run = newest_run(f"{home}/kept")
    assert run is not None and versions(run) == [2, 4]
    assert path_of(run).startswith(home)
    assert len(est.get_train_summary("Loss")) == 4
    assert filesystem(home)[0].glob(f"{filesystem(home)[1]}/logs/app/train/events*")
    est.fit(data, epochs=2, batch_size=8, resume=True, checkpoint_trigger=SeveralIteration(2))
    assert versions(run)[-1] == 8
    for name in ("model", "model.pt"):
        est.save(f"{home}/{name}")
        est.save(f"{home}/{name}")  # in the place of the first
        other = estimator()
        other.load(f"{home}/{name}")
        np.testing.assert_array_equal(other.predict(x), est.predict(x))
    assert not [name for name in filesystem(home)[0].find(filesystem(home)[1]) if ".draft-" in name or ".old-" in name]
