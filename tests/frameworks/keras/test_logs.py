from __future__ import annotations

import numpy as np
import pytest

from orca.frameworks.keras.logs import plain_logs


def test_logs_become_plain_and_lose_what_cannot() -> None:
    tf = pytest.importorskip("tensorflow")
    logs = {
        "loss": tf.constant(0.5),
        "text": tf.constant("warm"),
        "half": tf.constant(1.5, tf.bfloat16),
        "inner": {"deep": np.int64(3)},
        "list": (1, 2.0),
        "none": None,
        "thing": object(),
        "ragged": [[1], [1, 2]],
        "complex": 1j,
    }
    expected = {"loss": 0.5, "text": "warm", "half": 1.5, "deep": 3, "list": [1.0, 2.0], "none": None}
    assert plain_logs(logs) == expected
