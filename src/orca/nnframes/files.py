"""Files: stages on disk. Owns their layout: Spark's metadata, and the module as JSON and safetensors beside it.

<path>/metadata   class, uid, params, preprocessing: JSON, written by Spark
<path>/module     classes and settings of the module, its weights, and what its rows and answers look like
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from orca.bigdl.layer import Layer
from orca.feature.preprocessing import from_json, preprocessing_of
from orca.frameworks.torch.architecture import build, describe
from orca.nnframes.wrappers import TorchModel
from orca.storage.states import load_state, save_state

_OBJECTS = ("samplePreprocessing",)  # params that are no numbers or texts


class NNModelWriter(MLWriter):
    """The writer of an NNModel.

    Raises:
        ArgumentError: The model cannot be told in JSON: its class is part of the program itself, say.
    """

    def __init__(self, instance: Any) -> None:
        super().__init__()
        self.instance = instance

    def saveImpl(self, path: str) -> None:
        """Write the stage."""
        stage = self.instance
        module = stage.estimator.get_model()
        about, state = describe(module), stage.state.for_answers()
        payload = {"models": [module.state_dict()], "architecture": about}  # before anything is written
        values = {param.name: value for param, value in stage._paramMap.items() if param.name not in _OBJECTS}
        preprocessing = preprocessing_of(stage.getSamplePreprocessing(), "samplePreprocessing")
        extra = {
            "preprocessing": None if preprocessing is None else preprocessing.as_json(),
            "model": "layer" if isinstance(stage._given, Layer) and not isinstance(stage._given, TorchModel)
            else "TorchModel" if isinstance(stage._given, TorchModel) else "module",
            "attributes": {name: getattr(stage, name) for name in stage.extra_metadata},
        }  # fmt: skip
        defaults = dict(stage._defaultParamMap)
        for name in _OBJECTS:
            stage._defaultParamMap.pop(getattr(stage, name), None)
        try:
            DefaultParamsWriter.saveMetadata(stage, path, self.sparkSession, {"orca": json.dumps(extra)}, values)
        finally:
            stage._defaultParamMap = defaults
        place = f"{qualified(path, self.sparkSession).rstrip('/')}/module"
        save_state(replace(state, payload=payload), place, "torch")


class NNModelReader(MLReader[Any]):
    """The reader of an NNModel, or of a class derived from it."""

    def __init__(self, cls: Any) -> None:
        super().__init__()
        self.cls = cls

    def load(self, path: str, model: Any = None) -> Any:
        """Read a stage; see NNModel.load."""
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        about = json.loads(metadata["orca"])
        state = load_state(f"{qualified(path, self.sparkSession).rstrip('/')}/module", "torch")
        about_net = state.payload.pop("architecture")
        net: Any = build(about_net) if model is None else copy.deepcopy(model)
        net.load_state_dict(state.payload["models"][0])
        kinds = {"layer": lambda: Layer.of(net.layer), "TorchModel": lambda: TorchModel(net), "module": lambda: net}
        stage = self.cls(kinds[about["model"]](), about["preprocessing"] and from_json(about["preprocessing"]))
        stage._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(stage, metadata)
        for name, value in about["attributes"].items():
            setattr(stage, name, value)
        stage.estimator._state = state
        return stage


def qualified(path: str, session: Any) -> str:
    """Return a path with the filesystem that Spark takes it to be on; a Connect client does not know, and takes it."""
    context = getattr(session, "_jsparkSession", None)
    if context is None:
        return path
    jvm = session.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    conf = context.sessionState().newHadoopConf()
    url = str(place.getFileSystem(conf).makeQualified(place).toString())
    return url.removeprefix("file:") if url.startswith("file:/") and not url.startswith("file://") else url
