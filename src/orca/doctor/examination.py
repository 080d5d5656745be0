"""Examination: one look at the cluster that is up. Owns the case, the time limits and the order of the checks.

Nothing here waits without end: a check that takes too long or fails is itself a finding.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from orca.cluster.proof import describe
from orca.cluster.spark import active_session, is_connect
from orca.core.engine import Settings
from orca.core.source import Shards
from orca.doctor.finding import Diagnosis, Finding, error, summary, warn, without_secrets
from orca.doctor.survey import Report, Survey, nothing
from orca.errors import OrcaError
from orca.registry import engine_class
from orca.storage.files import probe_file

T = TypeVar("T")

CHECK_WITHIN = 10.0  # seconds for a check on the driver
SURVEY_WITHIN = 60.0  # seconds for the ranks to start, and then for each step they take
_END_WITHIN = 30.0  # seconds for an engine to end ranks that took too long

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Case:
    """The cluster to be examined, and the use it is meant for."""

    engine: str  # that would run the ranks: "spark", "ray" or "local"
    workers: int = 1
    nodes: int = 1
    session: Any = None  # of Spark, where the engine is Spark's
    data: int | None = None  # bytes; None where nobody knows
    model: int | None = None  # bytes of the weights; None where nobody knows
    model_dir: str | None = None
    limit: float = SURVEY_WITHIN  # seconds for the ranks

    @property
    def master(self) -> str:
        """Return Spark's master; "" without Spark."""
        return self.setting("spark.master")

    def setting(self, name: str, default: str = "") -> str:
        """Return a setting of Spark; the default where it has no value, or there is no Spark."""
        with suppress(Exception):  # a Connect server may refuse to tell
            value = self.session.conf.get(name, None)
            return default if value is None else str(value)
        return default

    def settings(self) -> dict[str, str]:
        """Return all settings of Spark, some of which must not be printed."""
        if self.session is None or is_connect(self.session):
            return {}
        with suppress(Exception):
            return dict(self.session.sparkContext.getConf().getAll())
        return {}


@dataclass(frozen=True)
class SurveyOutcome:
    """The outcome of a survey."""

    ranks: int  # that were started
    reports: tuple[Report, ...] = ()  # in rank order; none where the run failed
    problem: Exception | None = None  # why it failed
    marked: bool = False  # whether the driver put a file into model_dir for the ranks to see
    seconds: float = 0.0


class TimeOver(OrcaError):
    """A call that took longer than it may."""


def examined(
    engine: str, workers_per_node: int, before: Iterable[Finding] = (), look_around: bool = True, **purpose: Any
) -> tuple[Case | None, Diagnosis]:
    """Return the case of the cluster that is up, None where there is none, and all findings.

    Args:
        engine: The engine that would run the ranks.
        workers_per_node: Workers on each node.
        before: Findings that were made before.
        look_around: Whether to start the ranks; without, only the driver looks.
        purpose: The fields of the case that name the purpose of the cluster.
    """
    try:
        workers = engine_class(engine).on_cluster(workers_per_node).workers
    except OrcaError as problem:
        start = {"spark": 'init_orca_context(cluster_mode="local", cores=4)', "ray": 'init_orca_context(runtime="ray")'}
        what = f"there is no cluster for the engine {engine!r}"
        return None, Diagnosis((*before, error("engine", what, summary(problem), start.get(engine, ""))))
    session = active_session() if engine == "spark" else None
    case = Case(engine, workers, max(1, workers // workers_per_node), session, **purpose)
    findings = [*before, *diagnose(case, look_around)]
    return case, Diagnosis(without_secrets(findings, case.settings()))


def diagnose(case: Case, look_around: bool) -> Iterable[Finding]:
    """Return the findings of all checks of a case."""
    from orca.doctor import driver, ranks

    findings: list[Finding] = []
    for check in driver.CHECKS[case.engine]:
        findings += checked(check.__name__, lambda check=check: check(case))  # type: ignore[misc]
    if look_around:
        count = case.workers
        with suppress(Exception):  # a check of its own tells why
            count = limited(lambda: driver.ranks_to_start(case), CHECK_WITHIN)
        outcome = survey(case, count) if count else SurveyOutcome(0)
        for look in ranks.CHECKS:
            findings += checked(look.__name__, lambda look=look: look(case, outcome))  # type: ignore[misc]
    return findings


def checked(name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of a check; that it failed or took too long is one, too."""
    name = name.replace("_", " ")
    try:
        return limited(lambda: list(check()), CHECK_WITHIN)
    except TimeOver:
        return [warn(name, f"could not be checked within {CHECK_WITHIN:g} s")]
    except Exception as problem:
        logger.debug("the check %s failed", name, exc_info=True)
        return [warn(name, "could not be checked", summary(problem))]


def limited(call: Callable[[], T], seconds: float) -> T:
    """Return the result of a call, but wait no longer than this for it; its thread may keep running."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as problem:
            future.set_exception(problem)

    threading.Thread(target=work, name="orca-doctor", daemon=True).start()
    if not wait([future], seconds).done:
        raise TimeOver(f"it took longer than {seconds:g} s.")
    return future.result()


def survey(case: Case, count: int) -> SurveyOutcome:
    """Start this many ranks as training would, let them look around and join, and return their reports."""
    start, spark = time.monotonic(), case.engine == "spark"
    silent: dict[str, Any] = {"progress": False, "log_level": logging.CRITICAL, "log_to_driver": False}
    settings = Settings(stall_timeout=case.limit, start_timeout=case.limit, **silent)
    with ExitStack() as stack:
        mark = ""
        if case.model_dir:
            with suppress(Exception):  # a check of its own tells why
                mark = stack.enter_context(probe_file(case.model_dir))
        job = Survey(describe(), case.model_dir, mark)
        # Spark makes the rows where they are needed: dealing data out would need executors that reach each other.
        native = case.session.range(0, count, 1, count) if spark else None
        shards = Shards(nothing, list, "spark" if spark else None, native)
        kind = engine_class(case.engine)
        engine = kind(case.session, count) if spark else kind(count)
        reports, failure = (), None
        try:
            # The engine ends ranks that do not start, or do not move, within the limit; this is for one that hangs.
            reports = tuple(limited(lambda: engine.run(job, shards, settings), 2 * case.limit + _END_WITHIN))
        except Exception as problem:
            failure = problem
    return SurveyOutcome(count, reports, failure, bool(mark), time.monotonic() - start)
