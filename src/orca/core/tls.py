"""TLS: gloo's connections encrypted, with a certificate of the run. Owns `orca.tls`.

The certificate is its own authority: a rank speaks only with those that have the run's key. It travels with the job.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from orca.errors import ArgumentError, MissingDependency

_TRANSPORT = "GLOO_DEVICE_TRANSPORT"
_VALID = timedelta(days=365)  # longer than a run


@dataclass(frozen=True)
class Certificate:
    """A key and the certificate that it signed, as PEM."""

    key: str = field(repr=False)
    certificate: str

    @classmethod
    def new(cls) -> Certificate:
        """Return those of a new run."""
        return cls(*_new_pair())


def _new_pair() -> tuple[str, str]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise MissingDependency.of("cryptography", "tls", "orca.tls") from error
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "orca")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return secret.decode(), certificate.public_bytes(pem).decode()


@contextmanager
def encrypted(certificate: Certificate | None) -> Iterator[None]:
    """Let gloo encrypt the connections of process groups that are made in the block; without one, change nothing.

    Raises:
        ArgumentError: This build of torch cannot.
    """
    if certificate is None:
        yield
        return
    with ExitStack() as life:
        parts = {"PKEY": certificate.key, "CERT": certificate.certificate, "CA_FILE": certificate.certificate}
        variables = {f"{_TRANSPORT}_TCP_TLS_{name}": life.enter_context(_in_memory(pem)) for name, pem in parts.items()}
        variables[_TRANSPORT] = "TCP_TLS"
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            check_transport()
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def check_transport() -> None:
    """Raise where this torch has no TLS in gloo, as the wheels of PyPI."""
    import torch.distributed as dist

    group: Any = dist.ProcessGroupGloo
    try:
        group.create_device(interface="lo")
    except RuntimeError as error:
        if "unsupported gloo device" not in str(error):
            raise
        raise ArgumentError(
            "orca.tls is true, and this build of torch has no TLS for gloo, as the wheels of PyPI. Use one that was "
            "built with USE_GLOO_WITH_OPENSSL=1 on all nodes, or leave orca.tls out and give the workers a network of "
            "their own.",
            code="no-tls-in-torch",
        ) from None


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """Give the path of a file that only this process has, in memory."""
    file = os.memfd_create("orca-tls")
    try:
        os.write(file, text.encode())
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)
