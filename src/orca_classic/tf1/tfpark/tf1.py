"""tf1: TensorFlow 1 as its programs know it. Owns the names that today's TensorFlow lost, and turning graph mode on.

Importing this module turns eager execution off for the whole program. Import it before anything imports tensorflow:
then `tensorflow.keras` is the Keras of those years, too (tf_keras).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from orca_classic.tf1.tfpark.lost_names import lost, make_optimizers_for_graphs, names, put_back

if "tensorflow" not in sys.modules:
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
import tensorflow.compat.v1 as _v1

_level = _v1.logging.get_verbosity()
_v1.logging.set_verbosity(_v1.logging.ERROR)  # it warns of variables that are no resources
_v1.disable_v2_behavior()
_v1.logging.set_verbosity(_level)
put_back()
if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
    make_optimizers_for_graphs()


def __getattr__(name: str) -> Any:
    return lost(name) if name in names() else getattr(_v1, name)


def __dir__() -> list[str]:
    return sorted({*dir(_v1), *names()})
