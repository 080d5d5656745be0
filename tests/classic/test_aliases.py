"""The import hook of `zoo` and `bigdl`: their modules behave as files would."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pickle
import pkgutil
import pydoc
import subprocess
import sys
import zipfile
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import bigdl
import zoo
from orca_classic import aliases
from programs import run_program

SRC = Path(aliases.__file__).resolve().parents[1]
PYTORCH = "zoo.orca.learn.pytorch"


def test_all_ways_to_import_give_the_same_objects() -> None:
    import zoo.orca.learn.pytorch.estimator as module
    from zoo.orca.learn import pytorch
    from zoo.orca.learn.pytorch import Estimator

    assert importlib.import_module(f"{PYTORCH}.estimator") is module is pytorch.estimator
    assert Estimator is module.Estimator is pytorch.Estimator is pydoc.locate(f"{PYTORCH}.Estimator")
    assert importlib.reload(module).Estimator is Estimator
    assert Estimator is not importlib.import_module("bigdl.orca.learn.pytorch").Estimator


@pytest.mark.parametrize("root", [zoo, bigdl])
def test_walking_a_package_finds_all_of_its_modules(root: object) -> None:
    name = root.__name__
    found = {info.name: info.ispkg for info in pkgutil.walk_packages(root.__path__, f"{name}.")}
    assert found.keys() == {path for path in aliases.modules() if path.startswith(f"{name}.")}
    assert all(hasattr(sys.modules[path], "__path__") == ispkg for path, ispkg in found.items() if path in sys.modules)
    assert found[f"{name}.orca"] and not found[f"{name}.orca.data.file"]


def test_paths_of_older_releases_have_the_modules_of_the_newer() -> None:
    moved = {"zoo.feature.image.imageset", "zoo.tfpark.gan", "zoo.pipeline.api.torch.utils", "bigdl.nn.keras.layer"}
    moved |= {"zoo.util.tf", "bigdl.optim.optimizer", "zoo.pipeline.estimator.estimator", "bigdl.dataset.mnist"}
    assert moved <= aliases.modules().keys()


def test_modules_tell_about_themselves() -> None:
    metrics = importlib.import_module("zoo.orca.learn.metrics")
    assert {"Accuracy", "__name__", "__doc__"} <= set(dir(metrics)) and dict(inspect.getmembers(metrics))["MSE"]
    assert {"data", "learn", "OrcaContext"} <= set(dir(importlib.import_module("zoo.orca")))
    page = pydoc.plain(pydoc.render_doc("zoo.orca.learn.metrics"))
    assert "Names of zoo.orca.learn.metrics. They live in orca_classic.zoo.metrics, orca.core.metrics." in page
    assert "class Accuracy" in page
    assert "PACKAGE CONTENTS" in pydoc.plain(pydoc.render_doc("zoo.orca"))
    assert inspect.getmodule(metrics.Accuracy).__name__ == metrics.Accuracy.__module__ == "orca_classic.zoo.metrics"
    assert repr(metrics) == "<module 'zoo.orca.learn.metrics' (orca_classic.aliases)>"


def test_unknown_modules_and_names_are_told_with_the_nearest() -> None:
    with pytest.raises(
        ModuleNotFoundError, match=rf"'{PYTORCH}\.estimators'\. Did you mean {PYTORCH}\.estimator\?"
    ) as e:
        importlib.import_module(f"{PYTORCH}.estimators")
    assert e.value.name == f"{PYTORCH}.estimators"
    with pytest.raises(ModuleNotFoundError, match=r"'zoo\.zzz'\. zoo has common, feature, orca, "):
        importlib.import_module("zoo.zzz")
    with pytest.raises(ImportError, match="cannot import name 'Zzz' from 'zoo.orca'"):
        exec("from zoo.orca import Zzz")
    layers = importlib.import_module("zoo.orca.learn.metrics")
    with pytest.raises(AttributeError, match=r"has no name 'Acuracy'\. Did you mean Accuracy\?"):
        layers.Acuracy  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no name 'zzz'\. It has AUC, MAE, "):
        layers.zzz  # noqa: B018
    assert not hasattr(layers, "__wrapped__") and not hasattr(layers, "__file__")


def test_a_name_loads_its_own_home_only() -> None:
    run_program("""
        import sys
        import zoo.pipeline.nnframes, bigdl.dllib.nn.layer, zoo.orca.learn.openvino.estimator
        homes = ("orca_classic.bigdl", "orca_classic.zoo", "orca.estimators", "numpy", "pyspark", "torch")
        assert not {name for name in sys.modules if name.startswith(homes)}
        from zoo.orca.data.file import exists
        assert "orca.data.file" in sys.modules and not {"pyspark", "torch", "orca.data.shard"} & set(sys.modules)
    """)


def test_star_import_does_not_turn_graph_mode_on() -> None:
    pytest.importorskip("tensorflow")
    run_program("""
        import sys
        from zoo.tfpark import *
        assert TFDataset and "tensorflow" not in sys.modules and "tf1" not in globals()
        from zoo.tfpark import tf1
        assert tf1.__name__ == sys.modules["zoo"].tfpark.tf1.__name__ and not tf1.executing_eagerly()
    """)


def test_functions_and_classes_reach_a_fresh_process() -> None:
    import zoo.orca.learn.metrics as metrics

    assert b"zoo.orca" not in pickle.dumps(metrics.Accuracy)
    sent = cloudpickle.dumps((lambda: metrics.Accuracy(), _accuracy_by_its_whole_name))
    program = "import pickle, sys; print([f().__class__.__name__ for f in pickle.load(sys.stdin.buffer)])"
    run = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, cwd=SRC, check=True)
    assert run.stdout.decode().strip() == "['Accuracy', 'Accuracy']"


def _accuracy_by_its_whole_name() -> object:
    import zoo.orca.learn.metrics

    return zoo.orca.learn.metrics.Accuracy()


cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_modules_import_from_a_zip(tmp_path: Path) -> None:
    wheel = tmp_path / "orca.zip"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in SRC.rglob("*.py"):
            archive.write(file, file.relative_to(SRC))
    program = f"""
        import sys
        sys.path.insert(0, {str(wheel)!r})
        import pkgutil, zoo
        from bigdl.orca.learn.trigger import EveryEpoch
        assert zoo.__file__.startswith({str(wheel)!r}), zoo.__file__
        assert sys.modules["orca.core.triggers"].__file__.startswith({str(wheel)!r})
        assert len(list(pkgutil.walk_packages(zoo.__path__, "zoo."))) > 90
    """
    run_program(program)


@pytest.mark.parametrize(
    "module",
    """
    bigdl.dllib.feature.image bigdl.dllib.feature.common bigdl.dllib.utils.common bigdl.nn.layer zoo.common.nncontext
    bigdl.util.common bigdl.optim.optimizer zoo.feature.common zoo.feature.image zoo.feature.text zoo.util.tf
    zoo.util.triggers zoo.pipeline.api.keras.layers bigdl.dlframes.dl_classifier zoo
    """.split(),
)
def test_star_imports_bring_what_the_original_modules_had_imported(module: str) -> None:
    scope: dict[str, object] = {}
    exec(f"from {module} import *", scope)
    wanted = "np sys os JTensor Sample get_spark_context callZooFunc INTMAX warnings".split()
    assert [name for name in wanted if name not in scope] == []
    assert scope["np"] is np and scope["sys"] is sys
    assert "SparkContext" in scope or importlib.util.find_spec("pyspark") is None


def test_star_import_of_nnframes_brings_optim_methods_and_preprocessing() -> None:
    pytest.importorskip("pyspark")
    scope: dict[str, object] = {}
    exec("from zoo.pipeline.nnframes import *", scope)
    assert {"NNEstimator", "Adam", "MaxEpoch", "TrainSummary", "SeqToTensor", "ChainedPreprocessing"} <= scope.keys()


def test_star_imports_leave_out_packages_that_are_not_installed() -> None:
    run_program("""
        import sys
        from importlib.abc import MetaPathFinder
        class Missing(MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("pyspark", "six"):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        import importlib.util
        found = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name in ("pyspark", "six") else found(name, *rest)
        sys.meta_path.insert(0, Missing())
        from bigdl.dllib.keras.metrics import *
        from zoo.common.nncontext import *
        assert Accuracy and np and "SparkContext" not in globals() and "six" not in globals()
        try:
            from zoo.common.nncontext import SparkContext
        except ImportError as error:
            assert "pip install 'orca-dl[spark]'" in str(error), error
        else:
            raise AssertionError
    """)


def test_transformers_bring_shards_and_context() -> None:
    scope: dict[str, object] = {}
    exec("from bigdl.orca.data.transformer import *", scope)
    from orca.cluster.context import OrcaContext
    from orca.data.shard import SparkXShards, spark_df_to_pd_sparkxshards

    wanted = (OrcaContext, SparkXShards, spark_df_to_pd_sparkxshards)
    assert tuple(scope[value.__name__] for value in wanted) == wanted and "StringIndexer" in scope


def test_steps_on_images_and_helpers_have_their_older_places() -> None:
    pytest.importorskip("torch")
    from bigdl.dllib.feature.common import BigDLAdapter, ChainedPreprocessing, Resize
    from bigdl.dllib.feature.image.transforms import CenterCrop, Compose
    from bigdl.dllib.feature.image.transforms import Resize as OtherResize
    from bigdl.dllib.utils.utils import remove_batch
    from orca_classic.bigdl.featuresets import LocalImageSet

    assert remove_batch((None, 3)) == (3,) and OtherResize is Resize
    images = LocalImageSet([np.zeros((9, 8, 3), np.uint8)])
    for chain in (Compose([Resize(4, 6), CenterCrop(2, 3)]), ChainedPreprocessing([BigDLAdapter(Resize(3, 2))])):
        assert images.transform(chain).get_image()[0].shape == (3, 3, 2)
