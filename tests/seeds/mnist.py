"""MNIST: where tests find its four IDX files, in gzip. The folder named by ORCA_DATA has them in MNIST/raw."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]
_PLACES = [place / "MNIST" / "raw" for place in (Path(os.environ.get("ORCA_DATA", "data")), *_BESIDE)]

FOLDER = next(filter(Path.is_dir, _PLACES), None)
needed = pytest.mark.skipif(FOLDER is None, reason="MNIST is not here: set ORCA_DATA to a folder with MNIST/raw")
