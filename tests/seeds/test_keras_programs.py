"""Programs of the documentation's kind for Keras: a DataFrame, creators with callbacks and files, and Keras 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import run_program

pytest.importorskip("pyspark")
pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(200)]


def run(name: str, tmp_path: Path) -> list[str]:
    text = Path(__file__).with_name(name).read_text()
    return run_program(text, timeout=180, args=[str(tmp_path)]).stdout.splitlines()


def test_dataframe_with_numbers_of_steps(tmp_path: Path) -> None:
    assert run("keras_dataframe.py", tmp_path) == [
        "epochs [3, 3, 3, 3]",
        "scores ['num_samples', 'validation_accuracy', 'validation_loss'] True",
        "as in one process True",
        "predictions True",
        "predictions True",
    ]


def test_creators_with_callbacks_and_files(tmp_path: Path) -> None:
    names = [f"epoch-{number}.weights.h5" for number in (1, 2, 3)]
    lines = run("keras_creators.py", tmp_path)
    assert lines[:2] == ["epochs 3 True", f"files {names} ['train', 'validation']"]
    assert lines[2:] == [
        "scores ['num_samples', 'validation_accuracy', 'validation_loss']",
        "as in one process True",
        "fresh True",
        "weights in a creator True",
        "weights True",
        "saved True",
        "served True",
    ]


def test_models_of_keras_2_on_xshards(tmp_path: Path) -> None:
    assert run("keras_legacy.py", tmp_path) == [
        "model of tf_keras",
        "epochs 3 3",
        "scores ['num_samples', 'validation_accuracy', 'validation_auc', 'validation_loss']",
        "as in one process True",
        "predictions True",
        "loaded True True",
        "loaded True True",
        "weights True",
        "trained on True",
        "best True",
    ]
