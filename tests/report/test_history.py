"""RunHistory: the record of all fits, its picture, its report, and what a notebook shows."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from orca.core.trace import Trace
from orca.errors import ArgumentError
from orca.report.history import RunHistory
from programs import program_of
from programs import run_program as run_page

pytest.importorskip("matplotlib")

NOW = 1_700_000_000.0


def filled(epochs: int = 3, steps: int = 4, **about: Any) -> RunHistory:
    """Return a history of one fit: losses fall from epoch to epoch, the learning rate stays."""
    history = RunHistory(about)
    lines = [
        {
            "num_samples": 1000,
            "epoch": epoch,
            "batch_count": steps,
            "train_loss": 1.5 / epoch,
            "last_train_loss": 1 / epoch,
            "val_loss": 2 / epoch,
            "val_num_samples": 10,
            "val_accuracy": 1 - 0.5 / epoch,
            "profile": {"mean_fwd_s": 0.1},
        }
        for epoch in range(1, epochs + 1)
    ]
    traces = [Trace(np.linspace(2, 1, steps) / epoch, np.full(steps, 0.1), 2.0, NOW) for epoch in range(1, epochs + 1)]
    history.add(lines, traces)
    return history


def curves(panel: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in panel.get_lines()}


class Page(HTMLParser):
    """Hold what a page has: its cells row by row, its tags, and everything it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [
            v or "" for k, v in attrs if k in ("src", "href", "xlink:href") and not (v or "").startswith("#")
        ]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


# The record


def test_history_is_the_list_of_all_epochs_of_all_fits() -> None:
    history = filled(2)
    more = filled(1)
    history.add(more.epochs, more.traces)  # type: ignore[arg-type]
    assert len(history) == len(history.epochs) == len(history.traces) == 3
    assert [line["epoch"] for line in history] == [1, 2, 1]
    assert history[-1] == more.epochs[0] and history[:2] == history.epochs[:2]
    assert len(history.losses) == 12
    assert "3 epochs" in repr(history) and "0 epochs" in repr(RunHistory())
    assert pickle.loads(pickle.dumps(history)).epochs == history.epochs


def test_lines_of_an_interrupted_fit_come_without_a_trace() -> None:
    history = RunHistory()
    whole = filled(3)
    history.add(whole.epochs, whole.traces[1:])  # type: ignore[arg-type]
    assert history.traces == [None, *whole.traces[1:]]
    assert len(history.losses) == 8


def test_what_the_user_does_to_a_line_does_not_reach_the_history() -> None:
    history, line = RunHistory(), {"train_loss": 1.0}
    history.add([line], [])
    line["train_loss"] = 5.0
    assert history[0] == {"train_loss": 1.0}


# The picture


def test_plot_shows_losses_of_steps_and_epochs_and_metrics_below() -> None:
    panels = filled().plot().axes
    assert [panel.get_ylabel() for panel in panels] == ["loss", "metrics"]
    losses = curves(panels[0])
    assert losses["loss of a step"][0] == pytest.approx(np.arange(1, 13) / 4)
    assert losses["loss of a step"][1][4:8] == pytest.approx(np.linspace(2, 1, 4) / 2)
    assert losses["train_loss"] == ([1, 2, 3], [1.5, 0.75, 0.5])
    assert losses["val_loss"][1] == [2 / 1, 2 / 2, 2 / 3]
    assert curves(panels[1]) == {"val_accuracy": ([1, 2, 3], [1 - 0.5, 1 - 0.25, 1 - 0.5 / 3])}


def test_plot_shows_a_learning_rate_that_changes() -> None:
    history = RunHistory()
    history.add([{"train_loss": 1.0, "batch_count": 2}], [Trace(np.ones(2), np.array([0.1, 0.2]), 1.0, NOW)])
    panels = history.plot().axes
    assert [panel.get_ylabel() for panel in panels] == ["loss", "learning rate"]
    assert list(panels[1].get_lines()[0].get_ydata()) == [0.1, 0.2]


def test_epochs_without_a_value_or_a_trace_leave_a_gap_and_their_place() -> None:
    history = RunHistory()
    lines = [{"train_loss": 1.0, "batch_count": 4}, {"train_loss": 0.5, "batch_count": 4, "val_loss": 0.7}]
    history.add(lines, [Trace(np.array([3.0, 2.0]), np.zeros(0), 1.0, NOW)])
    losses = curves(history.plot().axes[0])
    assert losses["val_loss"] == ([2], [0.7])
    assert losses["loss of a step"] == ([1.75, 2.0], [3.0, 2.0])


def test_long_runs_are_thinned_and_keep_their_peaks() -> None:
    history = RunHistory()
    losses = np.ones(300_000)
    losses[[1234, 250_000]] = 50, -50
    losses[100_000:110_000] = np.nan
    history.add([{"train_loss": 1.0, "batch_count": len(losses)}], [Trace(losses, np.zeros(0), 1.0, NOW)])
    places, values = curves(history.plot().axes[0])["loss of a step"]
    assert len(values) <= 2000 and np.all(np.diff(places) > 0)
    assert np.nanmax(values) == 50 and np.nanmin(values) == -50 and np.isnan(values).any()
    assert len(history._repr_html_()) < 300_000


@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG"), ("new/b.SVG", b"<?xml"), ("c.pdf", b"%PDF")])
def test_plot_is_saved_as_its_name_says(tmp_path: Path, name: str, begin: bytes) -> None:
    filled().plot(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begin)


def test_files_go_to_any_fsspec_path() -> None:
    fs = fsspec.filesystem("memory")
    filled().plot("memory://pictures/loss.png")
    assert filled().report("memory://pictures/run.html") == "memory://pictures/run.html"
    assert fs.cat_file("/pictures/loss.png").startswith(b"\x89PNG")
    assert fs.cat_file("/pictures/run.html").startswith(b"<!doctype html>")
    fs.rm("/pictures", recursive=True)


@pytest.mark.parametrize("name", ["run.doc", "run"])
def test_file_of_another_kind_is_refused_before_it_is_drawn(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        ArgumentError, match=r"cannot write a file of the kind '(doc|)'; got the path .*End it with .png"
    ):
        filled().plot(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_pyplot_and_the_users_settings_are_left_alone(run_program: Callable) -> None:
    said = run_program("""
        import sys
        import numpy as np
        from orca.core.trace import Trace
        from orca.report.history import RunHistory
        history = RunHistory()
        history.add([{"train_loss": 1.0, "batch_count": 2}], [Trace(np.ones(2), np.ones(2), 1.0, 1.0)])
        assert "matplotlib" not in sys.modules
        figure = history.plot("loss.png")
        history.report("run.html")
        assert "matplotlib.pyplot" not in sys.modules
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        before = dict(matplotlib.rcParams)
        mine = plt.figure()
        history.plot()
        history._repr_html_()
        assert plt.get_fignums() == [mine.number] and plt.gcf() is mine
        assert dict(matplotlib.rcParams) == before
        assert isinstance(figure, matplotlib.figure.Figure) and figure._repr_png_().startswith(b"\\x89PNG")
        print("done")
    """)
    assert said.stdout == "done\n"


# The report


def test_report_is_one_file_with_the_picture_the_table_and_the_parameters(tmp_path: Path) -> None:
    path = str(tmp_path / "folder" / "run.html")
    history = filled(lr=0.1, backend="local")
    assert history.report(path, title="Digits", about={"hidden": [64, 32]}) == path
    text = Path(path).read_text()
    page = Page(text)
    assert "<title>Digits</title>" in text and "<h1>Digits</h1>" in text
    assert page.tags.count("svg") == 1 and "val_accuracy" in text[text.index("<svg") : text.index("</svg>")]
    head = next(row for row in page.rows if row[:1] == ["epoch"])
    assert head == ["epoch", "rows", "steps", "train_loss", "val_loss", "val_accuracy", "seconds", "rows/s"]
    assert page.rows[page.rows.index(head) + 2] == ["2", "1,000", "4", "0.75", "1", "0.75", "2", "500"]
    facts = {row[0]: row[1] for row in page.rows if len(row) == 2}
    assert facts["epochs"] == "3" and facts["steps"] == "12" and facts["training time"] == "6 s"
    assert facts["rows/s"] == "500" and facts["val_loss"] == "0.6667 (lowest 0.6667, epoch 3)"
    assert facts["lr"] == "0.1" and facts["backend"] == "local" and facts["hidden"] == "[64, 32]"
    assert {"python", "numpy", "orca-dl"} <= set(facts)
    assert history.about == {"lr": 0.1, "backend": "local"}


def test_report_loads_nothing_and_suits_light_and_dark(tmp_path: Path) -> None:
    text = Path(filled().report(tmp_path / "run.html")).read_text()
    page = Page(text)
    assert page.loads == [] and not {"script", "link", "iframe", "img", "object"} & set(page.tags)
    assert not re.findall(r"url\((?!#)|@import", text)
    assert {address for address in re.findall(r"https?://[^\"<> ]+", text)} <= {  # names, never fetched
        "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink",
    }  # fmt: skip
    assert "color-scheme: light dark" in text
    svg = text[text.index("<svg") : text.index("</svg>")]
    assert "currentColor" in svg and not re.findall(r"(?:fill|stroke): (?:#000000|#ffffff|black|white)\b", svg)


def test_report_escapes_everything_it_is_given(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>&$a$"
    history = RunHistory({evil: evil})
    history.add([{"epoch": 1, "train_loss": 0.5, f"val_{evil}": 1.0}], [])
    for text in (Path(history.report(tmp_path / "run.html", title=evil)).read_text(), history._repr_html_()):
        assert "<script" not in text and "&lt;script&gt;" in text
    assert any(evil in cell for row in Page((tmp_path / "run.html").read_text()).rows for cell in row)


def test_report_takes_lines_that_say_little_and_losses_that_are_no_numbers(tmp_path: Path) -> None:
    history = RunHistory()
    history.add([{"train_loss": float("nan")}, {"train_loss": 3.0}, {"train_loss": float("inf")}], [])
    rows = Page(Path(history.report(tmp_path / "run.html")).read_text()).rows
    assert ["nan", "", ""] in rows
    assert ["train_loss", "inf (lowest 3, epoch 2)"] in rows
    assert not any(row[0] in ("training time", "rows/s") for row in rows if len(row) == 2)


def test_notebook_shows_picture_and_table() -> None:
    shown = filled()._repr_html_()
    assert shown.count("<svg") == 1 and "<td>1,000</td>" in shown
    assert not re.search(r"(?m)^\s*(body|h1|:root|\*)\b", shown)  # no style for what is not ours
    assert "No epoch was trained yet" in RunHistory()._repr_html_()


# What can go wrong


def test_empty_history_says_to_fit_first(tmp_path: Path) -> None:
    for verb, call in (("plot", RunHistory().plot), ("report", lambda: RunHistory().report(tmp_path / "run.html"))):
        with pytest.raises(
            ArgumentError, match=rf"{verb} needs at least one epoch; the history has none. Call fit\(\)"
        ):
            call()


def test_missing_matplotlib_is_named_with_its_extra_and_the_table_is_shown_without(run_program: Callable) -> None:
    said = run_program("""
        import sys
        sys.modules["matplotlib"] = None
        from orca.errors import MissingDependency
        from orca.report.history import RunHistory
        history = RunHistory()
        history.add([{"train_loss": 0.125}], [])
        for call in (history.plot, lambda: history.report("run.html")):
            try:
                call()
            except MissingDependency as error:
                print(error)
        shown = history._repr_html_()
        assert "0.125" in shown and "<svg" not in shown
    """)
    assert said.stdout.count("drawing a history needs the package 'matplotlib'") == 2
    assert "pip install 'orca-dl[plot]'" in said.stdout


# The page of the documentation


@pytest.mark.full
def test_programs_of_the_documentation_run() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    page = Path(__file__).resolve().parents[2] / "docs" / "history.md"
    run_page(program_of(page))
