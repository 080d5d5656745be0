"""The shims `zoo` and `bigdl`: nothing but names, and light to import."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import bigdl.orca.learn.pytorch
import orca
import zoo.orca.learn.pytorch
from orca.registry import BACKENDS
from programs import run_program

SRC = Path(__file__).resolve().parent.parent / "src"
FILES = sorted(file for root in ("zoo", "bigdl") for file in (SRC / root).rglob("*.py"))
MODULES = [".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__") for file in FILES]
PATHS = ["orca", "orca.common", "orca.data", "orca.learn", "orca.learn.metrics", "orca.learn.trigger"]
PATHS += ["orca.learn.horovod", "orca.learn.horovod.horovod_ray_runner"]
PATHS += [f"orca.data.{name}" for name in "file image image.utils pandas ray_xshards shard tf.data utils".split()]
PATHS += ["orca.data.transformer"]
PATHS += [f"orca.data.image.{name}" for name in ("parquet_dataset", "preprocessing", "tfrecord_dataset", "voc_dataset")]
PATHS += [f"orca.learn.{kind}{file}" for kind in ("openvino", "pytorch", "tf2") for file in ("", ".estimator")]
PATHS += ["orca.learn.mxnet"]
PATHS += ["orca.learn.pytorch.training_operator", "orca.learn.pytorch.pytorch_metrics"]
# Modules whose classes are derived from those of a framework, or whose star import brings some of its own.
LOADING = r"nnframes|dlframes|nncontext|api\.torch|orca\.torch"
CALLBACKS = ["base", "maincallback", "maxsteps", "model_checkpoint", "tensorboard", "tqdm", "wandb"]


@pytest.mark.parametrize("root", ["zoo", "bigdl"])
def test_every_promised_module_is_there(root: str) -> None:
    assert {root, *(f"{root}.{path}" for path in PATHS)} <= set(MODULES)


@pytest.mark.parametrize("module", ["orca.triggers", "zoo.util.triggers", "bigdl.dllib.utils.triggers"])
def test_triggers_have_one_home_and_a_name_in_each_place(module: str) -> None:
    triggers, home = importlib.import_module(module), importlib.import_module("orca.core.triggers")
    classes = {name for name, value in vars(home).items() if inspect.isclass(value) and issubclass(value, home.Trigger)}
    shared = classes - {"Trigger", "Combination", "AskedTrigger", "And", "Or"}
    assert len(shared) == 8 and shared <= set(triggers.__all__) <= set(home.__all__)
    assert all(getattr(triggers, name) is getattr(home, name) for name in triggers.__all__)


def test_no_folder_of_a_shim_is_a_namespace_package() -> None:
    folders = {file.parent for file in FILES}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("file", FILES, ids=MODULES)
def test_shim_is_a_docstring_imports_and_all(file: Path) -> None:
    text = file.read_text()
    tree = ast.parse(text)
    assert len(text[: text.index("__all__")].splitlines()) <= 16
    assert len((ast.get_docstring(tree) or "\n").splitlines()) == 1
    _, *imports, names = tree.body
    assert all(
        isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("orca.", "orca_classic."))
        for node in imports
    )
    assert isinstance(names, ast.Assign | ast.AnnAssign)
    assert ast.unparse(names.targets[0] if isinstance(names, ast.Assign) else names.target) == "__all__"
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)]


@pytest.mark.parametrize("module", MODULES)
def test_star_import_gives_the_names_of_orca_and_no_others(module: str) -> None:
    shim = importlib.import_module(module)
    namespace: dict[str, Any] = {}
    exec(f"from {module} import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(shim.__all__)
    if not module.endswith("nncontext"):  # whose star import brings numpy, os and the like, as programs rely on
        assert all(
            value.__module__.startswith(("orca.", "orca_classic."))
            for name, value in namespace.items()
            if name != "__builtins__"
        )


@pytest.mark.parametrize("path", PATHS)
def test_both_roots_give_the_same_names(path: str) -> None:
    zoos, bigdls = (importlib.import_module(f"{root}.{path}") for root in ("zoo", "bigdl"))
    assert zoos.__all__ == bigdls.__all__
    own = [name for name in zoos.__all__ if getattr(zoos, name) is not getattr(bigdls, name)]
    assert own == [name for name in zoos.__all__ if name == "Estimator"]


@pytest.mark.parametrize("file", ["", *(f".{name}" for name in CALLBACKS)])
def test_callbacks_have_their_module_of_bigdl(file: str) -> None:
    shim = importlib.import_module(f"bigdl.orca.learn.pytorch.callbacks{file}")
    home = importlib.import_module("orca.callbacks")
    classes = [name for name in shim.__all__ if inspect.isclass(getattr(shim, name))]
    assert classes and all(getattr(shim, name) is getattr(home, name) for name in classes)
    assert file or shim.__all__ == home.__all__


def test_training_operator_has_one_home() -> None:
    pytest.importorskip("torch")
    home = importlib.import_module("orca.frameworks.torch.operator").TrainingOperator
    for module in ("orca.operator", "zoo.orca.learn.pytorch", "bigdl.orca.learn.pytorch.training_operator"):
        assert importlib.import_module(module).TrainingOperator is home
    with pytest.raises(ImportError, match="cannot import name 'Operator'"):
        exec("from zoo.orca.learn.pytorch import Operator")


def test_shims_hold_every_metric() -> None:
    home = importlib.import_module("orca.core.metrics")
    names = {name for name in home.__all__ if inspect.isclass(getattr(home, name))} - {"MeanMetric"}
    assert set(importlib.import_module("zoo.orca.learn.metrics").__all__) == names
    callable_ones = importlib.import_module("zoo.orca.learn.pytorch.pytorch_metrics")
    assert set(callable_ones.__all__) == names - {"AUC", "Metric"} | {"AUROC", "AccuracyMetric", "PytorchMetric"}


@pytest.mark.parametrize("root", ["zoo", "bigdl"])
def test_metrics_of_torch_models_are_called_with_tensors(root: str) -> None:
    torch = pytest.importorskip("torch")
    metrics = importlib.import_module(f"{root}.orca.learn.pytorch.pytorch_metrics")
    chances, truth = torch.tensor([0.3, 0.4, 0.2, 0.5]), torch.tensor([0, 1, 0, 0])
    assert torch.isclose(metrics.AUROC()(chances, truth), torch.tensor(2 / 3))
    accuracy = metrics.Accuracy()
    assert isinstance(accuracy, metrics.AccuracyMetric) and isinstance(accuracy, metrics.PytorchMetric)
    accuracy(chances, truth)
    accuracy(torch.tensor([0.9]), torch.tensor([1]))
    assert accuracy.compute() == torch.tensor(0.8)
    assert metrics.CustomizedMetric(lambda output, target: output.sum())(chances, truth) == chances.sum()


@pytest.mark.parametrize(
    ("kind", "backend"),
    [(zoo.orca.learn.pytorch.Estimator, "bigdl"), (bigdl.orca.learn.pytorch.Estimator, "spark")],
    ids=["zoo", "bigdl"],
)
def test_default_backend_is_the_one_of_the_import_root(kind: Any, backend: str) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(1, 1)
    est = kind.from_torch(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss=torch.nn.MSELoss())
    assert est.backend == BACKENDS[backend]
    assert isinstance(est, kind) and isinstance(est, orca.Estimator)
    given = kind.from_torch(model=model, loss=torch.nn.MSELoss(), backend="local")
    assert given.backend == BACKENDS["local"]


@pytest.mark.parametrize("root", ["zoo", "bigdl"])
@pytest.mark.parametrize("path", ["orca.learn.tf2", "orca.learn.tf2.estimator"])
def test_estimator_of_keras_runs_on_the_cluster_that_is_up(root: str, path: str) -> None:
    keras = pytest.importorskip("keras")
    kind = importlib.import_module(f"{root}.{path}").Estimator
    est = kind.from_keras(model_creator=lambda config: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    assert isinstance(est, orca.Estimator)
    assert est.backend is None
    assert kind.from_keras(model_creator=len, backend="tf2").backend == BACKENDS["ray"]


def test_importing_every_shim_loads_no_framework_and_no_engine() -> None:
    run_program(f"""
        import importlib, sys
        for module in {[module for module in MODULES if not re.search(LOADING, module)]!r}:
            importlib.import_module(module)
        heavy = {{"pyspark", "ray", "torch", "tensorflow", "keras", "mxnet", "openvino", "pandas"}} & set(sys.modules)
        assert not heavy, heavy
    """)
