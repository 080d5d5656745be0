"""Reuse: a process that runs several jobs. Owns which of them leave it so that the next goes as in a new process."""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import suppress
from typing import Any

SINGLE_USE = "ORCA_SINGLE_USE"  # a variable, set where others need the memory of a process that waits for a job
# Variables that Orca, or a library when it is loaded, sets on a worker.
_SET_BY_LIBRARIES = (
    "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "ORCA_HDFS", "CUBLAS_WORKSPACE_CONFIG",
    "KERAS_BACKEND", "TF_USE_LEGACY_KERAS", "TF_CPP_MIN_LOG_LEVEL", "TF2_BEHAVIOR", "TPU_ML_PLATFORM",
    "TPU_ML_PLATFORM_VERSION", "ENABLE_RUNTIME_UPTIME_TELEMETRY", "HDF5_PLUGIN_PATH", "TORCHINDUCTOR_CACHE_DIR",
)  # fmt: skip


class Baseline:
    """A process before its first job, with all slow libraries loaded, to be compared with it after a job."""

    def __init__(self) -> None:
        self.moment, self.settings = time.time(), _settings()

    def holds(self) -> bool:
        """Say whether a job would go here as in a new process, and the process may wait for it and holds no GPU."""
        torch = sys.modules.get("torch")
        if SINGLE_USE in os.environ or (torch is not None and torch.cuda.is_initialized()):
            return False
        return _settings() == self.settings and not _edited_since(self.moment)


def _settings() -> dict[str, Any]:
    """Return settings of this process that user code may change and that change what later code does."""
    import numpy as np  # by workers alone: starting a cluster needs the name above

    settings: dict[str, Any] = {
        "environment": {name: value for name, value in os.environ.items() if name not in _SET_BY_LIBRARIES},
        "folder": os.getcwd(),
        "log handlers": list(logging.getLogger().handlers),
        "numpy": np.geterr(),
    }
    if (torch := sys.modules.get("torch")) is not None:
        settings["torch"] = (
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.get_deterministic_debug_mode(),
            torch.get_float32_matmul_precision(),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.is_anomaly_enabled(),
        )
    return settings


def _edited_since(moment: float) -> bool:
    """Say whether the file of a module that is loaded here was written since: a new process would load other code."""
    folders = tuple(entry for entry in sys.path if entry)  # not files that compilers write elsewhere and load
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")  # to ask a lazy module for it would load it
        if isinstance(file, str) and file.startswith(folders):
            with suppress(OSError):
                if os.stat(file).st_mtime > moment:
                    return True
    return False
