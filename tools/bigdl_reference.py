"""Write docs/classic/bigdl-names.md: every name of BigDL's API that programs import, its arguments, what it is."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "classic" / "bigdl-names.md"
PARTS = {  # the modules of each part; the first one's names are told
    "Layers": "bigdl.nn.layer bigdl.dllib.nn.layer",
    "Criterions": "bigdl.nn.criterion bigdl.dllib.nn.criterion",
    "Training": "bigdl.optim.optimizer bigdl.dllib.optim.optimizer",
    "Initialisation": "bigdl.nn.initialization_method bigdl.dllib.nn.initialization_method",
    "Keras-style layers": "zoo.pipeline.api.keras.layers bigdl.dllib.keras.layers bigdl.nn.keras.layer",
    "Keras 2": "zoo.pipeline.api.keras2.layers",
    "Keras-style models": "zoo.pipeline.api.keras.models bigdl.dllib.keras.models bigdl.nn.keras.topology",
    "Keras-style losses": "zoo.pipeline.api.keras.objectives bigdl.dllib.keras.objectives",
    "Keras-style metrics": "bigdl.dllib.keras.metrics zoo.pipeline.api.keras.metrics",
    "Keras-style optim methods": "bigdl.dllib.keras.optimizers zoo.pipeline.api.keras.optimizers",
    "Keras-style regularizers": "bigdl.dllib.keras.regularizers zoo.pipeline.api.keras.regularizers",
    "Models of Keras 1": "bigdl.dllib.keras.converter",
    "Keras 1 on BigDL": "bigdl.dllib.keras.backend",
    "Variables": "zoo.pipeline.api.autograd bigdl.dllib.keras.autograd",
    "Models in files": "zoo.pipeline.api.net bigdl.dllib.net",
    "Serving": "bigdl.orca.inference",
    "The low-level Estimator": "bigdl.dllib.estimator zoo.pipeline.estimator",
    "Samples, tensors and the engine": "bigdl.util.common bigdl.dllib.utils.common",
    "Data and steps on it": "bigdl.dllib.feature.common zoo.feature.common",
    "Images": "bigdl.dllib.feature.image zoo.feature.image",
    "Images, under older names": "bigdl.dllib.feature.transform.vision.image bigdl.transform.vision.image",
    "Texts": "bigdl.dllib.feature.text zoo.feature.text",
    "MNIST": "bigdl.dllib.feature.dataset.mnist",
    "MovieLens": "bigdl.dllib.feature.dataset.movielens",
}


def page() -> str:
    """Return the page."""
    lines = [
        "# Names of BigDL",
        "",
        "Made by `python tools/bigdl_reference.py`. How they are used: [bigdl.md](bigdl.md).",
        "",
    ]
    common = set(importlib.import_module("zoo.common").__all__)  # star imports of other modules bring these too
    for title, modules in PARTS.items():
        home = importlib.import_module(modules.split()[0])
        own = home.__all__ if home.__name__ == "bigdl.util.common" else set(home.__all__) - common
        things = {name: getattr(home, name) for name in own}
        things = {name: thing for name, thing in things.items() if not _is_foreign(thing)}
        lines += [
            f"## {title}: `{'`, `'.join(modules.split())}`",
            "",
            "| name | arguments | what it is |",
            "| --- | --- | --- |",
        ]
        lines += [_row(name, things[name]) for name in sorted(things, key=lambda name: (name.lower(), name))]
        lines.append("")
    return "\n".join(lines)


def _is_foreign(thing: Any) -> bool:
    """Return whether a name is a module, a number or a class of Spark's, which star imports bring too."""
    return inspect.ismodule(thing) or not str(getattr(thing, "__module__", "")).startswith("orca")


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
