"""Examination: one look at the cluster that is up. Owns the case, the time limits and the order of the checks.

Nothing here waits without end: a check that takes too long or fails is itself a finding.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from orca.core.engine import Settings
from orca.core.source import Shards
from orca.core.telemetry import Hub
from orca.core.wire import Log
from orca.doctor.finding import ERROR, Diagnosis, Finding, said, warn, without_secrets
from orca.doctor.survey import Joining, Number, Report, Survey, unpacked, written
from orca.errors import ArgumentError, OrcaError
from orca.registry import ENGINES, backend_of, engine_class

T = TypeVar("T")

CHECK_WITHIN = 10.0  # seconds for a check on the driver
SURVEY_WITHIN = 60.0  # seconds for all ranks to start, look around and join
_GOING_WITHIN = 10.0  # seconds for ranks to end that were told to
_LOOPBACK = "127.0.0.1"
_HIDDEN = "orca-doctor"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Case:
    """Say what is to be examined.

    Attributes:
        engine: The engine that would run the ranks: "spark", "ray" or "local".
        workers: Ranks.
        nodes: Nodes they are spread over.
        session: The Spark session, where the engine is Spark's.
        data: Bytes of the data; None where nobody knows.
        model: Bytes of the weights; None where nobody knows.
        model_dir: Where checkpoints would go.
        limit: Seconds for the ranks.
    """

    engine: str
    workers: int = 1
    nodes: int = 1
    session: Any = None
    data: int | None = None
    model: int | None = None
    model_dir: str | None = None
    limit: float = SURVEY_WITHIN

    @property
    def connect(self) -> bool:
        """Say whether the session is a Spark Connect one."""
        return type(self.session).__module__.startswith("pyspark.sql.connect")

    @property
    def master(self) -> str:
        """Return Spark's master; "" without Spark."""
        return self.setting("spark.master")

    @property
    def alone(self) -> bool:
        """Say whether everything runs on this machine for sure."""
        return self.engine == "local" or self.master.startswith("local")

    def setting(self, name: str, default: str = "") -> str:
        """Return a setting of Spark; the default where it has no value, or there is no Spark."""
        if self.session is None:
            return default
        with suppress(Exception):  # a Connect server may refuse to tell
            value = self.session.conf.get(name, None)
            return default if value is None else str(value)
        return default

    def settings(self) -> dict[str, str]:
        """Return all settings of Spark, to know what must not be printed."""
        if self.session is None or self.connect:
            return {}
        with suppress(Exception):
            return dict(self.session.sparkContext.getConf().getAll())
        return {}


@dataclass(frozen=True)
class Surveyed:
    """Hold what the ranks told.

    Attributes:
        ranks: How many were started.
        reports: The reports, by rank; those of ranks that told nothing are missing.
        late: How many seconds the driver's clock was ahead of a rank's when it told.
        problem: Why the ranks did not join; None where they did.
        timed_out: Whether that is because the time was over.
        marked: Whether the driver put a file into model_dir for them to see.
        seconds: How long it took.
    """

    ranks: int
    reports: dict[int, Report] = field(default_factory=dict)
    late: dict[int, float] = field(default_factory=dict)
    problem: BaseException | None = None
    timed_out: bool = False
    marked: bool = False
    seconds: float = 0.0


Check = Callable[[Case], Iterable[Finding]]


class TimeOver(OrcaError):
    """Say that something took longer than it may."""


def engine_name(backend: str | None) -> str:
    """Return the engine of a backend word; of the cluster that is up where none is given.

    Raises:
        ArgumentError: There is no such backend.
    """
    from orca.cluster.context import OrcaContext

    if backend is None:
        up = OrcaContext.cluster()
        return up.runtime if up else "local"
    chosen = backend_of(backend)
    ray = sys.modules.get("ray")
    if chosen.otherwise and (ray is None or not ray.is_initialized()):
        return chosen.otherwise
    return chosen.engine


def case_of(engine: str, workers_per_node: int, **about: Any) -> Case:
    """Return the case of the cluster that is up.

    Raises:
        ArgumentError: The engine has no cluster to run on.
    """
    if engine not in ENGINES:
        raise ArgumentError(f"engine must be one of {', '.join(ENGINES)}; got {engine!r}.")
    workers = engine_class(engine).on_cluster(workers_per_node).workers
    session = None
    if engine == "spark":
        from orca.cluster.spark import active_session

        session = active_session()
    return Case(engine, workers, max(1, workers // workers_per_node), session, **about)


def diagnose(case: Case, before: Iterable[Finding] = (), look_around: bool = True) -> Diagnosis:
    """Make all checks of a case.

    Args:
        case: The case.
        before: Findings that were made before.
        look_around: Whether to start the ranks; without, only what the driver sees is told.
    """
    from orca.doctor import driver, ranks

    findings = list(before)
    for check in driver.CHECKS[case.engine]:
        findings += checked(check, case)
    slots = limited(lambda: driver.slots_of(case), CHECK_WITHIN, None)
    if look_around:
        # Where there are too few slots, as many ranks as there is room for tell what else is wrong.
        count = case.workers if slots is None else min(case.workers, slots)
        if any(finding.level == ERROR and finding.topic == "allocation" for finding in findings):
            count = 0  # Spark would refuse them
        surveyed = survey(case, count) if count else Surveyed(0)
        for look in ranks.CHECKS:
            findings += checked(lambda case, look=look: look(case, surveyed), case, look.__name__)  # type: ignore[misc]
    return Diagnosis(without_secrets(findings, case.settings()))


def checked(check: Check, case: Case, name: str = "") -> list[Finding]:
    """Return the findings of a check; that it failed or took too long is one, too."""
    name = (name or check.__name__).replace("_", " ")
    try:
        return limited(lambda: list(check(case)), CHECK_WITHIN)
    except TimeOver:
        return [warn(name, f"could not be checked within {CHECK_WITHIN:g} s")]
    except Exception as problem:
        logger.debug("the check %s failed", name, exc_info=True)
        return [warn(name, "could not be checked", said(problem))]


_RAISE = object()


def limited(call: Callable[[], T], seconds: float, otherwise: Any = _RAISE) -> T:
    """Return what a call returns, but wait no longer than this for it; its thread may go on.

    Args:
        call: The call.
        seconds: How long to wait.
        otherwise: What to return where it fails or takes longer; unless given, that is raised.

    Raises:
        TimeOver: It took longer.
    """
    result: list[Any] = []
    problems: list[BaseException] = []

    def work() -> None:
        try:
            result.append(call())
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=work, name=_HIDDEN, daemon=True)
    thread.start()
    thread.join(seconds)
    if result:
        return cast(T, result[0])
    if otherwise is not _RAISE:
        return cast(T, otherwise)
    raise problems[0] if problems else TimeOver(f"it took longer than {seconds:g} s.")


# The ranks


def survey(case: Case, count: int) -> Surveyed:
    """Start this many ranks as training would, let them look around and join, and return what they told."""
    began = time.monotonic()
    surveyed = Surveyed(count)

    def hear(rank: int, line: Log) -> None:
        with suppress(Exception):  # a line that was cut
            surveyed.reports[rank] = report = unpacked(line.text)
            surveyed.late[rank] = time.time() - report.clock

    with ExitStack() as open_things:
        mark = ""
        if case.model_dir:
            with suppress(Exception):  # a check of its own tells why
                mark = open_things.enter_context(written(case.model_dir))
        hub = open_things.enter_context(Hub(count, _driver_host(case), stall=0, on_log=hear))
        host = "" if case.engine == "ray" and not _ray_is_here() else _LOOPBACK
        look = Survey(case.engine, hub.ticket, host, case.limit, case.model_dir, mark)
        # Spark makes the numbers where they are needed: dealing data out would need executors that reach each other.
        native = case.session.range(0, count, 1, count) if case.engine == "spark" else None
        home = "spark" if case.engine == "spark" else None
        shards = Shards(cast(Any, look), lambda: [Number(rank) for rank in range(count)], home, native)
        problem, timed_out = _run(case, count, shards, surveyed, hub)
    return replace(surveyed, problem=problem, timed_out=timed_out, marked=bool(mark), seconds=time.monotonic() - began)


def _run(case: Case, count: int, shards: Shards, surveyed: Surveyed, hub: Hub) -> tuple[BaseException | None, bool]:
    """Run the ranks and keep their reports; return what went wrong, and whether it is that time was over."""
    tag = f"{_HIDDEN}-{secrets.token_hex(4)}"
    settings = Settings(stall_timeout=case.limit, progress=False, log_level=logging.CRITICAL, log_to_driver=False)

    def run() -> list[Report]:
        _tag(case, tag)
        return _engine(case, count).run(cast(Any, Joining()), shards, settings)

    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(_outcome(run)), name=_HIDDEN, daemon=True)
    thread.start()
    thread.join(case.limit)
    if not done:
        hub.abort("the doctor has no more time")
        limited(lambda: _cancel(case, tag), _GOING_WITHIN, None)
        thread.join(_GOING_WITHIN)
        return TimeOver(f"the ranks did not start and join within {case.limit:g} s."), True
    if isinstance(done[0], BaseException):
        return done[0], False
    surveyed.reports.update((report.rank, report) for report in done[0])
    return None, False


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BaseException as problem:
        return problem


def _engine(case: Case, count: int) -> Any:
    kind = engine_class(case.engine)
    return kind(case.session, count) if case.engine == "spark" else kind(count)


def _driver_host(case: Case) -> str:
    """Return the address at which ranks reach this process: the one that the engine will take."""
    if case.engine == "spark":
        from orca.cluster.spark import driver_host

        return driver_host(case.session)
    if case.engine == "ray" and not _ray_is_here():
        import ray

        return str(ray.util.get_node_ip_address())
    return _LOOPBACK


def _ray_is_here() -> bool:
    """Say whether every node of Ray is this machine: then ranks stay on the loopback interface."""
    import ray

    nodes = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    return nodes == {ray.util.get_node_ip_address()}


def _tag(case: Case, tag: str) -> None:
    """Mark the Spark jobs of this thread, so that they can be ended."""
    if case.session is None:
        return
    if case.connect:
        case.session.addTag(tag)
    else:
        case.session.sparkContext.setJobGroup(tag, "orca doctor", interruptOnCancel=True)


def _cancel(case: Case, tag: str) -> None:
    if case.session is None:
        return
    if case.connect:
        case.session.interruptTag(tag)
    else:
        case.session.sparkContext.cancelJobGroup(tag)
