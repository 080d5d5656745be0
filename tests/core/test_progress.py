from __future__ import annotations

from typing import Any

import pytest
import tqdm.auto

from orca.core.progress import Progress
from orca.core.pulse import Beat


class Bar:
    """Stand in for tqdm and remember what it was told."""

    made: list[Bar]

    def __init__(self, total: int, desc: str, unit: str, disable: bool | None) -> None:
        self.total, self.desc, self.disable, self.n = total, desc, disable, 0
        self.shown: list[int] = []
        self.postfix: dict[str, Any] = {}
        self.closed = False
        Bar.made.append(self)

    def set_postfix(self, refresh: bool = True, **values: Any) -> None:
        self.postfix = values

    def refresh(self) -> None:
        assert not self.closed
        self.shown.append(self.n)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Bar]:
    Bar.made = []
    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    return Bar.made


def beat(epoch: int, step: int, steps: int = 4, rank: int = 0, loss: float | None = None) -> Beat:
    return Beat(rank, epoch, step, steps, loss=loss)


def test_one_bar_an_epoch_each_full_at_its_end(bars: list[Bar]) -> None:
    with Progress() as progress:
        for one in (beat(1, 0), beat(1, 2, loss=0.25), beat(2, 1), beat(2, 3)):
            progress.beat(one)
    assert [bar.desc for bar in bars] == ["epoch 1", "epoch 2"]
    assert [bar.shown for bar in bars] == [[0, 2, 4], [1, 3, 4]]
    assert bars[0].postfix == {"loss": "0.2500"} and all(bar.closed for bar in bars)


def test_a_failure_leaves_the_bar_where_it_was(bars: list[Bar]) -> None:
    with pytest.raises(ValueError, match="bad"), Progress() as progress:
        progress.beat(beat(1, 2))
        raise ValueError("bad")
    assert bars[0].shown == [2] and bars[0].closed


def test_only_rank_0_in_training_is_shown(bars: list[Bar]) -> None:
    with Progress() as progress:
        progress.beat(beat(1, 1, rank=1))
        progress.beat(beat(0, 0, steps=0))
    assert bars == []


def test_a_bar_never_runs_over(bars: list[Bar]) -> None:
    with Progress() as progress:
        progress.beat(beat(1, 9))
    assert bars[0].shown == [4, 4]


def test_switched_off_it_is_silent_and_a_late_beat_too(bars: list[Bar]) -> None:
    with Progress(enabled=False) as progress:
        progress.beat(beat(1, 1))
    with Progress() as progress:
        pass
    progress.beat(beat(1, 1))
    assert bars == []


def test_nothing_is_written_where_the_output_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from tqdm.std import tqdm as plain

    monkeypatch.setattr(tqdm.auto, "tqdm", plain)
    with Progress() as progress:
        for one in (beat(1, 0), beat(1, 2, loss=0.25), beat(2, 1)):
            progress.beat(one)
    assert capfd.readouterr() == ("", "")
