"""Ray: a cluster of ours on this machine, or one at an address. Owns how Ray is started, kept quiet and ended."""

from __future__ import annotations

import inspect
import logging
import os
import re
import secrets
import socket
import sys
from collections.abc import Mapping
from typing import Any

from orca.errors import ArgumentError, MissingDependency, OrcaError

log = logging.getLogger(__name__)


class OrcaRayContext:
    """Be the Ray that init_orca_context(runtime="ray") answers with.

    Args:
        cores: The CPUs of a Ray started here; None takes all.
        address: The address of a running Ray ("auto", "host:6379", "ray://host:10001"); None starts one here.
        options: Further keywords for ray.init.
    """

    def __init__(
        self, cores: int | None = None, address: str | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        self.cores, self.address, self.options = cores, address, dict(options or {})
        self.initialized = False
        self.reused = False
        self.address_info: dict[str, Any] = {}

    def init(self) -> dict[str, Any]:
        """Start Ray or connect to it; a Ray that this process is already connected to is reused.

        Returns:
            The address information, as ray.init gives it.
        """
        if self.initialized:
            return self.address_info
        _knock(self.address)
        prepare(starts=self.address is None)
        ray = _ray()
        self.reused = ray.is_initialized()
        if not self.reused:
            self._start(ray)
        self.address_info = _address_info(ray)
        self.initialized = True
        return self.address_info

    def _start(self, ray: Any) -> None:
        quiet = {"logging_level": logging.WARNING}
        if self.address is None:
            # address="local": never join, by chance, a Ray that another program of this user has started.
            ours: dict[str, Any] = {"address": "local", "num_cpus": self.cores, "include_dashboard": False}
        else:
            ours = {"address": self.address}
        try:
            ray.init(**{**quiet, **ours, **self.options})
        except Exception as error:
            ray.shutdown()
            where = f"reach Ray at {self.address!r}" if self.address else "start Ray on this machine"
            raise OrcaError(f"could not {where}: {type(error).__name__}: {error}") from error

    def stop(self) -> None:
        """Leave Ray, and end it where it was started here; more than once is fine."""
        if self.initialized:
            _ray().shutdown()
            self.initialized = False
            self.address_info = {}

    @property
    def num_nodes(self) -> int:
        """Return how many nodes are alive."""
        return len(self._alive())

    @property
    def total_cores(self) -> int:
        """Return the CPUs of all nodes together."""
        return int(sum(node["Resources"].get("CPU", 0) for node in self._alive()))

    @property
    def driver_host(self) -> str:
        """Return the address of the node that this process is on."""
        return str(self.address_info.get("node_ip_address") or _ray().util.get_node_ip_address())

    def _alive(self) -> list[dict[str, Any]]:
        if not self.initialized:
            raise ArgumentError("this Ray context is stopped. Call init_orca_context(runtime='ray').")
        return [node for node in _ray().nodes() if node["Alive"]]


def init_words() -> list[str]:
    """Return the keywords that ray.init takes."""
    return [name for name in inspect.signature(_ray().init).parameters if name != "kwargs"]


def prepare(starts: bool) -> None:
    """Set what Ray reads from the environment when it is imported; what the user has set stays."""
    # Under `uv run` Ray would upload the whole working folder to itself and build an environment from it.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray announces with a warning that it will stop hiding GPUs from tasks without one: take the new way now.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    told = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if starts and not told and "ray" not in sys.modules:
        # Kept until the process ends: Ray reads the token once.
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _knock(address: str | None) -> None:
    """Raise where nobody listens at an address: Ray itself would try for half a minute."""
    told = re.fullmatch(r"(?:ray://)?\[?([^\[\]]+?)\]?:(\d+)", address or "")
    if told is None:
        return
    try:
        socket.create_connection((told.group(1), int(told.group(2))), timeout=10).close()
    except OSError as error:
        raise OrcaError(f"could not reach Ray at {address!r}: {error}. Is it running there?") from None


def _address_info(ray: Any) -> dict[str, Any]:
    """Return the addresses of the Ray this process is connected to."""
    context = ray.get_runtime_context()
    info = {"address": getattr(context, "gcs_address", None), "node_id": context.get_node_id()}
    node = getattr(ray._private.worker, "_global_node", None)
    return {**info, **(node.address_info if node is not None else {})}


def _ray() -> Any:
    """Return the module ray, or say how to install it."""
    try:
        import ray
    except ImportError as error:
        raise MissingDependency.of("ray", "ray", "runtime='ray'") from error
    return ray
