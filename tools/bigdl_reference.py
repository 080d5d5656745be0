"""Write docs/bigdl-names.md: every name of BigDL's API that programs import, with its arguments and what it is."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orca.bigdl import doors, initial

PAGE = Path(__file__).resolve().parent.parent / "docs" / "bigdl-names.md"
PARTS: list[tuple[str, Mapping[str, Any]]] = [
    ("Layers: `bigdl.nn.layer`, `bigdl.dllib.nn.layer`", doors.LAYERS.things),
    ("Criterions: `bigdl.nn.criterion`, `bigdl.dllib.nn.criterion`", doors.CRITERIONS.things),
    ("Training: `bigdl.optim.optimizer`, `bigdl.dllib.optim.optimizer`", doors.OPTIMIZER.things),
    ("Initialisation: `bigdl.nn.initialization_method`", initial.METHODS),
    ("Keras-style layers: `zoo.pipeline.api.keras.layers`, `bigdl.dllib.keras.layers`", doors.KERAS_LAYERS.things),
    ("Keras 2: `zoo.pipeline.api.keras2.layers`", doors.KERAS2_LAYERS.things),
    ("Keras-style losses: `zoo.pipeline.api.keras.objectives`", doors.OBJECTIVES.things),
    ("Variables: `zoo.pipeline.api.autograd`, `bigdl.dllib.keras.autograd`", doors.AUTOGRAD.things),
]


def page() -> str:
    """Return the page."""
    lines = [
        "# Names of BigDL",
        "",
        "Made by `python tools/bigdl_reference.py`. How they are used: [bigdl.md](bigdl.md).",
        "",
    ]
    for title, things in PARTS:
        lines += [f"## {title}", "", "| name | arguments | what it is |", "| --- | --- | --- |"]
        lines += [_row(name, things[name]) for name in sorted(things, key=lambda name: (name.lower(), name))]
        lines.append("")
    return "\n".join(lines)


def _row(name: str, thing: Any) -> str:
    signature = getattr(thing, "signature", None) or _signature(thing)
    shown = ", ".join(
        parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}"
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "bigdl_type", "jvalue")
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    )  # fmt: skip
    words = (inspect.getdoc(thing) or "").split("\n")[0].replace("|", "\\|")
    return f"| `{name}` | `{shown}` | {words} |" if shown else f"| `{name}` | | {words} |"


def _signature(thing: Any) -> inspect.Signature:
    try:
        return inspect.signature(thing)
    except (TypeError, ValueError):
        return inspect.Signature()


if __name__ == "__main__":
    PAGE.write_text(page())
