"""Draw who imports whom in src/orca: python tools/import_graph.py puts the picture into docs/architecture.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = re.compile(r"```mermaid\n.*?```\n", re.DOTALL)
PUBLIC_NAMES = {"callbacks", "metrics", "operator", "triggers", "errors", "testing", "__main__"}


def edges() -> dict[str, set[str]]:
    """Return the parts of the package, each with the parts that it imports; files of public names are left out."""
    graph: dict[str, set[str]] = {}
    for file in sorted((ROOT / "src" / "orca").rglob("*.py")):
        part = file.relative_to(ROOT / "src" / "orca").with_suffix("").parts[0]
        if part == "__init__" or part in PUBLIC_NAMES:
            continue
        parts = graph.setdefault(part, set())
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            parts |= {name.split(".")[1] for name in names if name.startswith("orca.")} - {part} - PUBLIC_NAMES
    return graph


def picture() -> str:
    """Return the graph in the words of Mermaid."""
    lines = [f"  {part} --> {' & '.join(sorted(others))}" for part, others in sorted(edges().items()) if others]
    return "\n".join(["```mermaid", "graph TD", *lines, "```\n"])


if __name__ == "__main__":
    PAGE.write_text(PICTURE.sub(lambda _: picture(), PAGE.read_text()))
