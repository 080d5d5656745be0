"""Write docs/errors.md: the codes of all errors of `orca`, with their classes and texts, as the code has them.

python tools/error_codes.py
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "orca"
PAGE = ROOT / "docs" / "errors.md"
HEAD = """\
# Errors and their codes

Every error that Orca raises is an `OrcaError` of `orca.errors`. Its text says what is wrong, what came, and what to do;
texts may become better. What a program can rely on is the class and the `code`:

```python
import pandas as pd
import torch
from orca import Estimator
from orca.errors import OrcaError

est = Estimator.from_torch(model=torch.nn.Linear(1, 1), backend="local")
try:
    est.predict(pd.DataFrame({"x": [1.0]}))
except OrcaError as error:
    print(type(error).__name__, error.code)
    assert error.code == "missing-feature-cols"
```

An error that a worker raised comes as a `WorkerFailed` that is of the worker's class too, with its code; `error.rank`
and `error.host` say where. Errors of your own code in a worker have the code `worker-failed`.

`python tools/error_codes.py` writes this list.

| code | class | for example |
| --- | --- | --- |
"""


class Site(NamedTuple):
    """A place that makes an error."""

    file: str
    line: int
    kind: str
    code: str | None
    text: str


def classes() -> dict[str, str]:
    """Return the code of each class of errors; "" for those that leave it to the place that raises them."""
    tree = ast.parse((SOURCES / "errors.py").read_text())
    codes: dict[str, str] = {}
    for node in tree.body:
        for line in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "default_code":
                codes[node.name] = ast.literal_eval(line.value)
    return codes


def sites() -> Iterator[Site]:
    """Yield each call of an error's class."""
    kinds = classes()
    for file in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
                code = next((each.value for each in node.keywords if each.arg == "code"), None)
                name = str(file.relative_to(SOURCES))
                word = code.value if isinstance(code, ast.Constant) else None
                yield Site(name, node.lineno, node.func.id, word, _text(node.args[0]) if node.args else "")


def _text(node: ast.expr) -> str:
    """Return the first sentence of a text, without the values in it."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    words = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts]
    return " ".join("".join(words).split()).split(". ")[0].replace("|", "\\|")


def page() -> str:
    """Return the page."""
    found = {code: (kind, "") for kind, code in classes().items()}
    for site in sites():
        if site.code and (site.code not in found or not found[site.code][1]):
            found[site.code] = (site.kind, site.text)
    rows = [f"| `{code}` | {kind} | {text} |" for code, (kind, text) in sorted(found.items())]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
