"""Checkpoints: how programs of Orca looked for them. Owns find_latest_checkpoint."""

from __future__ import annotations

from orca.errors import ArgumentError
from orca.storage.checkpoints import PREFIX, newest_run, versions

MODEL_TYPES = ("bigdl", "pytorch", "tf")


def find_latest_checkpoint(model_dir: str, model_type: str = "bigdl") -> tuple[str, str, int]:
    """Return (folder, prefix, version) of the newest checkpoint under model_dir, for load_orca_checkpoint.

    Args:
        model_dir: The model_dir of an Estimator, or the path of setCheckpoint; any fsspec path.
        model_type: "bigdl", "pytorch" or "tf": checkpoints of all of them lie in the same way.

    Raises:
        ArgumentError: There is none, or no such model_type.

    Example:
        ::

            path, prefix, version = find_latest_checkpoint("/models/run")
            est.load_orca_checkpoint(path, version, prefix)
    """
    if model_type not in MODEL_TYPES:
        raise ArgumentError(f"model_type must be one of {', '.join(MODEL_TYPES)}; got {model_type!r}.")
    folder = newest_run(model_dir)
    if folder is None:
        raise ArgumentError(f"there is no checkpoint under {model_dir}. Train with checkpoint_trigger= and model_dir=.")
    return folder, PREFIX, versions(folder)[-1]
