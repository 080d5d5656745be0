"""Spark's log: silent during our jobs, and as before afterwards, whatever ends them and whichever run together."""

from __future__ import annotations

from typing import Any

import pytest

from orca.monitor import spark_logs, verbosity
from orca.monitor.spark_logs import LOGGERS, muted


@pytest.fixture(autouse=True)
def default_verbosity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbosity, "_requested", None)
    monkeypatch.delenv(verbosity.DEBUG_VARIABLE, raising=False)


def levels(spark: Any) -> list[str]:
    """Return the level of each logger; "-" before one that has it from its parent."""
    configuration = spark._jvm.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration()
    own = configuration.getLoggers()
    return [f"{'' if own.containsKey(n) else '-'}{configuration.getLoggerConfig(n).getLevel()}" for n in LOGGERS]


def test_loggers_are_silent_until_the_last_job_has_ended_and_have_their_own_levels_again(spark: Any) -> None:
    log4j = spark._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(LOGGERS[0], log4j.Level.INFO)
    try:
        before = levels(spark)
        assert before[0] == "INFO"
        first, second = muted(spark), muted(spark)
        first.__enter__()
        second.__enter__()
        assert levels(spark) == ["OFF"] * len(LOGGERS)
        first.__exit__(None, None, None)
        assert levels(spark) == ["OFF"] * len(LOGGERS)
        second.__exit__(None, None, None)
        assert levels(spark) == before
    finally:
        log4j.LogManager.getContext(False).getConfiguration().removeLogger(LOGGERS[0])


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_while_loggers_are_silenced_leaves_them_as_they_were(
    spark: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    before, silence = levels(spark), spark_logs._silence

    def interrupted(jvm: Any) -> None:
        if when == "after":
            silence(jvm)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(spark_logs, "_silence", interrupted)
        with pytest.raises(KeyboardInterrupt), muted(spark):
            raise AssertionError
    assert levels(spark) == before
    with muted(spark):
        assert levels(spark) == ["OFF"] * len(LOGGERS)
    assert levels(spark) == before


def test_at_debug_spark_may_speak(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(verbosity.DEBUG_VARIABLE, "1")
    before = levels(spark)
    with muted(spark):
        assert levels(spark) == before
