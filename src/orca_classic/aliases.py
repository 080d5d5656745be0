"""Aliases: the modules `zoo.*` and `bigdl.*`. Owns the table of their names and the import hook that serves them.

`import zoo` and `import bigdl` call `install`. Below them no module is a file: a path entry finder, which only the
`__path__` of these packages leads to, makes each module of the table when it is imported, and a name loads its home
when it is first used. Nothing is copied: classes keep their real module, so what is pickled needs no alias.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.abc import Loader, PathEntryFinder
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from types import ModuleType
from typing import Any

# Where the older releases had the modules of BigDL 2. Both paths have all modules of the newer one.
_MOVED = {
    "zoo.common.nncontext": "bigdl.dllib.nncontext",
    "zoo.feature": "bigdl.dllib.feature",
    "zoo.orca": "bigdl.orca",
    "zoo.pipeline.api.autograd": "bigdl.dllib.keras.autograd",
    "zoo.pipeline.api.keras": "bigdl.dllib.keras",
    "zoo.pipeline.api.torch": "bigdl.orca.torch",
    "zoo.pipeline.api.utils": "bigdl.dllib.keras.utils",
    "zoo.pipeline.estimator": "bigdl.dllib.estimator",
    "zoo.pipeline.inference": "bigdl.orca.inference",
    "zoo.pipeline.nnframes": "bigdl.dllib.nnframes",
    "zoo.tfpark": "bigdl.orca.tfpark",
    "zoo.util.tf": "bigdl.dllib.utils.tf",
    "zoo.util.triggers": "bigdl.dllib.utils.triggers",
    "bigdl.dataset": "bigdl.dllib.feature.dataset",
    "bigdl.keras.converter": "bigdl.dllib.keras.converter",
    "bigdl.nn": "bigdl.dllib.nn",
    "bigdl.optim": "bigdl.dllib.optim",
    "bigdl.transform": "bigdl.dllib.feature.transform",
    "bigdl.util.common": "bigdl.dllib.utils.common",
}

# What star imports of the modules of these packages bring besides their own names.
_LIBRARY = ("bigdl.dlframes", "bigdl.dllib", "zoo.common", "zoo.pipeline")
_BESIDES = (
    ".bigdl.datasets: to_sample_rdd; .zoo.nncontext: *COMMON, "
    "[RDD], [DataFrame], [SQLContext], [SparkConf], [SparkContext], [SparkFiles], [six]"  # in COMMON if installed
)

# Names that several modules have.
_ESTIMATOR = ".zoo.{root}: Estimator"
_CONTEXT = "orca.cluster.context: OrcaContext, init_orca_context, stop_orca_context"
_PANDAS = ".zoo.data: read_csv; orca.data.pandas: read_json, read_parquet"
_HOROVOD = ".horovod.runner: HorovodRayRunner"
_GAN = ".tf1.tfpark.gan: GANEstimator"
_IMAGE_SETS = ".bigdl.featuresets: DistributedImageSet, ImageSet, LocalImageSet"
_OPTIMIZERS = (
    ".bigdl.optimizers.methods: LBFGS, SGD, Adadelta, Adagrad, Adam, Adamax, Ftrl, OptimMethod as Optimizer, "
    "ParallelAdam, RMSprop"
)
_TRIGGERS = (
    "orca.core.triggers: EveryEpoch, MaxEpoch, MaxIteration, MaxScore, MinLoss, SeveralIteration, TriggerAnd, TriggerOr"
)
_PREPROCESSING = ".bigdl.feature.preprocessing: *; .bigdl.featuresets: FeatureSet, Relation, Relations"
_OPTIMIZER = (
    ".bigdl.optimizer: BaseOptimizer, DistriOptimizer, LocalOptimizer, Optimizer, TrainSummary, ValidationSummary; "
    ".bigdl.validation: *METHODS; .bigdl.initial: *REGULARIZERS; .bigdl.optimizers: Adadelta, Adagrad, Adam, Adamax, "
    "Ftrl, LBFGS, OptimMethod, ParallelAdam, RMSprop, SGD; .bigdl.optimizers.schedules: Default, Exponential, "
    f"MultiStep, Plateau, Poly, SequentialSchedule, Step, Warmup; {_TRIGGERS}; .bigdl.refusals: *OPTIMIZER"
)
_KERAS_LAYERS = ".bigdl.keras.layers: *KERAS, merge; .bigdl.keras.engine: Input, KerasLayer; .bigdl.refusals: *KERAS"
_KERAS_MODELS = ".bigdl.keras.engine: KerasNet, Model, Sequential; .bigdl.files: load_model"
_SHAPES = ".bigdl.datasets: remove_batch, toMultiShape"
_KERAS1 = ".bigdl.refusals: *BACKEND"

# {module: the homes of its names}. `home: *` stands for the names in the `__all__` of the home, `home: *NAMES` for
# those of another list in it, or for the keys of a dict of objects; `[name]` is left out of star imports. A home that
# begins with a dot is one of this package, and {root} is `zoo` or `bigdl`.
_TABLE = {
    "bigdl.dlframes.dl_classifier": ".nnframes.dlframes: DLClassifier, DLClassifierModel, DLEstimator, DLModel",
    "bigdl.dllib.estimator": ".bigdl.net: Estimator",
    "bigdl.dllib.estimator.estimator": ".bigdl.net: Estimator",
    "bigdl.dllib.feature.common": f"{_PREPROCESSING}; .bigdl.datasets: DataSet; .bigdl.vision: *",
    "bigdl.dllib.feature.dataset.base": ".bigdl.datasets: maybe_download",
    "bigdl.dllib.feature.dataset.dataset": ".bigdl.datasets: DataSet",
    "bigdl.dllib.feature.dataset.mnist": ".bigdl.datasets: extract_images, extract_labels, load_data, read_data_sets",
    "bigdl.dllib.feature.dataset.movielens": (
        ".bigdl.datasets: get_id_pairs, get_id_ratings, read_ratings as read_data_sets"
    ),
    "bigdl.dllib.feature.dataset.sentence": ".bigdl.datasets: read_localfile, sentence_tokenizer, sentences_split",
    "bigdl.dllib.feature.dataset.transformer": ".bigdl.datasets: normalizer",
    "bigdl.dllib.feature.image": f"{_IMAGE_SETS}; .bigdl.feature.image: *",
    "bigdl.dllib.feature.image.imagePreprocessing": ".bigdl.feature.image: *",
    "bigdl.dllib.feature.image.imageset": _IMAGE_SETS,
    "bigdl.dllib.feature.image.transforms": (
        ".bigdl.feature.image: *; .bigdl.feature.preprocessing: ChainedPreprocessing as Compose; .bigdl.vision: *"
    ),
    "bigdl.dllib.feature.text": (
        ".bigdl.featuresets: DistributedTextSet, LocalTextSet, Normalizer, SequenceShaper, TextFeature, "
        "TextFeatureToSample, TextSet, TextTransformer, Tokenizer, WordIndexer"
    ),
    "bigdl.dllib.feature.transform.vision.image": ".bigdl.vision: *",
    "bigdl.dllib.keras.autograd": (
        ".bigdl.keras.autograd: *FUNCTIONS, Constant, CustomLoss, Lambda, Parameter, Variable, epsilon"
    ),
    "bigdl.dllib.keras.backend": _KERAS1,
    "bigdl.dllib.keras.converter": ".bigdl.refusals: *CONVERTER",
    "bigdl.dllib.keras.layers": _KERAS_LAYERS,
    "bigdl.dllib.keras.metrics": (
        ".zoo.metrics: KerasAUC as AUC, MAE, MSE, Accuracy, BinaryAccuracy, CategoricalAccuracy, "
        "SparseCategoricalAccuracy, Top5Accuracy"
    ),
    "bigdl.dllib.keras.models": _KERAS_MODELS,
    "bigdl.dllib.keras.objectives": ".bigdl.keras.objectives: *OBJECTIVES",
    "bigdl.dllib.keras.optimizers": (
        ".bigdl.optimizers.methods: KerasAdam as Adam, AdamWeightDecay; .bigdl.optimizers.schedules: PolyEpochDecay"
    ),
    "bigdl.dllib.keras.regularizers": ".bigdl.datasets: l1, l1l2, l2",
    "bigdl.dllib.keras.utils": _SHAPES,
    "bigdl.dllib.net": ".bigdl.net: GraphNet, Net",
    "bigdl.dllib.nn.criterion": ".bigdl.criterion: Criterion, *CRITERIONS",
    "bigdl.dllib.nn.initialization_method": (
        ".bigdl.initial: BilinearFiller, ConstInitMethod, InitializationMethod, MsraFiller, Ones, RandomNormal, "
        "RandomUniform, Xavier, Zeros"
    ),
    "bigdl.dllib.nn.keras.backend": _KERAS1,
    "bigdl.dllib.nn.keras.keras_utils": _SHAPES,
    "bigdl.dllib.nn.keras.layer": _KERAS_LAYERS,
    "bigdl.dllib.nn.keras.layers.layer": _KERAS_LAYERS,
    "bigdl.dllib.nn.keras.layers.topology": _KERAS_MODELS,
    "bigdl.dllib.nn.keras.topology": _KERAS_MODELS,
    "bigdl.dllib.nn.layer": (
        ".bigdl.layer: Container, Layer, Node; .bigdl.layers: Input; .bigdl.recurrent: *LAYERS; .bigdl.refusals: "
        "*LAYERS"
    ),
    "bigdl.dllib.nncontext": ".zoo.nncontext: *",
    "bigdl.dllib.nnframes": f".nnframes: *; {_PREPROCESSING}; {_OPTIMIZER}",
    "bigdl.dllib.nnframes.nn_classifier": f".nnframes: *; {_PREPROCESSING}; {_OPTIMIZER}",
    "bigdl.dllib.nnframes.nn_image_reader": ".nnframes: NNImageReader",
    "bigdl.dllib.nnframes.nn_image_schema": ".nnframes: with_origin_column",
    "bigdl.dllib.optim.optimizer": _OPTIMIZER,
    "bigdl.dllib.utils.common": ".bigdl.datasets: to_sample_rdd",
    "bigdl.dllib.utils.file_utils": ".zoo.paths: *; .zoo.sample: JTensor, Sample; .bigdl.datasets: set_core_number",
    "bigdl.dllib.utils.tf": ".tf1.tfpark.net: export_tf, get_checkpoint_state, load_tf_checkpoint, save_tf_checkpoint",
    "bigdl.dllib.utils.triggers": _TRIGGERS,
    "bigdl.dllib.utils.utils": _SHAPES,
    "bigdl.orca": _CONTEXT,
    "bigdl.orca.common": _CONTEXT,
    "bigdl.orca.data": (
        "orca.data.ray_shards: RayXShards; .data.image.reading: read_images; .zoo.data: SharedValue; orca.data.shard: "
        "SparkXShards, XShards, spark_df_to_ray_dataset"
    ),
    "bigdl.orca.data.file": "orca.data.file: *",
    "bigdl.orca.data.image": ".data.image: *",
    "bigdl.orca.data.image.parquet_dataset": ".data.image.parquet_dataset: *, [_write_ndarrays]",
    "bigdl.orca.data.image.preprocessing": (
        ".data.image.reading: read_coco, read_images, read_images_pil, read_images_spark, read_voc"
    ),
    "bigdl.orca.data.image.tfrecord_dataset": (
        ".data.image.tfrecord: get_filenames, read_imagenet, read_tfrecord, write_imagenet, write_tfrecord"
    ),
    "bigdl.orca.data.image.utils": ".data.image.schema: *",
    "bigdl.orca.data.image.voc_dataset": ".data.image.voc: VOCDatasets",
    "bigdl.orca.data.pandas": _PANDAS,
    "bigdl.orca.data.pandas.preprocessing": _PANDAS,
    "bigdl.orca.data.ray_xshards": "orca.data.ray_shards: RayXShards",
    "bigdl.orca.data.shard": ".zoo.data: SharedValue; orca.data.shard: SparkXShards, XShards, spark_df_to_ray_dataset",
    "bigdl.orca.data.tf": ".data.tf.data: Dataset",
    "bigdl.orca.data.tf.data": ".data.tf.data: Dataset",
    "bigdl.orca.data.transformer": (
        "orca.data.transformer: *; orca.cluster.context: OrcaContext; orca.data.shard: SparkXShards, "
        "spark_df_to_pd_sparkxshards"
    ),
    "bigdl.orca.data.utils": "orca.data.shard: spark_df_to_pd_sparkxshards",
    "bigdl.orca.inference": ".bigdl.net: InferenceModel",
    "bigdl.orca.learn.bigdl": _ESTIMATOR,
    "bigdl.orca.learn.bigdl.estimator": _ESTIMATOR,
    "bigdl.orca.learn.horovod": _HOROVOD,
    "bigdl.orca.learn.horovod.horovod_ray_runner": _HOROVOD,
    "bigdl.orca.learn.metrics": (
        ".zoo.metrics: AUC, MAE, MSE, ROC, Accuracy, BinaryAccuracy, BinaryCrossEntropy, CategoricalAccuracy, "
        "CategoricalCrossEntropy, CustomizedMetric, F1Score, KLDivergence, Poisson, Precision, PrecisionRecallCurve, "
        "Recall, SparseCategoricalAccuracy, SparseCategoricalCrossEntropy, Top5Accuracy; orca.core.metrics: Metric"
    ),
    "bigdl.orca.learn.mxnet": f"{_ESTIMATOR}; .mxnet: create_config",
    "bigdl.orca.learn.openvino": _ESTIMATOR,
    "bigdl.orca.learn.openvino.estimator": f"{_ESTIMATOR}; orca.estimators.openvino: OpenvinoEstimator",
    "bigdl.orca.learn.optimizers": _OPTIMIZERS,
    "bigdl.orca.learn.optimizers.optimizers_impl": _OPTIMIZERS,
    "bigdl.orca.learn.optimizers.schedule": (
        ".bigdl.optimizers.schedules: Default, Exponential, MultiStep, Plateau, Poly, Scheduler, SequentialSchedule, "
        "Step, Warmup"
    ),
    "bigdl.orca.learn.pytorch": f"{_ESTIMATOR}; orca.operator: *",
    "bigdl.orca.learn.pytorch.callbacks": "orca.callbacks: *",
    "bigdl.orca.learn.pytorch.callbacks.base": "orca.callbacks: Callback",
    "bigdl.orca.learn.pytorch.callbacks.maincallback": (
        "orca.callbacks: MainCallback; .zoo.callbacks: make_only_mainCallback"
    ),
    "bigdl.orca.learn.pytorch.callbacks.maxsteps": "orca.callbacks: MaxstepsCallback",
    "bigdl.orca.learn.pytorch.callbacks.model_checkpoint": "orca.callbacks: ModelCheckpoint",
    "bigdl.orca.learn.pytorch.callbacks.tensorboard": "orca.callbacks: TensorBoardCallback",
    "bigdl.orca.learn.pytorch.callbacks.tqdm": "orca.callbacks: TqdmCallback; .zoo.callbacks: is_tqdm_exists",
    "bigdl.orca.learn.pytorch.callbacks.wandb": "orca.callbacks: WandbLoggerCallback",
    "bigdl.orca.learn.pytorch.estimator": _ESTIMATOR,
    "bigdl.orca.learn.pytorch.experimential.mmcv.mmcv_ray_estimator": ".zoo.mmcv: MMCVRayEstimator",
    "bigdl.orca.learn.pytorch.pytorch_metrics": ".zoo.metrics: *",
    "bigdl.orca.learn.pytorch.pytorch_pyspark_estimator": ".spark_estimators: PyTorchPySparkEstimator",
    "bigdl.orca.learn.pytorch.training_operator": "orca.operator: *",
    "bigdl.orca.learn.pytorch.utils": ".zoo.statistics: process_stats",
    "bigdl.orca.learn.tf.estimator": ".zoo.tf1: Estimator, save_model_dir",
    "bigdl.orca.learn.tf.tf_estimator": ".tf1.tfpark.estimator: TFEstimator",
    "bigdl.orca.learn.tf2": _ESTIMATOR,
    "bigdl.orca.learn.tf2.estimator": _ESTIMATOR,
    "bigdl.orca.learn.tf2.pyspark_estimator": ".spark_estimators: SparkTFEstimator",
    "bigdl.orca.learn.trigger": "orca.core.triggers: EveryEpoch, SeveralIteration, Trigger",
    "bigdl.orca.learn.utils": ".zoo.checkpoints: find_latest_checkpoint; .shard_frames: *",
    "bigdl.orca.ray": "orca.cluster.ray: OrcaRayContext; .zoo.ray: RayOnSparkContext",
    "bigdl.orca.ray.ray_on_spark_context": ".zoo.ray: RayOnSparkContext",
    "bigdl.orca.ray.raycontext": "orca.cluster.ray: OrcaRayContext",
    "bigdl.orca.ray.utils": ".resources: *",
    "bigdl.orca.tfpark": ".tf1.tfpark: *, [tf1]",
    "bigdl.orca.tfpark.estimator": ".tf1.tfpark.estimator: TFEstimator, TFEstimatorSpec",
    "bigdl.orca.tfpark.gan": _GAN,
    "bigdl.orca.tfpark.gan.gan_estimator": _GAN,
    "bigdl.orca.tfpark.model": ".tf1.tfpark.model: KerasModel",
    "bigdl.orca.tfpark.text.estimator": (
        ".tf1.tfpark.text.bert: BERTNER, BERTBaseEstimator, BERTClassifier, BERTSQuAD, bert_input_fn"
    ),
    "bigdl.orca.tfpark.text.keras": ".tf1.tfpark.text.taggers: NER, IntentEntity, SequenceTagger, TextKerasModel",
    "bigdl.orca.tfpark.tf_dataset": ".tf1.tfpark.dataset: TensorMeta, TFDataset",
    "bigdl.orca.tfpark.tf_optimizer": ".tf1.tfpark.optimizer: TFOptimizer",
    "bigdl.orca.tfpark.tf_predictor": ".tf1.tfpark.predictor: TFPredictor",
    "bigdl.orca.tfpark.tfnet": ".tf1.tfpark.net: TFNet",
    "bigdl.orca.tfpark.zoo_optimizer": ".tf1.tfpark: ZooOptimizer",
    "bigdl.orca.torch": ".nnframes.wrappers: TorchLoss, TorchModel, TorchOptim",
    "bigdl.orca.torch.utils": ".nnframes.parts: DistributedSequentialSampler, trainable_param",
    "bigdl.orca.torch.zoo_pickle_module": ".nnframes.parts: Pickler, Unpickler, dump, dumps, load, loads",
    "bigdl.util.engine": ".zoo.nncontext: create_spark_conf, get_node_and_core_number, init_engine",
    "zoo": f".zoo.nncontext: *; {_BESIDES}",
    "zoo.common": ".zoo.paths: convert_to_safe_path; .zoo.sample: Sample; .bigdl.datasets: set_core_number",
    "zoo.pipeline.api.keras2.layers": (
        ".bigdl.keras.layers: *KERAS2, average, maximum, minimum; .bigdl.keras.engine: Input"
    ),
    "zoo.pipeline.api.net": ".bigdl.net: GraphNet, Net; .tf1.tfpark: TFDataset, TFNet, TFOptimizer, TFPredictor",
    "zoo.ray": ".zoo.ray: RayContext",
    "zoo.ray.raycontext": ".zoo.ray: RayContext",
}
_PATH = f"{__name__}:"  # how an entry of `__path__` begins that leads to the finder below


def install(package: str) -> None:
    """Let a package that is being imported, `zoo` or `bigdl`, lead to the modules of the table."""
    if AliasFinder not in sys.path_hooks:
        sys.path_hooks.append(AliasFinder)
    module = AliasModule(package)
    vars(module).update(vars(sys.modules[package]), __path__=[_PATH + package])
    sys.modules[package] = module  # what `import` returns


@cache
def modules() -> dict[str, str]:
    """Return {module: the row of its names, "" for a package of modules only} of all aliases."""
    table = {path: f"{row}; {_BESIDES}" if path.startswith(_LIBRARY) else row for path, row in _TABLE.items()}
    rows = dict(table)
    for older, newer in _MOVED.items():
        rows |= {older + path[len(newer) :]: row for path, row in table.items() if f"{path}.".startswith(f"{newer}.")}
    parents = {path[:end] for path in rows for end, letter in enumerate(path) if letter == "."}
    return dict.fromkeys(parents, "") | rows


@cache
def submodules(package: str) -> tuple[str, ...]:
    """Return the names of the modules in a package, sorted."""
    paths = (path.rpartition(".") for path in modules())
    return tuple(sorted(name for parent, _, name in paths if parent == package))


@cache
def _homes(module: str) -> list[tuple[str, list[str]]]:
    """Return [(a module, the names of its that an alias has, as the table writes them)]."""
    parts = modules()[module].format(root=module.partition(".")[0]).split(";")
    pairs = [part.partition(":") for part in parts if part]
    return [(resolve_name(home.strip(), __package__), [name.strip() for name in names.split(",")])
            for home, _, names in pairs]  # fmt: skip


class AliasModule(ModuleType):
    """A module whose names live elsewhere; each is looked up when it is first used."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            value: Any = list(dict.fromkeys(alias for alias, _, _ in self._names() if not alias.startswith("[")))
        elif name.startswith("__"):  # what Python and inspect ask any module for
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        elif name in submodules(self.__name__):
            return import_module(f"{self.__name__}.{name}")
        else:
            value = self._look_up(name)
        setattr(self, name, value)
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)  # cloudpickle knows plain modules only

    def __dir__(self) -> list[str]:
        try:
            names = self.__all__
        except ImportError:  # a framework is missing: the names that it has are unknown
            names = []
        return sorted({*super().__dir__(), *names, *submodules(self.__name__)})

    def _look_up(self, name: str) -> Any:
        """Return the object of a name; explicit names load no home but their own."""
        for alias, home, attribute in self._names():
            if alias.strip("[]") == name:
                return attribute[name] if isinstance(attribute, dict) else getattr(import_module(home), attribute)
        close = difflib.get_close_matches(name, dir(self), 1)
        hint = f"Did you mean {close[0]}?" if close else f"It has {', '.join(self.__all__) or 'modules only'}."
        raise AttributeError(f"module {self.__name__!r} has no name {name!r}. {hint}")

    def _names(self) -> Iterator[tuple[str, str, str | dict[str, Any]]]:
        """Yield (name, its home, its name there or the dict that holds it); explicit names first."""
        pairs = [(name, home) for home, names in _homes(self.__name__) for name in names]
        for item, home in sorted(pairs, key=lambda pair: pair[0].startswith("*")):
            original, _, alias = item.partition(" as ")
            if item.startswith("*"):
                names = getattr(import_module(home), item[1:] or "__all__")
                yield from ((name, home, names if isinstance(names, dict) else name) for name in names)
            else:
                yield alias or original, home, original.strip("[]")


class AliasFinder(PathEntryFinder, Loader):
    """The modules in one package of aliases: an entry of `sys.path_hooks`, so that pkgutil can walk them too."""

    def __init__(self, entry: str) -> None:
        if not entry.startswith(_PATH):
            raise ImportError(f"{entry} is no path of aliases")  # so that other hooks are tried
        self.package = entry.removeprefix(_PATH)

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec:
        """Return the spec of a module in the package, or raise ModuleNotFoundError with the nearest one."""
        if fullname not in modules():
            close = difflib.get_close_matches(fullname, modules(), 1, cutoff=0.85)
            there = f"{self.package} has {', '.join(submodules(self.package))}."
            hint = f"Did you mean {close[0]}?" if close else there
            raise ModuleNotFoundError(f"No module named {fullname!r}. {hint}", name=fullname)
        spec = ModuleSpec(fullname, self, origin=__name__, is_package=bool(submodules(fullname)))
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(_PATH + fullname)
        return spec

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """Yield (name, whether it is a package), as pkgutil asks for them."""
        for name in submodules(self.package):
            yield prefix + name, bool(submodules(f"{self.package}.{name}"))

    def create_module(self, spec: ModuleSpec) -> AliasModule:
        """Return the module, without names yet."""
        homes = ", ".join(dict(_homes(spec.name)))
        return AliasModule(spec.name, f"Names of {spec.name}." + f" They live in {homes}." * bool(homes))

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are looked up when they are first used."""
