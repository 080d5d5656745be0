"""Files: stages on disk. Owns their layout: Spark's metadata, and the module as JSON and safetensors beside it.

<path>/metadata     class, uid, and the params that are numbers and texts: JSON, written by Spark
<path>/module       the module's classes, settings and weights, all other params, the form of rows and answers
<path>/validation   the rows of setValidation, as Parquet
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

from pyspark.ml import Transformer
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter
from pyspark.sql import SparkSession
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from orca.errors import ArgumentError
from orca.frameworks.torch.architecture import build, describe, imported, reference
from orca.storage.state import State
from orca.storage.states import load_state, save_state
from orca_classic.bigdl.layer import Layer
from orca_classic.nnframes.settings import packed, unpacked
from orca_classic.nnframes.wrappers import TorchModel, TorchOptim

# Params that are objects, or hold some.
_OBJECTS = ("samplePreprocessing", "optimMethod", "endWhen", "trainSummary", "validationSummary", "validation",
            "checkpoint", "clipping")  # fmt: skip


class Setting(Transformer):
    """An object in the grid of a search. Spark's searches write numbers, texts and stages, so this is a stage.

    Its `transform` changes nothing; the stage with this setting holds the object itself.
    """

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    @staticmethod
    def of(value: Any) -> Any:
        """Return a value, as a Setting unless it is JSON: the converter of params, which ParamGridBuilder calls."""
        try:
            json.dumps(value)
        except TypeError:
            return value if isinstance(value, Setting) else Setting(value)
        return value

    def _transform(self, dataset: Any) -> Any:
        return dataset

    def save(self, path: str) -> None:
        """Write it as JSON and safetensors; nothing is pickled."""
        session = SparkSession.active()
        state = State(payload={"value": packed(self.value, "the grid of a search")})
        DefaultParamsWriter.saveMetadata(self, path, session)
        save_state(state, _module_in(path, session), "torch")

    @classmethod
    def load(cls, path: str) -> Setting:
        """Read a stage that `save` wrote."""
        return cls(unpacked(load_state(_module_in(path, SparkSession.active()), "torch").payload["value"]))


class StageWriter(MLWriter):
    """The writer of an NNModel or an NNEstimator.

    Raises:
        ArgumentError: Something cannot be described in JSON, such as an object of a class of the program itself.
    """

    def __init__(self, instance: Any) -> None:
        super().__init__()
        self.instance = instance

    def save(self, path: str) -> None:
        """Write the stage. A stage that it replaces is removed once everything to write is in memory."""
        state, rows = self._state(), self._rows()  # before anything is written, or removed
        if self.shouldOverwrite:
            rows = None if rows is None else rows.localCheckpoint()  # they may be in the folder to be removed
            self._handleOverwrite(path)
        stage, defaults = self.instance, dict(self.instance._defaultParamMap)
        values = {param.name: value for param, value in stage._paramMap.items() if param.name not in _OBJECTS}
        for name in _OBJECTS:
            if stage.hasParam(name):
                stage._defaultParamMap.pop(getattr(stage, name), None)
        try:
            DefaultParamsWriter.saveMetadata(stage, path, self.sparkSession, None, values)
        finally:
            stage._defaultParamMap = defaults
        if rows is not None:
            rows.write.parquet(f"{path.rstrip('/')}/validation")
        save_state(state, _module_in(path, self.sparkSession), "torch")

    def _state(self) -> State:
        """Return all that is no plain param: the weights, the kind of model, and params that are objects."""
        stage = self.instance
        model, module, state = stage.parts()
        kind = "TorchModel" if isinstance(model, TorchModel) else "layer" if isinstance(model, Layer) else "module"
        about = {"model": kind} | ({"made_by": reference(model.source, "the model")} if module is None else {})
        weights = [] if module is None else list(module.parameters())
        objects = {param.name: value for param, value in stage._paramMap.items() if param.name in _OBJECTS}
        if objects.get("validation") is not None:
            trigger, _, *more = objects["validation"]
            objects["validation"] = [trigger, None, *more]
        if isinstance(objects.get("optimMethod"), LRScheduler):  # which goes with its optimizer
            objects["optimMethod"] = TorchOptim.from_pytorch(objects["optimMethod"])
        payload = {
            "models": [] if module is None else [module.state_dict()],
            "architecture": None if module is None else describe(module),
            "about": about,
            "objects": {name: packed(value, name, weights) for name, value in objects.items()},
            "attributes": {name: packed(getattr(stage, name), name, weights) for name in stage.saved_names},
            "preprocessing": packed(stage._defaultParamMap[stage.samplePreprocessing], "feature_preprocessing"),
        }
        return replace(state, payload=payload)

    def _rows(self) -> Any:
        validation = self.instance.hasParam("validation") and self.instance.getOrDefault("validation")
        return validation[1] if validation else None


class StageReader(MLReader[Any]):
    """The reader of an NNModel, an NNEstimator, or a class derived from them."""

    def __init__(self, cls: Any) -> None:
        super().__init__()
        self.cls = cls

    def load(self, path: str, model: Any = None, **attributes: Any) -> Any:
        """Read a stage.

        Args:
            path: The path.
            model: The module to load the weights into, where the saved one cannot be built by its name.
            attributes: Attributes to use instead of the saved ones.
        """
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        state = load_state(_module_in(path, self.sparkSession), "torch")
        payload = state.payload
        if "objects" not in payload:
            raise ArgumentError(
                f"{path} holds a module without the settings of a stage: it was saved by an older release. Load it "
                "with that one, fit or make the stage again with this one, and save it."
            )
        kind = metadata["class"].rsplit(".", 1)[-1]
        if kind != self.cls.__name__:
            raise ArgumentError(f"{path} holds a {kind}, not a {self.cls.__name__}. Load it with {kind}.load(path).")
        original, module = _model(payload, model)
        weights = [] if module is None else list(module.parameters())
        values = {
            name: unpacked(value, weights) for name, value in payload["attributes"].items() if name not in attributes
        }
        stage = self.cls.__new__(self.cls)
        stage.restore(original, unpacked(payload["preprocessing"]), state, values | attributes)
        stage._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(stage, metadata)
        objects = {name: unpacked(value, weights) for name, value in payload["objects"].items()}
        if objects.get("validation") is not None:
            objects["validation"][1] = self.sparkSession.read.parquet(f"{path.rstrip('/')}/validation")
        return stage._set(**objects)


def _model(payload: dict[str, Any], model: Any) -> tuple[Any, nn.Module | None]:
    """Return the model as the kind of object that was saved, and its module; None for one that is not made yet."""
    about = payload["about"]
    if "made_by" in about and model is None:
        return TorchModel(imported(about["made_by"])), None
    net: Any = build(payload["architecture"]) if model is None else copy.deepcopy(model)
    if payload["models"]:
        net.load_state_dict(payload["models"][0])
    kinds = {"layer": lambda: Layer.of(net.layer), "TorchModel": lambda: TorchModel(net), "module": lambda: net}
    return kinds[about["model"]](), net


def _module_in(path: str, session: Any) -> str:
    return f"{qualified(path, session).rstrip('/')}/module"


def qualified(path: str, session: Any) -> str:
    """Return a path with its filesystem by Spark's settings; unchanged in a Connect client, which has none."""
    context = getattr(session, "_jsparkSession", None)
    if context is None:
        return path
    jvm = session.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    conf = context.sessionState().newHadoopConf()
    url = str(place.getFileSystem(conf).makeQualified(place).toString())
    return url.removeprefix("file:") if url.startswith("file:/") and not url.startswith("file://") else url
