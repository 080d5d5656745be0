"""Guards: habits that the code is leaving behind, counted file by file. Owns what is counted.

`tests/test_guards.py` compares the counts with `tests/guards.json`. A count may only fall:

    python tools/guards.py            # lower the list to what is there now; refuses to raise a count
    python tools/guards.py --show attributes src/orca/core/loop.py     # the lines behind a count
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "guards.json"
MOST_LINES = 700
PACKAGES = ("src/orca", "src/orca_classic")

Hit = tuple[int, str]  # a line and what is there
Counts = dict[str, dict[str, int]]  # rule -> file -> count

# Words of a private dialect, and what to write instead. A plain word of English stands here only as an identifier.
BANNED = {
    r"[Ss]ays? whether": "Return whether ...; of a property: Whether ...",
    r"where there (is|are) none": "if there is none",
    r"where nobody": "if unknown",
    r"refused? in words": "raise a clear error",
    r"come to words": "raise a clear error",
    r"makes? it anew|made anew|makes? anew": "recreate",
    r"whose rows stand for nothing": "dummy rows",
    r"what is asked for": "the requested ...",
    r"\brank 0 alone\b": "only rank 0",
    r"\b(is|are) told by\b": "return",
    r"[`\"]{0,2}Accepted\.(?=\s|\"|$)": "Ignored; kept for compatibility.",
    r"\bsteppers?\b": "optimizer",
    r"\blet_ranks_meet\b": "sync, install_all_reduce",
    r"\bhands_on\b|\b_handed_step\b": "user_backward, _user_step",
    r"\bParted\b": "PeerLost",
    r"\bOtherRoad\b": "UnsupportedPlan",
    r"\b_?convict\b": "_mark_failed",
    r"\bHerald\b|\bherald\b": "ImportHook",
    r"\bclass \w*Door\b|\bdoors?\b(?=\s*[=.(:])": "EstimatorFactory, lazy_names",
}

ANY_BANNED = re.compile("|".join(f"(?:{pattern})" for pattern in BANNED))


def python_files(*folders: str) -> list[Path]:
    """Return the Python files in folders of the project."""
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


@cache
def tree_of(file: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(file.read_text(), str(file))


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Return the classes of the package by name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for file in python_files(*PACKAGES):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def declared(kind: ast.ClassDef, seen: frozenset[str] = frozenset()) -> set[str]:
    """Return the attributes that a class and its bases declare: as fields, or in `__init__` and `__post_init__`."""
    names: set[str] = set()
    is_record = any("dataclass" in ast.unparse(each) for each in kind.decorator_list)
    for node in kind.body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and (is_record or node.value):
            names.add(node.target.id)
        elif isinstance(node, ast.FunctionDef) and node.name in ("__init__", "__post_init__", "__new__"):
            names |= {each.attr for each in written(node)}
    for base in kind.bases:
        name = ast.unparse(base).split("[")[0].rsplit(".", 1)[-1]
        for parent in () if name in seen else classes().get(name, ()):
            names |= declared(parent, seen | {name})
    return names


def written(node: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that are assigned in a piece of code."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            yield each


def is_self(node: ast.expr) -> bool:
    """Return whether an expression is the object (or class) whose method the code is in."""
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def late_attributes(file: Path) -> Iterator[Hit]:
    """Attributes that methods set without a declaration in the constructor, and deleted ones."""
    for kind in (node for node in ast.walk(tree_of(file)) if isinstance(node, ast.ClassDef)):
        names = declared(kind)
        methods = [node for node in kind.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for node in (node for method in methods for node in written(method)):
            if is_self(node.value) and node.attr not in names:
                yield node.lineno, f"{kind.name}.{node.attr}"
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Del):
            yield node.lineno, f"del {ast.unparse(node)}"


def outside_writes(file: Path) -> Iterator[Hit]:
    """Assignments to attributes of other objects."""
    for node in written(tree_of(file)):
        if not is_self(node.value):
            yield node.lineno, ast.unparse(node)


def literal_getattr(file: Path) -> Iterator[Hit]:
    """Calls of hasattr, getattr, setattr and delattr with a literal name."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
            if node.func.id in ("hasattr", "getattr", "setattr", "delattr") and isinstance(node.args[1], ast.Constant):
                yield node.lineno, ast.unparse(node)


def phrases(file: Path) -> Iterator[Hit]:
    """Banned phrases and identifiers."""
    text = file.read_text()
    for match in ANY_BANNED.finditer(text):
        instead = next(instead for pattern, instead in BANNED.items() if re.match(pattern, text[match.start() :]))
        yield text.count("\n", 0, match.start()) + 1, f"{match.group()!r}: write {instead}"


def long_files(file: Path) -> Iterator[Hit]:
    """Lines beyond those that a file should have."""
    lines = file.read_text().count("\n")
    yield from ((number, "a line too many") for number in range(MOST_LINES + 1, lines + 1))


def pages() -> list[Path]:
    """Return the files whose English is read: code, tests, examples and guide pages."""
    texts = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    this = Path(__file__).resolve()
    return [file for file in python_files("src", "tests", "examples", "benchmarks", "tools") if file != this] + texts


RULES: dict[str, tuple[Callable[[Path], Iterator[Hit]], Callable[[], list[Path]]]] = {
    "late attributes": (late_attributes, lambda: python_files(*PACKAGES)),
    "writes from outside": (outside_writes, lambda: python_files(*PACKAGES)),
    "literal getattr": (literal_getattr, lambda: python_files(*PACKAGES)),
    "phrases": (phrases, pages),
    "long files": (long_files, lambda: python_files(*PACKAGES)),
}


def counts() -> Counts:
    """Return what is there now."""
    present: Counts = {}
    for rule, (hits, files) in RULES.items():
        numbers = {str(file.relative_to(ROOT)): sum(1 for _ in hits(file)) for file in files()}
        present[rule] = {file: number for file, number in numbers.items() if number}
    return present


def allowed() -> Counts:
    """Return the list of what is left from before."""
    listed: Counts = json.loads(LIST.read_text())
    return listed


def raised(present: Counts, listed: Counts) -> list[str]:
    """Return what is there now and not on the list, each as a line."""
    return [
        f"{rule}: {file} has {number}, {listed.get(rule, {}).get(file, 0)} are allowed"
        for rule, numbers in present.items()
        for file, number in numbers.items()
        if number > listed.get(rule, {}).get(file, 0)
    ]


def main() -> None:
    """Lower the list, or show the lines behind a count."""
    if "--show" in sys.argv:
        word, *files = sys.argv[sys.argv.index("--show") + 1 :]
        rule = next(name for name in RULES if word in name)
        for file in (Path(name).resolve() for name in files):
            for number, what in RULES[rule][0](file):
                print(f"{file.relative_to(ROOT)}:{number}: {what}")
        return
    present = counts()
    if LIST.exists() and (wrong := raised(present, allowed())):
        sys.exit("\n".join(["counts may only fall:", *wrong]))
    LIST.write_text(json.dumps(present, indent=1, sort_keys=True) + "\n")
    for rule, numbers in present.items():
        print(f"{rule}: {sum(numbers.values())} in {len(numbers)} files")


if __name__ == "__main__":
    main()
