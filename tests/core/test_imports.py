"""What is due when a program imports a framework."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orca.core import imports

SAID = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795039128.513590   12188 port.cc:153] oneDNN custom operations are on. You may see slightly different
I0000 00:00:1795039128.514873   12188 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be
E0000 00:00:1795039133.511540   12188 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: UNKNOWN ERROR
E0000 00:00:1795039133.511540   12188 computation_placer.cc:177] computation placer already registered. Please check
To enable the following instructions: AVX2 AVX512F, in other operations, rebuild TensorFlow with the appropriate flags.
"""
ERROR = "E0000 00:00:1795039133.511540   12188 cuda_dnn.cc:456] Loaded runtime CuDNN library: 8.9.2, source 9.3\n"


@pytest.mark.parametrize("level", [None, "2", "0"])
def test_greetings_are_dropped_unless_the_user_asks_for_them_and_errors_stay(
    level: str | None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    with imports._without_greetings():
        os.write(2, (SAID + ERROR).encode())
    assert capfd.readouterr().err == (SAID if level == "0" else "") + ERROR
    os.write(2, SAID.encode())  # afterwards, all is shown
    assert capfd.readouterr().err == SAID


@pytest.mark.slow
def test_tensorflow_comes_silently_after_triton_and_writes_no_files(run_program: Callable[..., Any]) -> None:
    said = run_program(
        """
        import sys
        import orca
        import tensorflow as tf

        assert tf.__spec__.origin == tf.__file__ and tf.__spec__.submodule_search_locations

        @tf.function
        def double(x):
            if tf.reduce_sum(x) > 3:
                x = x * 2
            return tf.matmul(x, tf.ones((4, 1)))

        assert float(double(tf.ones((1, 4)))[0, 0]) == 8
        try:
            double(tf.ones((1, 3)))
        except ValueError as error:
            assert "return tf.matmul(x, tf.ones((4, 1)))" in str(error), error
        else:
            raise AssertionError("no error")
        names = list(sys.modules)
        print("triton" not in names or names.index("triton") < names.index("tensorflow"))
        """,
        env={"TMPDIR": (folder := tempfile.mkdtemp()), "TF_CPP_MIN_LOG_LEVEL": None},
    )
    assert said.stdout.strip() == "True"
    assert said.stderr == ""
    assert [path.name for path in Path(folder).rglob("*autograph*")] == []


def test_a_listener_hears_of_an_import_and_of_a_mere_look_that_no_import_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ours_to_hear.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(imports, "FRAMEWORKS", ("ours_to_hear",))
    heard: list[str] = []
    monkeypatch.setattr(imports.ImportHook, "listeners", [heard.append])
    importlib.util.find_spec("ours_to_hear")
    assert heard == ["ours_to_hear"] and not imports.is_imported("ours_to_hear", within=0.05)
    importlib.import_module("ours_to_hear")
    assert heard == ["ours_to_hear"] * 2 and imports.is_imported("ours_to_hear", within=0.05)
    del sys.modules["ours_to_hear"]
