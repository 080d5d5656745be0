"""Statistics of workers that older programs put together themselves."""

from __future__ import annotations

import pytest

from orca.errors import ArgumentError
from orca_classic.zoo.statistics import process_stats


def test_lines_of_uneven_workers_become_that_of_all_rows() -> None:
    torch = pytest.importorskip("torch")
    lines = [
        {"num_samples": 6, "epoch": 1, "train_loss": 1.0, "val_accuracy": torch.tensor(0.5), "val_num_samples": 2},
        {"num_samples": 2, "epoch": 1, "train_loss": 3.0, "val_accuracy": torch.tensor(1.0), "val_num_samples": 6},
        {"num_samples": 0, "epoch": 1, "train_loss": float("nan"), "val_num_samples": 0},
    ]
    whole = process_stats(lines)
    assert whole == {"num_samples": 8, "epoch": 1, "train_loss": 1.5, "val_accuracy": 0.875, "val_num_samples": 8}
    assert torch.is_tensor(whole["val_accuracy"])


def test_what_is_no_number_is_the_first_workers() -> None:
    assert process_stats([{"profile": {"a": 1}, "ok": True}, {"profile": {"a": 2}, "ok": False}]) == {
        "profile": {"a": 1}, "ok": True,
    }  # fmt: skip
    assert process_stats([{"loss": 1.0}, {"loss": 2.0}]) == {"loss": 1.5}  # nobody told the rows


def test_no_statistics_are_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one worker"):
        process_stats([])
