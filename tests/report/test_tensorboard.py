"""Summaries: what TensorBoard reads of them, what comes back, where they can be kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from orca.core.trace import Trace, rows_a_second, with_traces
from orca.errors import ArgumentError
from orca.report.tensorboard import Summaries, SummaryPair

pytest.importorskip("tensorboard")

NOW = 1_700_000_000.0


def line(epoch: int, steps: int, **more: Any) -> dict[str, Any]:
    return {"num_samples": 80, "epoch": epoch, "batch_count": steps, "train_loss": 1 / epoch, **more}


def trace(*losses: float, rate: float = 0.5, ended: float = NOW, seconds: float = 4.0) -> Trace:
    return Trace(np.array(losses), np.full(len(losses), rate), seconds, ended)


def test_loss_and_rate_are_kept_of_every_step_and_throughput_of_every_epoch(tmp_path: Path) -> None:
    summaries = Summaries(tmp_path, "app")
    summaries.write([line(1, 2), line(2, 2)], [trace(4, 3), trace(2, 1, rate=0.25, ended=NOW + 10, seconds=2)], 1)
    assert summaries.read("train", "Loss") == [
        [1, 4, NOW - 2], [2, 3, NOW], [3, 2, NOW + 9], [4, 1, NOW + 10],
    ]  # fmt: skip
    assert [point[:2] for point in summaries.read("train", "LearningRate") or []] == [
        [1, 0.5], [2, 0.5], [3, 0.25], [4, 0.25],
    ]  # fmt: skip
    assert summaries.read("train", "Throughput") == [[2, 20, NOW], [4, 40, NOW + 10]]


def test_validation_has_a_tag_for_each_metric_in_its_true_spelling(tmp_path: Path) -> None:
    summaries = Summaries(str(tmp_path), "app")
    first = line(1, 2, val_loss=0.5, val_num_samples=9, val_accuracy=0.25, val_myscore=np.float32(2), val_other=3)
    second = line(2, 2, val_loss=0.25, val_num_samples=9, val_accuracy=0.5, val_myscore=1.0, val_other=4)
    summaries.write([first, second], [trace(4, 3), trace(2, 1)], 1, metrics=["myScore"])
    for tag, values in (("Loss", [0.5, 0.25]), ("Accuracy", [0.25, 0.5]), ("myScore", [2, 1]), ("other", [3, 4])):
        points = summaries.read("validation", tag) or []
        assert [point[:2] for point in points] == [[2, values[0]], [4, values[1]]], tag
    assert summaries.read("validation", "accuracy") == summaries.read("validation", "Accuracy")
    with pytest.raises(ArgumentError, match="has no tag 'AUC'. Pass one of: Accuracy, Loss, myScore, other."):
        summaries.read("validation", "AUC")


def test_epochs_without_validation_have_no_point_there(tmp_path: Path) -> None:
    summaries = Summaries(tmp_path, "app")
    summaries.write([line(1, 1), line(2, 1, val_loss=0.5)], [trace(1), trace(1)], 1)
    assert [point[:2] for point in summaries.read("validation", "Loss") or []] == [[2, 0.5]]


def test_next_fit_goes_on_and_one_that_begins_again_replaces(tmp_path: Path) -> None:
    summaries = Summaries(tmp_path, "app")
    summaries.write([line(1, 2, val_loss=1.0)], [trace(8, 7)], 1)
    summaries.write([line(2, 2, val_loss=2.0)], [trace(6, 5)], 3)
    assert [point[:2] for point in summaries.read("train", "Loss") or []] == [[1, 8], [2, 7], [3, 6], [4, 5]]
    Summaries(tmp_path, "app").write([line(2, 1, val_loss=3.0)], [trace(9)], 3)
    assert [point[:2] for point in summaries.read("train", "Loss") or []] == [[1, 8], [2, 7], [3, 9]]
    assert [point[:2] for point in summaries.read("validation", "Loss") or []] == [[2, 1], [3, 3]]


def test_fit_that_went_on_after_an_interruption_counts_the_steps_before(tmp_path: Path) -> None:
    summaries = Summaries(tmp_path, "app")
    summaries.write([line(1, 4, val_loss=0.5), line(2, 4, val_loss=0.25)], [trace(2, 1)], 1)
    assert [point[:2] for point in summaries.read("train", "Loss") or []] == [[7, 2], [8, 1]]
    assert summaries.read("train", "Throughput") == [[8, 10, NOW]]  # half of the 80 rows in 4 seconds
    assert summaries.read("validation", "Loss") == [[4, 0.5, NOW - 4], [8, 0.25, NOW]]


def test_resumed_fit_leaves_what_the_run_before_it_wrote(tmp_path: Path) -> None:
    Summaries(tmp_path, "app").write([line(1, 2, val_loss=1.0)], [trace(8, 7)], 1)
    resumed = Summaries(tmp_path, "app")
    resumed.write([line(1, 2, val_loss=1.0), line(2, 2, val_loss=0.5)], [trace(6, 5)], 1)
    assert [point[:2] for point in resumed.read("train", "Loss") or []] == [[1, 8], [2, 7], [3, 6], [4, 5]]
    assert [point[:2] for point in resumed.read("validation", "Loss") or []] == [[2, 1], [4, 0.5]]


def test_framework_that_tells_no_steps_has_the_loss_of_epochs(tmp_path: Path) -> None:
    summaries = Summaries(tmp_path, "app")
    summaries.write([line(1, 3), line(2, 3)], [trace(), trace()], 1)
    assert [point[:2] for point in summaries.read("train", "Loss") or []] == [[3, 1], [6, 0.5]]
    with pytest.raises(ArgumentError, match="has no tag 'LearningRate'. Pass one of: Loss, Throughput."):
        summaries.read("train", "LearningRate")


@pytest.mark.parametrize("part", ["train", "validation"])
def test_nothing_written_is_none(tmp_path: Path, part: str) -> None:
    summaries = Summaries(tmp_path, "app")
    assert summaries.read(part, "Loss") is None
    summaries.write([], [], 1)
    assert summaries.read(part, "Loss") is None
    assert list(tmp_path.iterdir()) == []


def test_a_pair_without_summaries_has_nothing_to_read() -> None:
    pair = SummaryPair(None, None)
    pair.write([line(1, 1)], [trace(1)], 1)
    assert pair.read("train", "Loss") is None


def test_wrong_tags_and_parts_are_named(tmp_path: Path) -> None:
    summaries = Summaries(tmp_path, "app")
    message = "the train summary has no tag 'loss_'. Pass one of: LearningRate, Loss, Throughput."
    with pytest.raises(ArgumentError, match=message):
        summaries.read("train", "loss_")
    summaries.write([line(1, 1)], [trace(1)], 1)
    with pytest.raises(ArgumentError, match=message):
        summaries.read("train", "loss_")
    with pytest.raises(ArgumentError, match="the train summary has no tag None. Pass one of: LearningRate, Loss"):
        summaries.read("train", None)
    with pytest.raises(ArgumentError, match="has the parts 'train' and 'validation'; got 'test'. Pass one of them."):
        summaries.read("test", "Loss")


@pytest.mark.parametrize(("folder", "name"), [("", "app"), ("logs", ""), (None, "app"), ("logs", 3)])
def test_folder_and_name_must_be_texts(folder: Any, name: Any) -> None:
    with pytest.raises(ArgumentError, match=r"(log_dir|app_name) must be the name of a folder; got .*Pass a text."):
        Summaries(folder, name)


def test_summaries_go_to_any_fsspec_path() -> None:
    summaries = Summaries("memory://runs/logs/", "app")
    summaries.write([line(1, 2, val_loss=0.5)], [trace(2, 1)], 1)
    summaries.write([line(2, 1, val_loss=0.5)], [trace(0)], 3)
    fs = fsspec.filesystem("memory")
    assert len(fs.ls("/runs/logs/app/train")) == len(fs.ls("/runs/logs/app/validation")) == 2
    assert [point[:2] for point in summaries.read("train", "Loss") or []] == [[1, 2], [2, 1], [3, 0]]
    fs.rm("/runs", recursive=True)


def test_file_that_is_still_written_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    summaries = Summaries(tmp_path, "app")
    summaries.write([line(1, 3)], [trace(3, 2, 1)], 1)
    (file,) = Path(summaries.folder("train")).iterdir()
    points = summaries.read("train", "Loss") or []
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * 3 // 4])
    fewer = summaries.read("train", "Loss") or []
    assert 0 < len(fewer) < 3 and fewer == points[: len(fewer)]


def test_tensorboard_itself_reads_them_and_no_framework_is_loaded(tmp_path: Path, run_program: Callable) -> None:
    """Its accumulator drops what a later session replaces, and `notf` keeps it from loading TensorFlow."""
    run_program(f"""
        import sys, types
        import numpy as np
        from orca.core.trace import Trace
        from orca.report.tensorboard import Summaries, SummaryPair

        summaries = Summaries({str(tmp_path)!r}, "app")
        def write(losses, first):
            line = {{"num_samples": 80, "batch_count": len(losses), "val_loss": 0.5, "val_accuracy": 0.75}}
            summaries.write([line], [Trace(np.array(losses), np.ones(len(losses)), 4.0, 1.7e9)], first)
        write([4.0, 3.0, 2.0], 1)
        write([9.0, 8.0], 3)
        assert summaries.read("train", "Loss")[-1][:2] == [4, 8]
        assert not {{"torch", "tensorflow", "keras"}} & set(sys.modules)

        sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
        import tensorboard.compat
        tensorboard.compat.notf = sys.modules["tensorboard.compat.notf"]
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        for part, tags in (("train", ["LearningRate", "Loss", "Throughput"]), ("validation", ["Accuracy", "Loss"])):
            events = EventAccumulator(summaries.folder(part)).Reload()
            told = {{tag: [[e.step, e.value, e.wall_time] for e in events.Scalars(tag)]
                    for tag in events.Tags()["scalars"]}}
            assert sorted(told) == tags, told
            assert told == {{tag: summaries.read(part, tag) for tag in tags}}
        assert "tensorflow" not in sys.modules
    """)


def test_missing_tensorboard_is_named_with_its_extra(tmp_path: Path, run_program: Callable) -> None:
    said = run_program(f"""
        import sys
        import numpy as np
        sys.modules["tensorboard"] = None
        from orca.core.trace import Trace
        from orca.errors import MissingDependency
        from orca.report.tensorboard import Summaries, SummaryPair
        try:
            line = {{"batch_count": 1, "num_samples": 1}}
            Summaries({str(tmp_path)!r}, "app").write([line], [Trace(np.ones(1), np.ones(1), 1.0, 1.0)], 1)
        except MissingDependency as error:
            print(error)
    """)
    assert "needs the package 'tensorboard'" in said.stdout
    assert "pip install 'orca-dl[tensorboard]'" in said.stdout


def test_every_step_of_a_long_run_is_written(tmp_path: Path) -> None:
    steps = 20_000
    Summaries(tmp_path, "app").write([line(1, steps)], [trace(*np.linspace(1, 0, steps))], 1)
    assert len(Summaries(tmp_path, "app").read("train", "Loss") or []) == steps


def test_rows_a_second_are_unknown_without_time_or_rows() -> None:
    assert rows_a_second(line(1, 2), None) is None
    assert rows_a_second(line(1, 2), trace(1, 2, seconds=0.0)) is None
    assert rows_a_second({"batch_count": 2}, trace(1, 2)) is None
    assert rows_a_second(line(1, 2), trace(1, 2)) == 20


def test_traces_belong_to_the_last_lines() -> None:
    lines, last = [line(1, 1), line(2, 1)], trace(1)
    assert with_traces(lines, [last]) == [(lines[0], None), (lines[1], last)]
    with pytest.raises(ValueError, match="got 2 traces for 1 epochs"):
        with_traces(lines[:1], [last, last])
