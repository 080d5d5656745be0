"""Checkpoints: how programs of Orca looked for them. Owns find_latest_checkpoint."""

from __future__ import annotations

from orca.errors import ArgumentError
from orca.storage.checkpoints import newest_run, path_of

MODEL_TYPES = ("bigdl", "pytorch", "tf")


def find_latest_checkpoint(model_dir: str, model_type: str = "bigdl") -> tuple[str, str, int]:
    """Return (folder, prefix, version) of the newest checkpoint under model_dir, for load_orca_checkpoint.

    Args:
        model_dir: The model_dir of an Estimator, or the path of setCheckpoint; any fsspec path.
        model_type: "bigdl", "pytorch" or "tf": all have the same layout. The backend bigdl keeps them in a folder named
            by the time of the fit, as `model.<steps>`, others as `orca.<steps>`.

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
    prefix, version = path_of(folder).rsplit("/", 1)[-1].rsplit(".", 1)
    return folder, prefix, int(version)
