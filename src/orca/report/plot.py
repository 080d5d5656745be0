"""Plot: a run drawn by matplotlib. Owns the panels, their curves, and how many points a curve has.

Needs matplotlib, so it is imported where something is drawn. Figures are made without pyplot: no window opens, and
the user's own figures of pyplot are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from numbers import Real
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from orca.core.trace import Epochs, steps_of

POINTS = 2000  # of a curve: more than a screen has columns, and an SVG of some kilobytes
COLORS = ("#3182bd", "#e6701e", "#2f9e6e", "#b5529c", "#8c6bd1", "#c39a1c")  # to be told apart on white and on black
INK = "#010203"  # stands in for the text colour of the page
NOT_METRICS = {"train_loss", "val_loss", "val_num_samples", "epoch", "num_samples", "batch_count", "last_train_loss"}


class Picture(Figure):
    """A figure that a notebook shows, also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        return picture_bytes(self, "png")


def draw(epochs: Epochs, ink: str | None = None) -> Picture:
    """Draw the losses, the metrics below them, and the learning rate where it changes.

    Args:
        epochs: The lines of a history, each with its trace.
        ink: Colour of text and lines, for a figure without a background of its own.
    """
    lines = [line for line, _ in epochs]
    metrics = metrics_in(lines)
    rates = np.concatenate([np.zeros(0), *(trace.rates for _, trace in epochs if trace)])
    changes = len(rates) > 1 and not np.all(rates == rates[0])
    heights = [3, *([2] if metrics else []), *([1.2] if changes else [])]
    figure = Picture(figsize=(8, 0.9 + 0.85 * sum(heights)), dpi=120, layout="constrained")
    panels = list(figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    _draw_losses(panels[0], epochs)
    if metrics:
        for number, name in enumerate(metrics):
            style = {"color": COLORS[number % len(COLORS)], "linestyle": "--" if name.startswith("train_") else "-"}
            _draw_points(panels[1], lines, name, **style)
        panels[1].set_ylabel("metrics")
    if changes:
        panels[-1].plot(*_by_step(epochs, "rates"), color=COLORS[4], linewidth=1)
        panels[-1].set_ylabel("learning rate")
    panels[-1].set_xlabel("epoch")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    for panel in panels:
        if panel.get_legend_handles_labels()[1]:
            panel.legend(frameon=False, labelcolor=ink)
        panel.grid(alpha=0.25)
        if ink:
            _paint(panel, ink)
    return figure


def picture_bytes(figure: Figure, kind: str) -> bytes:
    """Return a figure as a file of this kind: png, svg, pdf, ..."""
    file = BytesIO()
    figure.savefig(file, format=kind)
    return file.getvalue()


def inline_svg(epochs: Epochs) -> str:
    """Return the drawing as an <svg> element without a background, in the text colour of the page it is put into."""
    file = BytesIO()
    # Text as text is small and can be searched; TeX would make it paths, and needs a program besides.
    with matplotlib.rc_context({"svg.fonttype": "none", "text.usetex": False, "font.family": ["sans-serif"]}):
        draw(epochs, INK).savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue().decode()
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return text.replace(INK, "currentColor")


def file_kinds() -> set[str]:
    """Return the kinds of files that a figure can be saved as."""
    return set(Figure().canvas.get_supported_filetypes())


def metrics_in(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of the metrics in a history, in the order they came."""
    names = dict.fromkeys(name for line in lines for name, value in line.items() if _is_number(value))
    return [name for name in names if name.startswith(("train_", "val_")) and name not in NOT_METRICS]


def _draw_losses(panel: Any, epochs: Epochs) -> None:
    lines = [line for line, _ in epochs]
    steps, losses = _by_step(epochs, "losses")
    if len(losses):
        panel.plot(steps, losses, color=COLORS[0], linewidth=0.7, alpha=0.45, label="loss of a step")
    _draw_points(panel, lines, "train_loss", color=COLORS[0])
    _draw_points(panel, lines, "val_loss", color=COLORS[1])
    panel.set_ylabel("loss")


def _draw_points(panel: Any, lines: Sequence[dict[str, Any]], name: str, **style: Any) -> None:
    """Draw a value of each epoch where it has one: with validation_freq, not all do."""
    points = [(number, line[name]) for number, line in enumerate(lines, 1) if _is_number(line.get(name))]
    label = name.replace("$", r"\$")  # no formula begins here
    if points:
        panel.plot(*zip(*points, strict=True), marker="o", markersize=3.5, linewidth=1.6, label=label, **style)


def _by_step(epochs: Epochs, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the place of each step on the axis of epochs, and its value; epoch 3 goes from 2 to 3."""
    places, values = [np.zeros(0)], [np.zeros(0)]
    for number, (line, trace) in enumerate(epochs):
        series = np.zeros(0) if trace is None else np.asarray(getattr(trace, name), float)
        steps = max(steps_of(line, trace), len(series), 1)
        places.append(number + np.arange(steps - len(series) + 1, steps + 1) / steps)
        values.append(series)
    return _thinned(np.concatenate(places), np.concatenate(values))


def _thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest point of each of some stretches, so that no peak is lost."""
    if len(y) <= POINTS:
        return x, y
    points: list[int] = []
    for stretch in np.array_split(np.arange(len(y)), POINTS // 2):
        finite = stretch[np.isfinite(y[stretch])]
        if len(finite):
            points += sorted({int(finite[y[finite].argmin()]), int(finite[y[finite].argmax()])})
        else:
            points.append(int(stretch[0]))  # a gap
    return x[points], y[points]


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _paint(panel: Any, ink: str) -> None:
    panel.tick_params(which="both", color=ink, labelcolor=ink)
    panel.grid(color=ink, alpha=0.2)
    for part in (panel.xaxis.label, panel.yaxis.label, panel.xaxis.get_offset_text(), panel.yaxis.get_offset_text()):
        part.set_color(ink)
    for spine in panel.spines.values():
        spine.set_edgecolor(ink)
