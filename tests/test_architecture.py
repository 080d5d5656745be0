"""The rules of the source tree: who imports whom, what is loaded when, what a file must have."""

from __future__ import annotations

import ast
import doctest
import graphlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).resolve().parent.parent / "src"
FILES = sorted(file for package in ("orca", "orca_classic") for file in (SOURCES / package).rglob("*.py"))
TREES = {file: ast.parse(file.read_text(), str(file)) for file in FILES}

# What a part of the package may import of ours, besides itself. Parts that are not listed may import all but TOP.
MAY_IMPORT = {
    "errors": set(),
    "rows": {"errors"},
    "monitor": {"errors"},
    "core": {"errors", "rows", "monitor", "storage"},  # storage: where HDFS is travels with every job
    "storage": {"errors", "rows", "monitor"},
    "engines": {"core", "errors", "monitor", "cluster"},  # cluster: to ask about the one that is up
    "sources": {"core", "errors", "rows", "monitor", "storage"},
    "frameworks": {"core", "errors", "rows", "monitor", "storage"},
    "registry": {"core", "errors"},
    "job": {"core", "errors", "rows", "monitor", "storage"},
    "data": {"core", "errors", "rows", "monitor", "storage", "cluster", "sources"},  # sources: rows for other engines
    "cluster": {"core", "errors", "monitor", "storage"},
    "doctor": {"core", "errors", "rows", "monitor", "storage", "cluster", "registry", "report"},
    "report": {"core", "errors", "storage"},
    # The public names of what lies deeper.
    "metrics": {"core"},
    "triggers": {"core"},
    "callbacks": {"core", "report", "frameworks.torch"},
    "operator": {"frameworks.torch"},
}
TOP = {"cli", "orca_classic", "zoo", "bigdl"}  # nobody imports what sits on top

CLASSIC_LEARNERS = {("orca_classic", "tf1", "graph"), *(("orca_classic", "mxnet", n) for n in ("learner", "symbol"))}

HEAVY = {"pyspark", "ray", "torch", "tensorflow", "keras", "mxnet", "openvino"}
UNWANTED_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "base"}


def name_of(file: Path) -> tuple[str, ...]:
    """Return a file's module as its parts: ("orca", "core", "feed")."""
    parts = file.relative_to(SOURCES).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def part_of(module: tuple[str, ...]) -> str:
    """Return the part of the package that a module belongs to; each framework is one of its own."""
    if module[:1] != ("orca",):
        return module[0]
    return ".".join(module[1:3]) if module[1:2] == ("frameworks",) else ".".join(module[1:2])


def imports(file: Path, nodes: Iterator[ast.AST] | None = None) -> Iterator[tuple[str, ...]]:
    """Yield every module a file imports, inside functions too."""
    for node in nodes or ast.walk(TREES[file]):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin: tuple[str, ...] = ()
            if node.level:
                depth = node.level - (file.name == "__init__.py")
                origin = name_of(file)[: len(name_of(file)) - depth]
            origin += tuple((node.module or "").split(".")) if node.module else ()
            # `from orca import errors` means orca.errors
            yield from ((*origin, alias.name) if len(origin) < 3 else origin for alias in node.names)


def at_the_top(file: Path) -> Iterator[ast.AST]:
    """Yield what runs when the file is imported: no function bodies, nothing for type checkers alone."""
    nodes: list[ast.AST] = list(TREES[file].body)
    while nodes:
        node = nodes.pop()
        yield node
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not checking:
            nodes.extend(ast.iter_child_nodes(node))


def relative(file: Path) -> str:
    return str(file.relative_to(SOURCES))


def test_parts_import_only_what_they_may() -> None:
    wrong = []
    for file in FILES:
        part = part_of(name_of(file))
        allowed = MAY_IMPORT.get(part.split(".")[0])
        for module in imports(file):
            other = part_of(module)
            if name_of(file)[0] != "orca" or module[0] != "orca" or other == part or allowed is None or not other:
                continue
            if part == "frameworks" or other not in allowed:
                wrong.append(f"{relative(file)} imports {'.'.join(module)}")
    assert wrong == []


def import_graph() -> Any:
    """Return the tool that draws the picture of imports."""
    spec = importlib.util.spec_from_file_location("import_graph", SOURCES.parent / "tools" / "import_graph.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_rooms_do_not_import_each_other_in_a_circle() -> None:
    graphlib.TopologicalSorter(import_graph().edges()).prepare()  # CycleError names the circle


def test_the_picture_of_imports_is_true() -> None:
    tool = import_graph()
    assert tool.picture() in tool.PAGE.read_text(), "run python tools/import_graph.py"


def test_nobody_imports_what_sits_on_top() -> None:
    wrong = [
        f"{relative(file)} imports {'.'.join(module)}"
        for file in FILES
        for module in imports(file)
        if part_of(module) in TOP and part_of(name_of(file)) not in (TOP | {"__main__"})
    ]
    assert wrong == []


def test_the_package_names_no_module_of_the_classic_ones() -> None:
    named = re.compile(r"\b(orca_classic\b|(zoo|bigdl)\.[a-z_]+\.[a-z_]+)")
    wrong = [
        f"{relative(file)}:{node.lineno}: {node.value}"
        for file in FILES
        if name_of(file)[0] == "orca"
        for node in ast.walk(TREES[file])
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and named.search(node.value)
    ]
    assert wrong == []


def test_core_has_no_framework_of_its_own() -> None:
    """Collectives come from torch.distributed, loaded where they are used; nothing else of the heavy ones."""
    for file in FILES:
        if part_of(name_of(file)) in ("core", "errors", "job", "registry", ""):
            assert not {module[0] for module in imports(file, at_the_top(file))} & HEAVY, relative(file)
            assert not {module[0] for module in imports(file)} & (HEAVY - {"torch"}), relative(file)


@pytest.mark.parametrize(("folder", "words"), [("frameworks", "spark|ray"), ("engines", "torch|keras")])
def test_axes_do_not_speak_of_each_other(folder: str, words: str) -> None:
    wrong = [
        f"{relative(file)}:{number}: {line.strip()}"
        for file in FILES
        if name_of(file)[1:2] == (folder,) or (folder == "frameworks" and name_of(file)[:3] in CLASSIC_LEARNERS)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if re.search(rf"\b({words})\b", line, re.IGNORECASE)
    ]
    assert wrong == []


# Where what ranks tell each other is written and read: no pickles here. (The driver's own job travels in core/engine.)
TOLD = {"core": {"engine"}, "monitor": set(), "frameworks.keras": {"memory"}, "frameworks.torch": {"files"}}
PICKLED = re.compile(r"(all_?gather|gather|broadcast|scatter|send|recv)_object(_list)?")  # those of torch and Horovod


def test_ranks_do_not_unpickle_what_other_ranks_sent() -> None:
    wrong = []
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", getattr(node, "name", ""))
            if isinstance(name, str) and PICKLED.fullmatch(name):
                wrong.append(f"{relative(file)} uses {name}")
        module = name_of(file)
        exempt = TOLD.get(part_of(module), set() if "frameworks" in module or module[:3] in CLASSIC_LEARNERS else None)
        if exempt is not None and module[-1] not in exempt:
            pickles = {name for name, *_ in imports(file)} & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
            wrong += [f"{relative(file)} imports {name}" for name in pickles]
    assert wrong == []


def test_importing_orca_and_completing_its_names_loads_no_framework(run_program: Callable[..., Any]) -> None:
    program = run_program(
        f"""
        import inspect, pydoc, rlcompleter, sys
        import orca, orca.estimators, orca.job, orca.registry, orca.testing, orca.engines.local
        assert {{"Estimator", "init_orca_context", "callbacks", "metrics"}} <= set(dir(orca))
        assert dir(orca.operator) == ["TrainingOperator"] and "Accuracy" in dir(orca.metrics)
        completer = rlcompleter.Completer({{"orca": orca}})
        for text in "orca.", "orca.Estimator.", "orca.callbacks.", "orca.metrics.":
            assert completer.attr_matches(text)
        for name in "torch", "keras", "openvino":
            assert inspect.signature(getattr(orca.Estimator, f"from_{{name}}")).parameters
            assert pydoc.render_doc(getattr(orca.Estimator, f"from_{{name}}"))
        assert "orca_classic" not in sys.modules
        import orca_classic
        for name in "graph", "mxnet", "bigdl":
            assert inspect.signature(getattr(orca_classic.Estimator, f"from_{{name}}")).parameters
        print(sorted({HEAVY!r} & set(sys.modules)))
        """
    )
    assert program.stdout.strip() == "[]"


def public_things(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield the public classes, functions and methods of a module or class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            decorators = {ast.unparse(decorator).rsplit(".", 1)[-1] for decorator in node.decorator_list}
            if not decorators & {"setter", "deleter", "overload"}:  # the getter, or the last of them, says it
                yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_things(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from public_things(node, prefix)


def test_everything_public_has_a_docstring() -> None:
    missing = []
    for file, tree in TREES.items():
        if ast.get_docstring(tree) is None:
            missing.append(relative(file))
        missing += [
            f"{relative(file)}: {name}"
            for name, node in public_things(tree)
            if ast.get_docstring(node) is None  # type: ignore[arg-type]
        ]
    assert missing == []


def test_nothing_is_printed() -> None:
    wrong = [
        f"{relative(file)}:{node.lineno}"
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert wrong == []


def test_names_say_what_is_inside() -> None:
    names = {part for file in FILES for part in name_of(file)}
    assert not names & UNWANTED_NAMES
    assert not [name for name in names if name.startswith("base_") or name.endswith("_impl")]
    classes = [node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert not [name for name in classes if name.endswith(("Manager", "Factory", "Impl"))]


BIGDL = "nn.layer nn.criterion keras.layers keras.models keras.autograd keras.objectives optim.optimizer utils.common"


def given_by_bigdl() -> set[str]:
    """Return the names of BigDL's API."""
    modules = ["orca_classic.bigdl.net", *(f"bigdl.dllib.{name}" for name in BIGDL.split())]
    return {name for module in modules for name in importlib.import_module(module).__all__}


def test_one_word_names_one_class() -> None:
    names = [
        node.name
        for file, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and name_of(file)[:2] != ("orca_classic", "zoo")
        and name_of(file) != ("orca_classic", "estimator")  # the Estimator, with more frameworks
        # BigDL's API gives some names twice (Model, Input), and some that others have (MAE, Estimator).
        if name_of(file)[:2] != ("orca_classic", "bigdl") or node.name not in given_by_bigdl()
    ]
    assert sorted({name for name in names if names.count(name) > 1}) == []


EXAMPLES = [".".join(name_of(file)) for file in FILES if re.search(r"^\s+>>> ", file.read_text(), re.MULTILINE)]
NEEDS = {
    "orca.estimators.estimator": "torch",
    "orca.estimators.keras": "tensorflow",
    "orca_classic.mxnet.estimator": "mxnet",
    "orca_classic.tf1.estimators.graph": "tensorflow",
    "orca.sources.ray": "ray",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in NEEDS else name for name in EXAMPLES]
)
def test_examples_in_docstrings_hold(name: str) -> None:
    pytest.importorskip(NEEDS.get(name, "torch" if ".torch" in name else "orca"))
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0
