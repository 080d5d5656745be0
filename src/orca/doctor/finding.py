"""Finding: what the doctor saw, and the line that cures it. Owns levels, how findings are shown, and hiding secrets."""

from __future__ import annotations

import html
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

OK, WARN, ERROR = "ok", "warn", "error"
MARKS = {OK: "ok", WARN: "warning", ERROR: "error"}

_COLOURS = {OK: "32", WARN: "33", ERROR: "31"}
_WIDTH = 120
_SHORTEST_SECRET = 6  # shorter values ("true", "10") occur in texts by chance
_SECRET = re.compile("secret|password|passphrase|credential|token|key", re.IGNORECASE)  # names of settings
_NAMED_SECRET = re.compile(r"([\w.-]*(?:secret|password|token)[\w.-]*\s*[=:]\s*)([^\s,;\"')}]+)", re.IGNORECASE)
_RAISED = re.compile(r"^[\w.]*(?:Error|Exception|Exit|Interrupt): .+$", re.MULTILINE)
_LOGIN = re.compile(r"(\w+://)[^/\s@]+@")


@dataclass(frozen=True)
class Finding:
    """Tell one thing the doctor looked at.

    Attributes:
        level: "ok", "warn" (training starts, and may suffer) or "error" (training would not start).
        topic: What it is about, in a word: "slots", "network", ...
        what: What is right or wrong.
        got: What was seen.
        fix: The exact line to set: an argument, an entry of conf=, or a line for the shell; "" where nothing is wrong.
    """

    level: str
    topic: str
    what: str
    got: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Hold all findings; print it, or show it in a notebook.

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
        return self.at(ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Return the findings with which training starts, and may suffer."""
        return self.at(WARN)

    def at(self, level: str) -> tuple[Finding, ...]:
        """Return the findings of a level."""
        return tuple(finding for finding in self.findings if finding.level == level)

    def about(self, topic: str) -> tuple[Finding, ...]:
        """Return the findings of a topic."""
        return tuple(finding for finding in self.findings if finding.topic == topic)

    def verdict(self) -> str:
        """Return the one line that says it all."""
        counts = [f"{len(found)} {word}{'s' * (len(found) > 1)}" for found, word in self._counted() if found]
        said = "training would start" if self.ok else "training would not start"
        return f"{said}: {', '.join(counts)}" if counts else said

    def text(self, coloured: bool = False) -> str:
        """Return the findings as aligned lines, the errors last, where a terminal shows them."""
        order = {OK: 0, WARN: 1, ERROR: 2}
        ranked = sorted(self.findings, key=lambda finding: order[finding.level])
        column = max((len(finding.topic) for finding in ranked), default=0)
        lines = [line for finding in ranked for line in _lines(finding, column, coloured)]
        return "\n".join([*lines, "", self.verdict()])

    def json(self) -> str:
        """Return the findings for machines."""
        found = {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}
        return json.dumps(found, indent=2)

    def _counted(self) -> list[tuple[tuple[Finding, ...], str]]:
        return [(self.errors, "error"), (self.warnings, "warning")]

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """Return the findings as a table for notebooks."""
        colours = {OK: "#2e7d32", WARN: "#b26a00", ERROR: "#c62828"}
        rows = "".join(
            f'<tr><td style="color:{colours[f.level]}">{MARKS[f.level]}</td><td>{html.escape(f.topic)}</td>'
            f'<td style="text-align:left">{html.escape(_sentence(f))}'
            + (f"<br><code>{html.escape(f.fix)}</code>" if f.fix else "")
            + "</td></tr>"
            for f in self.findings
        )
        return f"<table>{rows}</table><p>{html.escape(self.verdict())}</p>"


def ok(topic: str, what: str, got: str = "") -> Finding:
    """Return a finding that all is well."""
    return Finding(OK, topic, what, got)


def warn(topic: str, what: str, got: str = "", fix: str = "") -> Finding:
    """Return a finding with which training starts, and may suffer."""
    return Finding(WARN, topic, what, got, fix)


def error(topic: str, what: str, got: str = "", fix: str = "") -> Finding:
    """Return a finding that keeps training from starting."""
    return Finding(ERROR, topic, what, got, fix)


def said(problem: BaseException) -> str:
    """Return what an exception says in short: the end of a trace of Python's in it, or its first lines."""
    traced = str(problem).partition("Traceback (most recent call last)")[2].partition("\n\tat ")[0]
    raised = _RAISED.findall(traced)
    if raised:
        return str(raised[-1])[:600]
    text = str(problem).strip().split("\n\n")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("\tat ", "  File "))]
    told = " ".join(lines)
    return f"{type(problem).__name__}: {told[:600]}" if told else type(problem).__name__


def in_colour() -> bool:
    """Say whether standard output is a terminal whose user did not refuse colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def without_secrets(findings: Iterable[Finding], settings: Mapping[str, str]) -> tuple[Finding, ...]:
    """Return findings in which no value of a setting or environment variable with a secret name occurs.

    Args:
        findings: The findings.
        settings: Settings of the cluster, by name.
    """
    named = [*os.environ.items(), *settings.items()]
    hidden = {value for name, value in named if _SECRET.search(name) and len(value) >= _SHORTEST_SECRET}
    # The longest first: one may be a part of another.
    return tuple(_cleaned(finding, sorted(hidden, key=len, reverse=True)) for finding in findings)


def _cleaned(finding: Finding, hidden: list[str]) -> Finding:
    def clean(text: str) -> str:
        for value in hidden:
            text = text.replace(value, "***")
        return _LOGIN.sub(r"\1***@", _NAMED_SECRET.sub(r"\1***", text))

    return replace(finding, what=clean(finding.what), got=clean(finding.got), fix=clean(finding.fix))


def _sentence(finding: Finding) -> str:
    return f"{finding.what} ({finding.got})" if finding.got else finding.what


def _lines(finding: Finding, column: int, coloured: bool) -> list[str]:
    mark = f"{MARKS[finding.level]:<7}"
    if coloured:
        mark = f"\x1b[{_COLOURS[finding.level]}m{mark}\x1b[0m"
    indent = " " * (7 + 2 + column + 2)
    told = textwrap.wrap(_sentence(finding), _WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
    lines = [f"{mark}  {finding.topic:<{column}}  {told[0] if told else ''}".rstrip(), *(indent + t for t in told[1:])]
    # Never wrapped: it is there to be copied.
    return [*lines, f"{indent}set: {finding.fix}"] if finding.fix else lines
