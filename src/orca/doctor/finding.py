"""Finding: one observation, and the line that cures it. Owns levels, how findings are shown, and hiding secrets."""

from __future__ import annotations

import html
import json
import os
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from orca.cluster.spark import NOT_SHOWN
from orca.errors import WorkerFailed
from orca.report.html import table

OK, WARN, ERROR = "ok", "warn", "error"
_MARKS = {OK: "ok", WARN: "warning", ERROR: "error"}  # in the order of a text: a terminal shows its end
_COLOURS = {OK: "32", WARN: "33", ERROR: "31"}
_WIDTH = 120
_LONGEST = 600  # characters of an exception's text
_SHORTEST_SECRET = 6  # shorter values ("true", "10") occur in texts by chance
_NAMED_SECRET = re.compile(r"([\w.-]*(?:secret|password|token)[\w.-]*\s*[=:]\s*)([^\s,;\"')}]+)", re.IGNORECASE)
_RAISED = re.compile(r"^[\w.]*(?:Error|Exception|Exit|Interrupt): .+$", re.MULTILINE)
_LOGIN = re.compile(r"(\w+://)[^/\s@]+@")


@dataclass(frozen=True)
class Finding:
    """One thing the doctor looked at.

    Attributes:
        level: "ok", "warn" (training starts, and may suffer) or "error" (training would not start).
        topic: Its subject, in a word: "slots", "network", ...
        what: The fact or the problem.
        got: The values that were seen.
        fix: The exact line to set: an argument, an entry of conf=, or a line for the shell; "" where nothing is wrong.
    """

    level: str
    topic: str
    what: str
    got: str = ""
    fix: str = ""

    @property
    def sentence(self) -> str:
        """Return the finding and its evidence."""
        return f"{self.what} ({self.got})" if self.got else self.what


@dataclass(frozen=True)
class Diagnosis:
    """All findings; print it, or show it in a notebook.

    Example:
        >>> print(Diagnosis((Finding("ok", "slots", "2 workers run at the same time", "3 slots"),)))
        ok       slots  2 workers run at the same time (3 slots)
        <BLANKLINE>
        training would start
    """

    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Say whether training would start."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Return the findings that keep training from starting."""
        return tuple(finding for finding in self.findings if finding.level == ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Return the findings with which training starts, and may suffer."""
        return tuple(finding for finding in self.findings if finding.level == WARN)

    def about(self, topic: str) -> tuple[Finding, ...]:
        """Return the findings of a topic."""
        return tuple(finding for finding in self.findings if finding.topic == topic)

    def verdict(self) -> str:
        """Return the one line that says it all."""
        counts = [(len(self.errors), "error"), (len(self.warnings), "warning")]
        words = ", ".join(f"{count} {word}{'s' * (count > 1)}" for count, word in counts if count)
        return f"training would {'start' if self.ok else 'not start'}{': ' + words if words else ''}"

    def text(self, coloured: bool = False) -> str:
        """Return the findings as aligned lines, the errors last, where a terminal shows them."""
        findings = sorted(self.findings, key=lambda finding: list(_MARKS).index(finding.level))
        column = max((len(finding.topic) for finding in findings), default=0)
        lines = [line for finding in findings for line in _lines(finding, column, coloured)]
        return "\n".join([*lines, "", self.verdict()])

    def json(self) -> str:
        """Return the findings for machines."""
        return json.dumps({"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}, indent=2)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        rows = [(_MARKS[finding.level], finding.topic, finding.sentence, finding.fix) for finding in self.findings]
        return f"{table(rows, style='text-align:left')}<p>{html.escape(self.verdict())}</p>"


def ok(topic: str, what: str, got: str = "") -> Finding:
    """Return a finding that all is well."""
    return Finding(OK, topic, what, got)


def warn(topic: str, what: str, got: str = "", fix: str = "") -> Finding:
    """Return a finding with which training starts, and may suffer."""
    return Finding(WARN, topic, what, got, fix)


def error(topic: str, what: str, got: str = "", fix: str = "") -> Finding:
    """Return a finding that keeps training from starting."""
    return Finding(ERROR, topic, what, got, fix)


def summary(problem: BaseException) -> str:
    """Return an exception's text in short: the last line of a Python trace in it, or its first lines."""
    trace = str(problem).partition("Traceback (most recent call last)")[2].partition("\n\tat ")[0]
    errors = _RAISED.findall(trace)
    if errors and not isinstance(problem, WorkerFailed):
        return str(errors[-1])[:_LONGEST]
    text = str(problem).strip().split("\n\n")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("\tat ", "  File "))]
    return ": ".join([type(problem).__name__, *([" ".join(lines)[:_LONGEST]] if lines else [])])


def advice(problem: BaseException) -> str:
    """Return the last sentence of an error of ours, which is the advice."""
    return (str(problem).strip().splitlines() or [""])[0].split(". ")[-1]


def without_secrets(findings: Iterable[Finding], settings: Mapping[str, str]) -> tuple[Finding, ...]:
    """Return findings in which no value of a setting or environment variable with a secret name occurs.

    Args:
        findings: The findings.
        settings: Settings of the cluster, by name.
    """
    variables = [*os.environ.items(), *settings.items()]
    secrets = {value for name, value in variables if re.search(NOT_SHOWN, name) and len(value) >= _SHORTEST_SECRET}

    def clean(text: str) -> str:
        for value in sorted(secrets, key=len, reverse=True):  # one may be a part of another
            text = text.replace(value, "***")
        return _LOGIN.sub(r"\1***@", _NAMED_SECRET.sub(r"\1***", text))

    return tuple(replace(each, what=clean(each.what), got=clean(each.got), fix=clean(each.fix)) for each in findings)


def _lines(finding: Finding, column: int, coloured: bool) -> list[str]:
    mark = f"{_MARKS[finding.level]:<7}"
    if coloured:
        mark = f"\x1b[{_COLOURS[finding.level]}m{mark}\x1b[0m"
    indent = " " * (7 + 2 + column + 2)
    text = textwrap.wrap(finding.sentence, _WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
    lines = [f"{mark}  {finding.topic:<{column}}  {' '.join(text[:1])}".rstrip(), *(indent + line for line in text[1:])]
    # Never wrapped: it is there to be copied.
    return [*lines, f"{indent}set: {finding.fix}"] if finding.fix else lines
