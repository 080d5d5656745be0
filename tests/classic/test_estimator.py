"""The Estimator with the older frameworks: its calls, their arguments and their documentation."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import orca_classic.estimator
from orca.errors import SignatureError
from orca_classic import Estimator
from orca_classic.zoo import bigdl, zoo

FOLDER = Path(orca_classic.estimator.__file__).parent


def arguments(file: str, function: str) -> str:
    """Return the arguments of a method, without importing a framework."""
    tree = ast.parse((FOLDER / file).read_text())
    method = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function)
    return ast.unparse(method.args)


@pytest.mark.parametrize(
    ("name", "file"),
    [("graph", "tf1/estimators/graph.py"), ("mxnet", "mxnet/estimator.py"), ("bigdl", "bigdl/estimator.py")],
)
def test_a_call_has_the_arguments_and_defaults_of_the_framework_and_documents_each(name: str, file: str) -> None:
    assert arguments("estimator.py", f"from_{name}") == arguments(file, "of")
    method = getattr(Estimator, f"from_{name}")
    assert [each for each in inspect.signature(method).parameters if f"{each}: " not in method.__doc__] == []


@pytest.mark.parametrize("name", ["torch", "keras", "openvino", "graph", "mxnet", "bigdl"])
@pytest.mark.parametrize("kind", [zoo.Estimator, bigdl.Estimator], ids=["zoo", "bigdl"])
def test_estimators_of_both_older_systems_have_the_same_arguments(kind: type, name: str) -> None:
    own, ours = (inspect.signature(getattr(each, f"from_{name}")) for each in (kind, Estimator))
    assert list(own.parameters.values()) == list(ours.parameters.values())


@pytest.mark.parametrize("kind", [Estimator, zoo.Estimator, bigdl.Estimator], ids=["classic", "zoo", "bigdl"])
def test_a_wrong_argument_is_named_with_the_public_call(kind: type[Estimator]) -> None:
    with pytest.raises(
        SignatureError, match=r"^Estimator.from_bigdl\(\) has no argument 'worker_per_node'. Did you mean"
    ):
        kind.from_bigdl(model=1, worker_per_node=2)
    with pytest.raises(SignatureError, match=r"^Estimator.from_graph\(\) has no argument 'outptus'. Did you mean"):
        kind.from_graph(outptus=1)
