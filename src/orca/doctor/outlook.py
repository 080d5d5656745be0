"""Outlook: what a fit would do. Owns how its plan is told, and the size of data and model where that costs nothing."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orca.core.tree import flatten
from orca.doctor.examination import CHECK_WITHIN, SURVEY_WITHIN, Case, case_of, diagnose, limited
from orca.doctor.finding import Diagnosis, Finding, error, ok, said, warn
from orca.errors import OrcaError

_UNKNOWN = 1 << 60  # Spark tells such sizes where it does not know
_DATA_WITHIN = CHECK_WITHIN

SYNCS = {
    "replicated": "every rank holds the model; gradients are averaged while they are computed",
    "sharded": "every rank updates its slice of the weights and holds that slice of the optimizer's state",
    "fully sharded": "weights, gradients and optimizer state are cut among the ranks (FSDP2)",
    "horovod": "every rank holds the model; Horovod averages the gradients",
}


@dataclass(frozen=True)
class Outlook:
    """Tell what a fit would do, in words, a line each; print it."""

    lines: tuple[tuple[str, str], ...]

    def __getitem__(self, name: str) -> str:
        return dict(self.lines)[name]

    def __str__(self) -> str:
        column = max((len(name) for name, _ in self.lines), default=0)
        return "\n".join(f"{name:<{column}}  {value}" for name, value in self.lines)


@dataclass(frozen=True)
class Explanation:
    """Hold what a fit would do and what the doctor found; print it, or show it in a notebook."""

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
        """Return both as tables for notebooks."""
        rows = "".join(
            f'<tr><td>{html.escape(name)}</td><td style="text-align:left">{html.escape(value)}</td></tr>'
            for name, value in self.outlook.lines
        )
        return f"<table>{rows}</table>{self.diagnosis._repr_html_()}"


@dataclass(frozen=True)
class Plan:
    """Say what is to be explained.

    Attributes:
        engine: The engine of the Estimator.
        workers_per_node: Workers on each node.
        sync: How replicas agree.
        model_dir: Where checkpoints would go.
        model: Bytes of the weights; None where nobody knows.
        limit: Seconds for the ranks.
    """

    engine: str
    workers_per_node: int
    sync: str
    model_dir: str | None = None
    model: int | None = None
    limit: float = SURVEY_WITHIN


def explain(plan: Plan, source: Callable[[], Any], look_around: bool = True) -> Explanation:
    """Return what a fit of this data would do here, and what would keep it from doing so.

    Args:
        plan: The plan.
        source: Wraps the data; what it raises is a finding.
        look_around: Whether to start the ranks.
    """
    found: list[Finding] = []
    wrapped: Any = None
    try:
        wrapped = source()
    except OrcaError as problem:
        found.append(error("data", "the data does not fit", said(problem), _advice(problem)))
    rows, size = (None, None) if wrapped is None else limited(lambda: extent(wrapped), CHECK_WITHIN, (None, None))
    case: Case | None = None
    try:
        case = case_of(
            plan.engine, plan.workers_per_node, data=size, model=plan.model, model_dir=plan.model_dir, limit=plan.limit
        )
        diagnosis = diagnose(case, found, look_around)
    except OrcaError as problem:
        from orca.doctor import no_cluster

        diagnosis = Diagnosis((*found, no_cluster(plan.engine, problem)))
    return Explanation(_outlook(plan, case, wrapped, rows, size, diagnosis), diagnosis)


def extent(source: Any) -> tuple[int | None, int | None]:
    """Return rows and bytes of a source, None where it would cost something to know them."""
    measure = _MEASURES.get(type(source).__name__)
    return (None, None) if measure is None else measure(source)


def weight_of(learner: Any, state: Any) -> int | None:
    """Return the bytes of a model's weights, None where it would have to be built first."""
    payload = getattr(state, "payload", None) or {}
    leaves = flatten(payload.get("models"))[0] if payload.get("models") else []
    sizes = [leaf.nbytes for leaf in leaves if hasattr(leaf, "nbytes")]
    model: Any = getattr(learner, "model", None)
    if not sizes and hasattr(model, "parameters"):  # torch
        sizes = [parameter.numel() * parameter.element_size() for parameter in model.parameters()]
    if not sizes and getattr(model, "built", False) and hasattr(model, "count_params"):  # Keras
        sizes = [4 * int(model.count_params())]
    return sum(sizes) if sizes else None


def size_at(path: str) -> tuple[list[Finding], int | None]:
    """Return what there is to say about data at a path, and its bytes where they are known."""
    from orca.doctor.driver import size
    from orca.doctor.survey import opened

    def measure() -> int | None:
        fs, place = opened(path)
        return int(fs.du(place)) if fs.exists(place) else None

    try:
        found = limited(measure, _DATA_WITHIN)
    except Exception as problem:
        fix = "the path as fsspec knows it: '/folder', 'hdfs://…', 's3://…'"
        return [warn("data", f"the size of {path!r} could not be told", said(problem), fix)], None
    if found is None:
        return [error("data", f"there is nothing at {path!r}", "no such file or folder", "--data …")], None
    return [ok("data", f"{size(found)} at {path!r}")], found


# Details


def _outlook(
    plan: Plan, case: Case | None, source: Any, rows: int | None, size: int | None, diagnosis: Diagnosis
) -> Outlook:
    from orca.doctor.driver import size as words

    ranks = case.workers if case else None
    lines = [("engine", plan.engine if case is None or not case.master else f"{plan.engine} at {case.master}")]
    if case is not None:
        lines.append(("ranks", f"{case.workers} ({plan.workers_per_node} on each of {case.nodes} node(s))"))
    if source is not None:
        kind = type(source).__name__.removesuffix("Source")
        known = [f"{rows} rows"] if rows is not None else ["rows are known after the first epoch"]
        known += [f"about {words(size)}"] if size is not None else []
        lines.append(("data", f"{kind}: {', '.join(known)}"))
        lines += _steps(source.batch_size, ranks, rows)
    lines.append(("sync", f"{plan.sync}: {SYNCS.get(plan.sync, 'as the backend says')}"))
    if plan.model is not None:
        lines.append(("model", f"{words(plan.model)} of weights"))
    devices = diagnosis.about("gpu")
    lines.append(("devices", devices[0].what if devices else "known when the ranks are looked at"))
    lines.append(("checkpoints", plan.model_dir or "none: no model_dir"))
    return Outlook(tuple(lines))


def _steps(batch_size: int | None, ranks: int | None, rows: int | None) -> list[tuple[str, str]]:
    if batch_size is None:
        return [("batch", "the data brings its own batches")]
    share = f", about {batch_size / ranks:.4g} of them on each rank" if ranks else ""
    lines = [("batch", f"{batch_size} rows a step{share}")]
    return lines if rows is None else [*lines, ("steps", f"{-(-rows // batch_size)} an epoch")]


def _advice(problem: BaseException) -> str:
    """Return the last sentence of an error of ours, which says what to do."""
    text = str(problem).strip().splitlines()[0]
    return text.split(". ")[-1]


def _of_arrays(source: Any) -> tuple[int | None, int | None]:
    leaves = flatten((source.x, source.y))[0]
    return source.rows, sum(leaf.nbytes for leaf in leaves if hasattr(leaf, "nbytes"))


def _of_loader(source: Any) -> tuple[int | None, int | None]:
    dataset = source.loader.dataset
    return (len(dataset) if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") else None), None


def _of_frame(source: Any) -> tuple[int | None, int | None]:
    """Ask Spark's planner, which looks at files and statistics and runs nothing."""
    if not hasattr(source.frame, "_jdf"):  # Spark Connect
        return None, None
    told = source.frame._jdf.queryExecution().optimizedPlan().stats()
    size, count = int(str(told.sizeInBytes())), told.rowCount()
    rows = int(str(count.get())) if count.isDefined() else None
    return rows, size if size < _UNKNOWN else None


def _of_dataset(source: Any) -> tuple[int | None, int | None]:
    """Return what Ray knows of a dataset that is computed already; counting any other would compute it."""
    data: Any = getattr(source, "data", None)
    if type(data).__name__ != "MaterializedDataset":
        return None, None
    return int(data.count()), int(data.size_bytes())


_MEASURES: dict[str, Callable[[Any], tuple[int | None, int | None]]] = {
    "ArraySource": _of_arrays,
    "PandasSource": lambda source: _of_arrays(source.arrays),
    "LoaderSource": _of_loader,
    "FrameSource": _of_frame,
    "DatasetSource": _of_dataset,
}
