"""Outlook: the plan of a fit in words. Owns its lines, and the size of a model where that costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orca.cluster.news import human
from orca.core.learner import Learner
from orca.core.source import Extent, Source
from orca.core.state import State
from orca.doctor.examination import CHECK_WITHIN, Case, examined, limited
from orca.doctor.finding import Diagnosis, Finding, advice, error, ok, summary, warn
from orca.errors import OrcaError
from orca.report.html import table
from orca.rows.tree import flatten
from orca.storage.files import filesystem

SYNCS = {
    "replicated": "every rank holds the model; gradients are averaged while they are computed",
    "sharded": "every rank updates its slice of the weights and holds that slice of the optimizer's state",
    "fully sharded": "weights, gradients and optimizer state are cut among the ranks (FSDP2)",
}


@dataclass(frozen=True)
class Outlook:
    """The plan of a fit in words, a line each; print it."""

    lines: tuple[tuple[str, str], ...]

    def __getitem__(self, name: str) -> str:
        return dict(self.lines)[name]

    def __str__(self) -> str:
        column = max((len(name) for name, _ in self.lines), default=0)
        return "\n".join(f"{name:<{column}}  {value}" for name, value in self.lines)


@dataclass(frozen=True)
class Explanation:
    """The plan of a fit and the doctor's findings; print it, or show it in a notebook."""

    outlook: Outlook
    diagnosis: Diagnosis

    @property
    def ok(self) -> bool:
        """Say whether training would start."""
        return self.diagnosis.ok

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return all findings."""
        return self.diagnosis.findings

    def __str__(self) -> str:
        return f"{self.outlook}\n\n{self.diagnosis}"

    def _repr_html_(self) -> str:
        return table(self.outlook.lines, style="text-align:left") + self.diagnosis._repr_html_()


def explain(
    source_of: Callable[[], Source],
    engine: str,
    workers_per_node: int,
    sync: str,
    look_around: bool = True,
    **purpose: Any,
) -> Explanation:
    """Return the plan of a fit of this data here, and the problems that would keep it from starting.

    Args:
        source_of: Wraps the data; its error is a finding.
        engine: The engine of the Estimator.
        workers_per_node: Workers on each node.
        sync: How replicas agree.
        look_around: Whether to start the ranks.
        purpose: model, model_dir and limit, as for a Case.
    """
    findings: list[Finding] = []
    source, extent = None, Extent()
    try:
        source = source_of()
    except OrcaError as problem:
        findings.append(error("data", "the data does not fit", summary(problem), advice(problem)))
    else:
        try:
            extent = limited(source.extent, CHECK_WITHIN)
        except Exception as problem:
            findings.append(warn("data", "its size could not be told", summary(problem)))
    case, diagnosis = examined(engine, workers_per_node, findings, look_around, data=extent.bytes, **purpose)
    devices = diagnosis.about("gpu")
    lines = [
        ("engine", f"{engine} at {case.master}" if case and case.master else engine),
        *([("ranks", f"{case.workers} ({workers_per_node} on each of {case.nodes} node(s))")] if case else []),
        *(_data(source, extent, case) if source else []),
        ("sync", f"{sync}: {SYNCS.get(sync, 'as the backend says')}"),
        *([("model", f"{human(purpose['model'])} of weights")] if purpose.get("model") is not None else []),
        ("devices", devices[0].what if devices else "known when the ranks are looked at"),
        ("checkpoints", purpose.get("model_dir") or "none: no model_dir"),
    ]
    return Explanation(Outlook(tuple(lines)), diagnosis)


def weight_of(learner: Learner, state: State | None) -> int | None:
    """Return the bytes of a model's weights, None where it would have to be built first."""
    leaves = [] if state is None else flatten(state.payload.get("models"))[0]
    sizes = [leaf.nbytes for leaf in leaves if hasattr(leaf, "nbytes")]
    return sum(sizes) if sizes else learner.weight_bytes()


def size_at(path: str) -> tuple[list[Finding], int | None]:
    """Return the findings about data at a path, and its bytes where they are known."""

    def measure() -> int | None:
        fs, place = filesystem(path)
        return int(fs.du(place)) if fs.exists(place) else None

    try:
        size = limited(measure, CHECK_WITHIN)
    except Exception as problem:
        fix = "the path as fsspec knows it: '/folder', 'hdfs://…', 's3://…'"
        return [warn("data", f"the size of {path!r} could not be told", summary(problem), fix)], None
    if size is None:
        return [error("data", f"there is nothing at {path!r}", "no such file or folder", "--data …")], None
    return [ok("data", f"{human(size)} at {path!r}")], size


def _data(source: Source, extent: Extent, case: Case | None) -> list[tuple[str, str]]:
    rows = "rows are known after the first epoch" if extent.rows is None else f"{extent.rows} rows"
    size = "" if extent.bytes is None else f", about {human(extent.bytes)}"
    lines = [("data", f"{type(source).__name__.removesuffix('Source')}: {rows}{size}")]
    if source.batch_size is None:
        return [*lines, ("batch", "the data brings its own batches")]
    share = f", about {source.batch_size / case.workers:.4g} of them on each rank" if case else ""
    lines.append(("batch", f"{source.batch_size} rows a step{share}"))
    return lines if extent.rows is None else [*lines, ("steps", f"{-(-extent.rows // source.batch_size)} an epoch")]
