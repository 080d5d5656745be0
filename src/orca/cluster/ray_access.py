"""Ray's access: who can reach a Ray of ours. Owns its token, the interface it listens on, and the variables that all
of its processes read."""

from __future__ import annotations

import importlib
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from orca.cluster.spark import set_entries

# Variables that all processes of Ray read; those that the user has set stay.
DEFAULTS = {
    # Under `uv run` Ray would upload the whole working folder to itself and build an environment from it.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0",  # messages of its autoscaler on the driver's standard output
    # Ray announces with a warning that it will stop hiding GPUs from tasks without one: take the new way now.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def prepare(starts: bool) -> None:
    """Set the variables that Ray reads when it is imported; those that the user has set stay."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    own = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if starts and not own:
        _draw_token()


def _draw_token() -> str:
    """Let this process and those that it starts prove a new token from now on; it is kept until the process ends."""
    token = secrets.token_hex(32)
    os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", token
    if "ray" in sys.modules:  # it has read the mode: there is no public way to let it look again
        raylet: Any = importlib.import_module("ray._raylet")
        raylet.AuthenticationTokenLoader.instance().reset_cache()
        raylet.Config.initialize("")
    return token


def secret_variables() -> dict[str, str]:
    """Return the variables by which Ray's nodes prove that they belong together; none where the user wants none."""
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        return {}
    token, path = os.environ.get("RAY_AUTH_TOKEN"), os.environ.get("RAY_AUTH_TOKEN_PATH")
    if token is None and path is not None:
        token = Path(path).read_text().strip()
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token or _draw_token()}


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let a Ray that is started now listen only on the loopback interface, as it does by itself on macOS."""
    constants: dict[str, Any] = vars(importlib.import_module("ray._private.ray_constants"))  # made of the variable
    with ExitStack() as life:
        set_entries(os.environ, {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}, life)
        set_entries(constants, {"ENABLE_RAY_CLUSTER": False}, life)
        yield


def about_token() -> str:
    """Return what may be wrong with the token that a Ray asks for: its ConnectionError does not say that it does."""
    if os.environ.get("RAY_AUTH_MODE") == "token":
        return "RAY_AUTH_MODE=token is set: check that the token is the one of that Ray."
    return (
        "If it was started with RAY_AUTH_MODE=token, set RAY_AUTH_MODE=token before this program starts, and its token "
        "in RAY_AUTH_TOKEN, in a file named by RAY_AUTH_TOKEN_PATH, or in ~/.ray/auth_token."
    )
