"""HTML: a run as HTML. Owns its text and looks: one file, no network, readable in light and dark.

Plain string formatting: a template engine would save about 30 lines and be one more dependency.
"""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import metadata
from numbers import Integral, Real
from typing import Any

from orca.core.trace import Epochs, rows_a_second, steps_of

# Libraries whose versions a report names: the distribution, and the module that shows it was used.
LIBRARIES = {
    "orca-dl": "orca",
    "numpy": "numpy",
    "torch": "torch",
    "tensorflow": "tensorflow",
    "keras": "keras",
    "tf-keras": "tf_keras",
    "pyspark": "pyspark",
    "ray": "ray",
}

# Heads of the table for keys of a line; other keys are shown as they are.
HEADS = {"epoch": "epoch", "num_samples": "rows", "batch_count": "steps"}
HIDDEN = {"val_num_samples", "last_train_loss"}

STYLE = """
:root { color-scheme: light dark; }
body { background: Canvas; color: CanvasText; font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
       max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.when { opacity: .7; font-size: .85rem; }
""".strip()

# Of the parts that a notebook shows too: nothing that would reach beyond them.
PART_STYLE = """
.orca-run svg { display: block; max-width: 100%; height: auto; }
.orca-run svg * { stroke-linejoin: round; }
.orca-run .scroll { overflow-x: auto; }
.orca-run table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.orca-run th, .orca-run td { border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent);
       padding: .25rem .7rem; text-align: right; vertical-align: top; }
.orca-run .facts td { text-align: left; }
""".strip()


def page(title: str, epochs: Epochs, about: Mapping[str, Any], picture: str) -> str:
    """Return the whole page; `picture` is an <svg> element, everything else is escaped here."""
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="when">{escape(now)}</p>',
        _facts(_totals(epochs)),
        "<h2>Curves</h2>",
        picture,
        "<h2>Epochs</h2>",
        _table(epochs),
    ]
    if about:
        parts += ["<h2>Parameters</h2>", _facts((str(name), _shown(value)) for name, value in about.items())]
    parts += ["<h2>Versions</h2>", _facts(versions().items())]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n{PART_STYLE}\n</style>\n</head>\n"
        f'<body class="orca-run">\n{body}\n</body>\n</html>\n'
    )


def section(epochs: Epochs, picture: str) -> str:
    """Return the picture and the table alone, for a notebook."""
    return f'<div class="orca-run"><style>{PART_STYLE}</style>{picture}{_facts(_totals(epochs))}{_table(epochs)}</div>'


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that are in use, without loading any."""
    names = {"python": platform.python_version(), "platform": platform.platform()}
    for name, module in LIBRARIES.items():
        if module in sys.modules:
            try:
                names[name] = metadata.version(name)
            except metadata.PackageNotFoundError:  # tensorflow-cpu and the like
                names[name] = str(getattr(sys.modules[module], "__version__", "unknown"))
    return names


def _totals(epochs: Epochs) -> Iterable[tuple[str, str]]:
    lines = [line for line, _ in epochs]
    seconds = sum(trace.seconds for _, trace in epochs if trace)
    rates = [(rate, trace.seconds) for line, trace in epochs if trace and (rate := rows_a_second(line, trace))]
    yield "epochs", str(len(lines))
    yield "steps", _number(sum(steps_of(line, trace) for line, trace in epochs))
    if seconds:
        yield "training time", _duration(seconds)
    if rates:
        yield "rows/s", _number(sum(rate * length for rate, length in rates) / sum(length for _, length in rates))
    for name in ("train_loss", "val_loss"):
        values = [math.nan if line.get(name) is None else float(line[name]) for line in lines]
        if not all(map(math.isnan, values)):
            lowest = min(range(len(values)), key=lambda at: math.inf if math.isnan(values[at]) else values[at])
            epoch = lines[lowest].get("epoch", lowest + 1)
            yield name, f"{_number(values[-1])} (lowest {_number(values[lowest])}, epoch {epoch})"


def _table(epochs: Epochs) -> str:
    names = dict.fromkeys(["epoch", "num_samples", "batch_count", "train_loss", "val_loss"])
    names |= dict.fromkeys(name for line, _ in epochs for name in line)
    plain = [name for name in names if name not in HIDDEN and any(_is_plain(line.get(name)) for line, _ in epochs)]
    heads = [HEADS.get(name, name) for name in plain] + ["seconds", "rows/s"]
    rows = [
        [_number(line.get(name)) for name in plain]
        + [_number(trace.seconds if trace else None), _number(rows_a_second(line, trace))]
        for line, trace in epochs
    ]
    return f'<div class="scroll">{table(rows, heads)}</div>'


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    return f'<div class="facts">{table(facts)}</div>'


def table(rows: Iterable[Sequence[str]], heads: Sequence[str] = (), style: str = "") -> str:
    """Return rows of texts as an HTML table; `style` is the CSS of each cell, where no style sheet is at hand."""
    cell = f'<td style="{style}">' if style else "<td>"
    head = f"<thead><tr>{''.join(f'<th>{escape(name)}</th>' for name in heads)}</tr></thead>\n" if heads else ""
    body = "\n".join(f"<tr>{''.join(f'{cell}{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table>\n{head}<tbody>\n{body}\n</tbody>\n</table>"


def _is_plain(value: Any) -> bool:
    return isinstance(value, Real | str)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _number(value: Any) -> str:
    if value is None or not _is_plain(value):
        return ""
    if isinstance(value, str):
        return value
    number = float(value)
    if isinstance(value, Integral) or 1000 <= abs(number) < 1e15:
        return f"{number:,.0f}"
    return f"{number:.4g}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min {rest} s" if hours else f"{minutes} min {rest} s"
