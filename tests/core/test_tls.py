from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from orca.core import tls
from orca.core.engine import Settings, dispatch
from orca.core.network import adopt
from orca.core.source import Shards
from orca.core.tls import Certificate, encrypted
from orca.errors import ArgumentError

pytest.importorskip("cryptography")
TRANSPORT = "GLOO_DEVICE_TRANSPORT"


def context_of(certificate: Certificate, trusted: Certificate, folder: Path, server: bool) -> ssl.SSLContext:
    """Return a context as gloo makes it: either end shows its certificate, and asks for one of the authority."""
    for name, text in (("key", certificate.key), ("own", certificate.certificate), ("ca", trusted.certificate)):
        (folder / name).write_text(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # in 1.3 a client hears of its refusal later
    context.load_cert_chain(folder / "own", folder / "key")
    context.load_verify_locations(folder / "ca")
    return context


def exchanged(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """Return what a client hears over a connection."""
    near, far = socket.socketpair()

    def serve() -> None:
        try:
            with server.wrap_socket(far, server_side=True) as connection:
                connection.sendall(b"gradient")
        except OSError:
            far.close()

    thread = Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(near) as connection:
            return connection.recv(100)
    finally:
        near.close()
        thread.join(10)


def test_ranks_with_the_certificate_of_the_run_speak_and_others_do_not(tmp_path: Path) -> None:
    own, other = Certificate.new(), Certificate.new()
    assert own != other and own.key not in repr(own)
    server, client = (context_of(own, own, tmp_path, server) for server in (True, False))
    assert exchanged(server, client) == b"gradient"
    with pytest.raises(OSError):
        exchanged(server, context_of(other, own, tmp_path, server=False))
    with pytest.raises(OSError):
        exchanged(context_of(other, own, tmp_path, server=True), client)


def test_gloo_reads_key_and_certificate_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRANSPORT, raising=False)
    monkeypatch.setattr(tls, "check_transport", lambda: None)  # the wheels of torch have no TLS
    certificate = Certificate.new()
    with encrypted(certificate):
        assert os.environ[TRANSPORT] == "TCP_TLS"
        files = {name: os.environ[f"{TRANSPORT}_TCP_TLS_{name}"] for name in ("PKEY", "CERT", "CA_FILE")}
        assert Path(files["PKEY"]).read_text() == certificate.key
        assert Path(files["CERT"]).read_text() == Path(files["CA_FILE"]).read_text() == certificate.certificate
    assert not [name for name in os.environ if name.startswith(TRANSPORT)]
    with encrypted(None):
        assert TRANSPORT not in os.environ


def job(world: Any, rows: Any, heartbeat: Any) -> None:
    pass


def test_a_torch_without_tls_is_refused_before_ranks_start() -> None:
    try:
        with encrypted(Certificate.new()):
            pytest.skip("this torch has TLS")
    except ArgumentError:
        pass
    adopt({"orca.tls": "true"})
    try:
        with pytest.raises(ArgumentError, match=r"orca\.tls is true, and this build of torch has no TLS for gloo"):
            shards = Shards(lambda items, folder: {}, list)
            with dispatch(job, shards, 2, "127.0.0.1", Settings(progress=False)):
                raise AssertionError("ranks start")
    finally:
        adopt({})
    with pytest.raises(ArgumentError, match="orca.tls must be 'true' or 'false'; got 'yes'"):
        adopt({"orca.tls": "yes"})
