"""Summaries: where the curves of a training go."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from orca_classic.tf1.tfpark.summaries import SummaryVerbs


def test_a_later_summary_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    def summary(name: str) -> Any:
        return SimpleNamespace(log_dir=str(tmp_path), app_name=name)

    trained = SummaryVerbs()
    trained.set_val_summary(summary("checking"))
    for name in ("first", "second"):
        trained.set_train_summary(summary(name))
    members = trained._show(SimpleNamespace())._summaries.members
    assert [member.app_name for member in members] == ["second", "checking"]
