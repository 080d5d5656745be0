"""History: the results of an Estimator's fits. Owns the record of all epochs, its picture and its report.

`est.history` grows with every fit. It is a list of the lines that fit returned, with the steps between them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, overload

import numpy as np

from orca.core.trace import Epochs, Trace, with_traces
from orca.errors import ArgumentError, MissingDependency
from orca.report.html import page, section
from orca.storage import files


class RunHistory:
    """Every epoch of all fits, to draw and to report on.

    Attributes:
        about: Parameters of the run, for the report.
        epochs: A dict of statistics an epoch, over all fits, as fit returns them.
        traces: The Trace of each epoch, step by step; None where there is none.
    """

    def __init__(self, about: dict[str, Any] | None = None) -> None:
        self.about: dict[str, Any] = dict(about or {})
        self.epochs: list[dict[str, Any]] = []
        self.traces: list[Trace | None] = []

    def add(self, lines: Sequence[dict[str, Any]], traces: Sequence[Trace]) -> None:
        """Append the results of a fit.

        Args:
            lines: A dict of statistics an epoch.
            traces: The traces of its last epochs: of all, unless the fit was resumed.

        Raises:
            ValueError: There are more traces than lines.
        """
        for line, trace in with_traces(lines, traces):
            self.epochs.append(dict(line))
            self.traces.append(trace)

    @property
    def losses(self) -> np.ndarray:
        """Return the loss of every step that is known, over all fits."""
        return np.concatenate([np.zeros(0), *(trace.losses for trace in self.traces if trace)])

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the loss of every step and epoch, and the metrics below.

        No window opens; a notebook shows the figure where it is the last thing in a cell.

        Args:
            path: A file to save it to as well: a .png, .svg or .pdf file at any fsspec path.

        Returns:
            A matplotlib Figure, to be changed or saved again.

        Raises:
            ArgumentError: Nothing was trained yet, or the file is of a kind that cannot be written.
            MissingDependency: matplotlib is not installed.
        """
        self._check("plot")
        curves = _curves()
        kind = None if path is None else PurePosixPath(os.fspath(path)).suffix.removeprefix(".").lower()
        if kind is not None and kind not in curves.file_kinds():
            raise ArgumentError(
                f"plot cannot write a file of the kind {kind!r}; got the path {os.fspath(path or '')!r}. "
                "End it with .png, .svg or .pdf.",
                code="bad-plot-format",
            )
        figure = curves.draw(self._pairs())
        if path is not None and kind is not None:
            _write(path, curves.picture_bytes(figure, kind))
        return figure

    def report(
        self, path: str | os.PathLike[str], title: str = "Training run", about: dict[str, Any] | None = None
    ) -> str:
        """Write a report of the run: one HTML file with the picture in it, which needs nothing else to be read.

        Args:
            path: The file to write; any fsspec path.
            title: Its headline.
            about: Parameters of the run, shown after those in `self.about`.

        Returns:
            The path.

        Raises:
            ArgumentError: Nothing was trained yet.
            MissingDependency: matplotlib is not installed.
        """
        self._check("report")
        pairs = self._pairs()
        text = page(title, pairs, {**self.about, **(about or {})}, _curves().inline_svg(pairs))
        _write(path, text.encode())
        return os.fspath(path)

    def _repr_html_(self) -> str:
        """Return the history for a notebook: the picture, where matplotlib is installed, and the table."""
        if not self.epochs:
            return "<p>No epoch was trained yet.</p>"
        try:
            picture = _curves().inline_svg(self._pairs())
        except MissingDependency:
            picture = ""
        return section(self._pairs(), picture)

    def __repr__(self) -> str:
        last = f", last {self.epochs[-1]}" if self.epochs else ""
        return f"<RunHistory of {len(self)} epochs{last}>"

    def __len__(self) -> int:
        return len(self.epochs)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.epochs)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self.epochs[index]

    def _pairs(self) -> Epochs:
        return list(zip(self.epochs, self.traces, strict=True))

    def _check(self, verb: str) -> None:
        if not self.epochs:
            raise ArgumentError(
                f"{verb} needs at least one epoch; the history has none. Call fit() first.", code="empty-history"
            )


def _curves() -> Any:
    try:
        from orca.report import plot as curves
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "matplotlib":
            raise
        raise MissingDependency.of("matplotlib", "plot", "drawing a history") from error
    return curves


def _write(path: str | os.PathLike[str], data: bytes) -> None:
    files.write(os.fspath(path), {"": data}, names=None)
