"""TFDataset: data for a TensorFlow graph, and the placeholders it is fed to. Owns every `TFDataset.from_...`."""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from orca.core.units import positive
from orca.errors import ArgumentError, DataError
from orca.rows.tree import flatten, map_tree, rows_of, unflatten
from orca_classic.data.tf.loading import tensorflow

_BLOCK = 256  # records that become one shard
_MEMORY = re.compile(r"DRAM|PMEM|DIRECT|DISK_\d+")
_REGROUPS = re.compile("nbatch|FlatMap|Interleave|Window")  # datasets whose elements are not those of their inputs
_datasets: weakref.WeakKeyDictionary[Any, list[TFDataset]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class TensorMeta:
    """The type, name and shape of a row's tensor."""

    dtype: Any
    name: str | None = None
    shape: Any = ()

    def placeholder(self, tf: Any) -> Any:
        """Return a new placeholder for rows of this kind, in the default graph."""
        return tf.placeholder(self.dtype, [None, *(self.shape or ())], name=self.name)


class TFDataset:
    """Distributed data that is fed to a TensorFlow graph. Make one with a `from_...` method.

    Args:
        tensor_structure: A pair of features and labels, or features alone in a tuple: trees of TensorMeta.
        batch_size: Rows of one step of training, over all workers.
        batch_per_thread: Rows that are evaluated or predicted at a time.
        hard_code_batch_size: False: workers have different numbers of rows.
        data: Rows, of a kind that Estimators take.
        validation: Data of the same kind for validations.
        feature_cols: Columns for the features, where data is a DataFrame.
        label_cols: Columns for the labels.
        memory_type: "DRAM", "PMEM", "DIRECT" or "DISK_n": accepted, as workers read from files that they map.
        sequential_order: Whether epochs of training read in the order of the data.
        shuffle: Whether epochs of training read in a new order.

    Raises:
        ArgumentError: Both sizes are given, a size is not positive, or hard_code_batch_size is true.
    """

    def __init__(
        self,
        tensor_structure: tuple[Any, ...],
        batch_size: int | None = -1,
        batch_per_thread: int | None = -1,
        hard_code_batch_size: bool = False,
        *,
        data: Any = None,
        validation: Any = None,
        feature_cols: Sequence[str] | None = None,
        label_cols: Sequence[str] | None = None,
        memory_type: str = "DRAM",
        sequential_order: bool = False,
        shuffle: bool = True,
    ) -> None:
        if not isinstance(memory_type, str) or not _MEMORY.fullmatch(memory_type.upper()):
            raise ArgumentError(f"memory_type must be 'DRAM', 'PMEM', 'DIRECT' or 'DISK_n'; got {memory_type!r}.")
        if hard_code_batch_size:
            raise ArgumentError(
                "hard_code_batch_size=True is not supported: workers have different numbers of rows, so that no row "
                "is dropped. Leave it out, and write tf.shape(x)[0] where the graph needs the number of rows."
            )
        sizes = [_size("batch_size", batch_size), _size("batch_per_thread", batch_per_thread)]
        if None not in sizes:
            raise ArgumentError(
                f"batch_size is for training and batch_per_thread for evaluation and prediction; got {batch_size} and "
                f"{batch_per_thread}. Pass one of them."
            )
        self.tensor_structure = tensor_structure
        self.batch_size, self.batch_per_thread = sizes
        self.hard_code_batch_size = False
        self.data, self.validation = data, validation
        self.feature_cols, self.label_cols = feature_cols, label_cols
        self.shuffle = bool(shuffle and not sequential_order)
        self._fills = False
        self._tensors: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()

    @property
    def has_batch(self) -> bool:
        """Return whether a batch size was given."""
        return self.batch_size is not None or self.batch_per_thread is not None

    @property
    def tensors(self) -> tuple[Any, ...]:
        """Return the placeholders of the default graph: (features, labels), or (features,) without labels.

        A tf.data.Dataset of more parts than two has one for each.
        """
        tf = tensorflow().compat.v1
        graph = tf.get_default_graph()
        if graph not in self._tensors:
            self._tensors[graph] = tuple(map_tree(lambda meta: meta.placeholder(tf), self.tensor_structure))
            _datasets.setdefault(graph, []).append(self)
        tensors = self._tensors[graph]
        is_flat = len(tensors) == 1 and type(tensors[0]) is tuple and len(tensors[0]) > 2
        return tensors[0] if is_flat else tensors

    @property
    def feature_tensors(self) -> Any:
        """Return the placeholders of the features."""
        return self.tensors[0] if self.labelled else only(self.tensors)

    @property
    def label_tensors(self) -> Any:
        """Return the placeholders of the labels; None if there are none."""
        return self.tensors[1] if self.labelled else None

    @property
    def output_shapes(self) -> Any:
        """Return the shapes of features and labels."""
        return tuple(map_tree(lambda meta: [None, *(meta.shape or ())], part) for part in self.tensor_structure)

    @property
    def labelled(self) -> bool:
        """Return whether there are labels."""
        return len(self.tensor_structure) > 1

    def data_for(self, verb: str) -> Any:
        """Return the data for "fit", "evaluate" or "predict", of a kind that Estimators take.

        Raises:
            DataError: Labels are needed, and there are none.
        """
        if verb == "predict" and self.feature_cols is not None:
            return self.data.select(*(f"`{name}`" for name in self.feature_cols))
        return self._labelled(self.data, verb)

    def validation_for(self) -> Any:
        """Return the data of validations, None if there is none."""
        return None if self.validation is None else self._labelled(self.validation, "fit")

    def filled(self) -> TFDataset:
        """Return the dataset; without labels, a copy with a label 0 for each row, for graphs that take no labels."""
        if self.labelled:
            return self
        twin = copy.copy(self)
        twin._fills, twin.label_cols = True, None if self.feature_cols is None else self.feature_cols[:1]
        return twin

    def _labelled(self, data: Any, verb: str) -> Any:
        """Return data with the labels that a verb needs."""
        data = data(verb) if callable(data) else data
        if verb == "predict" or self.labelled:
            return data
        if not self._fills:
            raise DataError(f"{verb} needs labels, and this TFDataset has features alone. Give it labels.")
        return _with_zeros(data)

    def get_training_data(self) -> Any:
        """Return the data, for training.

        Raises:
            ArgumentError: There is no batch_size.
        """
        if self.batch_size is None:
            raise ArgumentError("batch_size should be specified for training. Pass it to the from_ method.")
        return self.get_evaluation_data()

    def get_evaluation_data(self) -> Any:
        """Return the data, for an evaluation: with its labels, if any."""
        return self.data_for("evaluate" if self.labelled else "predict")

    def get_prediction_data(self) -> Any:
        """Return the data, for predictions."""
        return self.data_for("predict")

    def get_validation_data(self) -> Any:
        """Return the data of validations, None if there is none."""
        verb = "fit" if self.labelled else "predict"
        return None if self.validation is None else self._labelled(self.validation, verb)

    def get_num_partitions(self) -> int:
        """Return the partitions of the data in Spark; 1 for data that is not there."""
        data = self.data_for("predict")
        rdd = getattr(data, "rdd", None)
        return 1 if rdd is None else int(rdd.getNumPartitions())

    @staticmethod
    def from_rdd(
        rdd: Any,
        names: Any = None,
        shapes: Any = None,
        types: Any = None,
        batch_size: int | None = -1,
        batch_per_thread: int | None = -1,
        hard_code_batch_size: bool = False,
        val_rdd: Any = None,
        features: Any = None,
        labels: Any = None,
        memory_type: str = "DRAM",
        sequential_order: bool = False,
        shuffle: bool = True,
    ) -> TFDataset:
        """Make a dataset of an RDD whose records are arrays: of features, or a pair of features and labels.

        See TFDataset for the other arguments.

        Args:
            rdd: An RDD. A record is a list or tuple with the arrays of features, and then those of labels; or a pair
                of both, each a tree as described.
            names: Names of tensors, with shapes and types: the older way to describe records; the last is the label.
            shapes: Their shapes.
            types: Their types.
            val_rdd: The same for validations.
            features: (type, shape) of the features; a list or dict of such for several.
            labels: The same for the labels.
        """
        if features is None and names is None and shapes is None and types is None:
            raise ArgumentError("from_rdd needs the type of records. Pass features=(tf.float32, [28, 28, 1]), say.")
        if features is None:
            features, labels = _older(names, shapes, types)
        structure = _structure(features, labels)
        for name, each in (("rdd", rdd), ("val_rdd", val_rdd)):
            if not hasattr(each, "mapPartitions") and (each is not None or name == "rdd"):
                raise ArgumentError(
                    f"{name} must be an RDD of Spark; got {type(each).__name__}. TFDataset.from_ndarrays takes arrays."
                )
        return TFDataset(
            structure,
            batch_size,
            batch_per_thread,
            hard_code_batch_size,
            data=partial(_shards, rdd, structure),
            validation=None if val_rdd is None else partial(_shards, val_rdd, structure),
            memory_type=memory_type,
            sequential_order=sequential_order,
            shuffle=shuffle,
        )

    @staticmethod
    def from_ndarrays(
        tensors: Any,
        batch_size: int | None = -1,
        batch_per_thread: int | None = -1,
        hard_code_batch_size: bool = False,
        val_tensors: Any = None,
        memory_type: str = "DRAM",
        sequential_order: bool = False,
        shuffle: bool = True,
    ) -> TFDataset:
        """Make a dataset of arrays.

        See TFDataset for the other arguments.

        Args:
            tensors: A pair of features and labels, each an array or a tree of arrays; or features alone: an array, a
                list or dict of arrays, or a tuple of one thing.
            val_tensors: The same for validations.
        """
        parts = _parts(tensors, "tensors")
        structure = tuple(_described(part) for part in parts)
        return TFDataset(
            structure,
            batch_size,
            batch_per_thread,
            hard_code_batch_size,
            data=partial(_arrays, parts),
            validation=None if val_tensors is None else partial(_arrays, _validation(val_tensors, structure)),
            memory_type=memory_type,
            sequential_order=sequential_order,
            shuffle=shuffle,
        )

    @staticmethod
    def from_dataframe(
        df: Any,
        feature_cols: Sequence[str] | str,
        labels_cols: Sequence[str] | str | None = None,
        batch_size: int | None = -1,
        batch_per_thread: int | None = -1,
        hard_code_batch_size: bool = False,
        validation_df: Any = None,
        memory_type: str = "DRAM",
        sequential_order: bool = False,
        shuffle: bool = True,
    ) -> TFDataset:
        """Make a dataset of columns of a Spark DataFrame: numbers, or arrays and vectors, which have any length.

        See TFDataset for the other arguments.

        Args:
            df: The DataFrame.
            feature_cols: Columns for the features.
            labels_cols: Columns for the labels.
            validation_df: The same for validations.
        """
        groups = [[cols] if isinstance(cols, str) else list(cols or ()) for cols in (feature_cols, labels_cols)]
        if not groups[0]:
            raise ArgumentError("from_dataframe must know which columns are features. Pass feature_cols=['…'].")
        for frame in (df, validation_df) if validation_df is not None else (df,):
            _check_columns(frame, [*groups[0], *groups[1]])
        structure = tuple(only([_column(df, name) for name in group]) for group in groups if group)
        return TFDataset(
            structure,
            batch_size,
            batch_per_thread,
            hard_code_batch_size,
            data=df,
            validation=validation_df,
            feature_cols=groups[0],
            label_cols=groups[1] or None,
            memory_type=memory_type,
            sequential_order=sequential_order,
            shuffle=shuffle,
        )

    @staticmethod
    def from_tf_data_dataset(
        dataset: Any,
        batch_size: int | None = -1,
        batch_per_thread: int | None = -1,
        hard_code_batch_size: bool = False,
        validation_dataset: Any = None,
        sequential_order: bool = False,
        shuffle: bool = True,
        remove_checking: bool = False,
        batch_outside: bool = False,
        inter_threads: int | None = None,
        intra_threads: int | None = None,
        auto_shard_files: bool = False,
    ) -> TFDataset:
        """Make a dataset of a tf.data.Dataset of single rows; each worker reads it, and keeps its part.

        See TFDataset for the other arguments.

        Args:
            dataset: A dataset of features, or of (features, labels), that is not batched.
            validation_dataset: The same for validations.
            remove_checking: Whether to take a dataset that looks batched as one of single rows.
            batch_outside: Accepted as False alone: a batched dataset is refused.
            inter_threads: Accepted.
            intra_threads: Accepted.
            auto_shard_files: Accepted.
        """
        if batch_outside:
            raise ArgumentError("batch_outside=True is not supported. Leave out .batch(...), and pass batch_size=.")
        for name, each in (("dataset", dataset), ("validation_dataset", validation_dataset)):
            if not hasattr(each, "element_spec") and (each is not None or name == "dataset"):
                raise ArgumentError(f"{name} must be a tf.data.Dataset; got {type(each).__name__}.")
            size = None if each is None or remove_checking else batched_by(each)
            if size is not None:
                raise ArgumentError(
                    f"{name} gives batches of {size} rows, where single rows are needed. Leave out .batch(...), and "
                    f"pass batch_size={size} to from_tf_data_dataset."
                )
        element = dataset.element_spec
        parts = element if type(element) is tuple and len(element) == 2 else (element,)
        structure = tuple(map_tree(lambda spec: TensorMeta(spec.dtype, None, spec.shape.as_list()), p) for p in parts)
        return TFDataset(
            structure,
            batch_size,
            batch_per_thread,
            hard_code_batch_size,
            data=dataset,
            validation=validation_dataset,
            sequential_order=sequential_order,
            shuffle=shuffle,
        )

    @staticmethod
    def from_string_rdd(
        string_rdd: Any,
        batch_size: int | None = -1,
        batch_per_thread: int | None = -1,
        hard_code_batch_size: bool = False,
        validation_string_rdd: Any = None,
    ) -> TFDataset:
        """Make a dataset of an RDD of texts: one placeholder of tf.string, whose rows the graph parses."""
        tf = tensorflow()
        return TFDataset.from_rdd(
            string_rdd.map(_record),
            batch_size=batch_size,
            batch_per_thread=batch_per_thread,
            hard_code_batch_size=hard_code_batch_size,
            val_rdd=None if validation_string_rdd is None else validation_string_rdd.map(_record),
            features=(tf.string, []),
        )

    @staticmethod
    def from_bytes_rdd(
        bytes_rdd: Any,
        batch_size: int | None = -1,
        batch_per_thread: int | None = -1,
        hard_code_batch_size: bool = False,
        validation_bytes_rdd: Any = None,
    ) -> TFDataset:
        """Make a dataset of an RDD of bytes: one placeholder of tf.string, whose rows the graph parses."""
        return TFDataset.from_string_rdd(
            bytes_rdd, batch_size, batch_per_thread, hard_code_batch_size, validation_bytes_rdd
        )

    @staticmethod
    def from_tfrecord_file(
        sc: Any,
        file_path: str,
        batch_size: int | None = -1,
        batch_per_thread: int | None = -1,
        hard_code_batch_size: bool = False,
        validation_file_path: str | None = None,
        sequential_order: bool = False,
        shuffle: bool = True,
    ) -> TFDataset:
        """Make a dataset of TFRecord files: one placeholder of tf.string, whose rows the graph parses.

        See TFDataset for the other arguments.

        Args:
            sc: Accepted: the files are read by the workers.
            file_path: A file, a pattern, or a folder, that all workers see.
            validation_file_path: The same for validations.
        """
        dataset = _tfrecords(file_path)
        return TFDataset.from_tf_data_dataset(
            dataset,
            batch_size,
            batch_per_thread,
            hard_code_batch_size,
            None if validation_file_path is None else _tfrecords(validation_file_path),
            sequential_order,
            shuffle,
        )

    @staticmethod
    def from_tfrecord(
        file_path: str,
        parse_fn: Callable[..., Any],
        batch_size: int | None = -1,
        batch_per_thread: int | None = -1,
        hard_code_batch_size: bool = False,
        validation_file_path: str | None = None,
    ) -> TFDataset:
        """Make a dataset of TFRecord files, each record parsed by a function of TensorFlow operations."""
        valid = None if validation_file_path is None else _tfrecords(validation_file_path).map(parse_fn)
        return TFDataset.from_tf_data_dataset(
            _tfrecords(file_path).map(parse_fn), batch_size, batch_per_thread, hard_code_batch_size, valid
        )

    @staticmethod
    def from_image_set(
        image_set: Any,
        image: Any,
        label: Any = None,
        batch_size: int | None = -1,
        batch_per_thread: int | None = -1,
        hard_code_batch_size: bool = False,
        validation_image_set: Any = None,
        memory_type: str = "DRAM",
        sequential_order: bool = False,
        shuffle: bool = True,
    ) -> TFDataset:
        """Make a dataset of an ImageSet: (type, shape) of the tensors its steps made, and of its labels."""
        return _of_samples(
            (image_set, validation_image_set), (image, label), batch_size, batch_per_thread, hard_code_batch_size,
            memory_type=memory_type, sequential_order=sequential_order, shuffle=shuffle,
        )  # fmt: skip

    @staticmethod
    def from_text_set(
        text_set: Any,
        text: Any,
        label: Any = None,
        batch_size: int | None = -1,
        batch_per_thread: int | None = -1,
        hard_code_batch_size: bool = False,
        validation_image_set: Any = None,
        sequential_order: bool = False,
        shuffle: bool = True,
    ) -> TFDataset:
        """Make a dataset of a TextSet with samples: (type, shape) of its texts, and of its labels."""
        return _of_samples(
            (text_set, validation_image_set), (text, label), batch_size, batch_per_thread, hard_code_batch_size,
            sequential_order=sequential_order, shuffle=shuffle,
        )  # fmt: skip

    @staticmethod
    def from_feature_set(
        dataset: Any,
        features: Any,
        labels: Any = None,
        batch_size: int | None = -1,
        batch_per_thread: int | None = -1,
        hard_code_batch_size: bool = False,
        validation_dataset: Any = None,
    ) -> TFDataset:
        """Make a dataset of a FeatureSet of Samples: (type, shape) of features and labels; the order is the set's."""
        return _of_samples(
            (dataset, validation_dataset), (features, labels), batch_size, batch_per_thread, hard_code_batch_size,
            shuffle=getattr(dataset, "shuffle", True),
        )  # fmt: skip


def dataset_behind(tensors: Iterable[Any]) -> TFDataset:
    """Return the dataset whose placeholders some tensors are computed from.

    Raises:
        ArgumentError: There is none, or more than one.
    """
    from orca_classic.tf1.graph.terms import ancestors

    ends = list(tensors)
    graph = ends[0].graph
    before = ancestors(tensor.op for tensor in ends)
    datasets = [
        dataset
        for dataset in _datasets.get(graph, [])
        if any(leaf.op in before for leaf in flatten(dataset._tensors[graph])[0])
    ]
    if len(datasets) != 1:
        names = [tensor.name for tensor in ends]
        raise ArgumentError(
            f"{names} are computed from {len(datasets)} TFDatasets, where one is needed. Build the graph on "
            "dataset.tensors, or pass dataset= and inputs=."
        )
    return datasets[0]


def batched_by(dataset: Any) -> int | None:
    """Return the batch size of a tf.data.Dataset: 32 for an unknown one, None for a dataset without batches."""
    stack = [dataset]
    while stack:
        part = stack.pop(0)
        part = getattr(part, "_dataset", part)  # a dataset of TensorFlow 1 holds one of TensorFlow 2
        size = getattr(part, "_batch_size", None)
        if size is not None:
            return int(tensorflow().get_static_value(size) or 32)
        stack += [] if _REGROUPS.search(type(part).__name__) else part._inputs()
    return None


def _size(name: str, size: Any) -> int | None:
    return None if size is None or size == -1 else positive(name, size)


def _structure(features: Any, labels: Any) -> tuple[Any, ...]:
    parts = [features] if labels is None else [features, labels]
    return tuple(_metas(part) for part in parts)


def _metas(part: Any) -> Any:
    """Return the description of a part as a tree of TensorMeta: (type, shape), or a list or dict of these."""
    if isinstance(part, TensorMeta):
        return part
    if isinstance(part, dict):
        return {name: _metas_named(name, value) for name, value in part.items()}
    if isinstance(part, tuple) and len(part) == 2 and not isinstance(part[0], tuple | list | dict):
        return TensorMeta(part[0], None, list(part[1] if part[1] is not None else ()))
    if isinstance(part, list | tuple):
        return [_metas_named(f"list_input_{number}", value) for number, value in enumerate(part)]
    return TensorMeta(part, None, [])


def _metas_named(name: str, value: Any) -> TensorMeta:
    meta = _metas(value)
    if not isinstance(meta, TensorMeta):
        raise ArgumentError(f"{name!r} must be described as (type, shape); got {value!r}.")
    return TensorMeta(meta.dtype, meta.name or name, meta.shape)


def _older(names: Any, shapes: Any, types: Any) -> tuple[Any, Any]:
    """Return the description of features and labels by names, shapes and types: the last one is the label."""
    tf = tensorflow()
    count = len(names or shapes or types)
    kinds = list(types or [tf.float32] * count)
    metas = [TensorMeta(kinds[n], names[n] if names else None, shapes[n] if shapes else []) for n in range(count)]
    return only(metas[:-1] or metas), metas[-1] if count > 1 else None


def _parts(tensors: Any, what: str) -> tuple[Any, ...]:
    """Return arrays as features, or features and labels.

    Raises:
        ArgumentError: It is a tuple of more.
        DataError: They are no arrays with equally many rows.
    """
    parts = tensors if isinstance(tensors, tuple) else (tensors,)
    if not 1 <= len(parts) <= 2:
        raise ArgumentError(
            f"{what} must be (features, labels), or features alone; got a tuple of {len(parts)}. Put several inputs "
            "into a list: ([x1, x2], y)."
        )
    arrays = tuple(map_tree(np.asarray, part) for part in parts)
    rows_of(arrays, what)
    return arrays


def _validation(tensors: Any, structure: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arrays for validations, which must have the names and shapes of those for training."""
    parts = _parts(tensors, "val_tensors")
    kinds = [[(meta.name, meta.shape) for meta in flatten(each)[0]] for each in (structure, _described(list(parts)))]
    if kinds[0] != kinds[1]:
        shapes = [[shape for _, shape in kind] for kind in kinds]
        raise DataError(f"val_tensors must be shaped as tensors are: rows of {shapes[0]}; got rows of {shapes[1]}.")
    return parts


def _described(part: Any) -> Any:
    tf = tensorflow()

    def meta(array: np.ndarray) -> TensorMeta:
        kind = tf.float32 if array.dtype == np.float64 else tf.string if array.dtype.kind in "OUS" else array.dtype
        return TensorMeta(tf.as_dtype(kind), None, list(array.shape[1:]))

    return map_tree(meta, part)


def _with_zeros(data: Any) -> Any:
    """Return data of features alone with a zero for each row; a DataFrame's label is any column."""
    if isinstance(data, tuple):
        return data[0], np.zeros(rows_of(data), np.int8)
    if isinstance(data, dict):
        return {**data, "y": np.zeros(rows_of(data["x"]), np.int8)}
    if hasattr(data, "transform_shard"):
        return data.transform_shard(_with_zeros)
    if hasattr(data, "element_spec"):
        from orca_classic.tf1.packed_rows import mode_of

        with mode_of(data):
            return data.map(lambda *row: (row[0] if len(row) == 1 else row, 0))
    return data


def _arrays(parts: tuple[Any, ...], verb: str) -> Any:
    return parts[0] if verb == "predict" else tuple(parts)


def _check_columns(df: Any, names: Sequence[str]) -> None:
    if missing := [name for name in names if name not in df.columns]:
        raise DataError(f"there is no column {missing[0]!r}; the data has {list(df.columns)}.")


def _column(df: Any, name: str) -> TensorMeta:
    """Describe a column by Spark's type of it."""
    tf = tensorflow()
    kinds = {
        "float": tf.float32, "double": tf.float32, "int": tf.int32, "bigint": tf.int64, "smallint": tf.int16,
        "tinyint": tf.int8, "boolean": tf.bool, "string": tf.string, "vector": tf.float32,
    }  # fmt: skip
    types = dict(df.dtypes)
    text, depth = types[name], 0
    while text.startswith("array<"):
        text, depth = text[len("array<") : -1], depth + 1
    kind = kinds.get(text, tf.float64 if text.startswith("decimal") else None)
    if kind is None:
        raise DataError(f"the column {name!r} is of type {types[name]}, which no tensor has. Cast it to numbers first.")
    return TensorMeta(kind, None, [None] * (depth + (text == "vector")))


def only(things: Any) -> Any:
    """Return the item of a list or tuple of one; anything else unchanged."""
    return things[0] if isinstance(things, list | tuple) and len(things) == 1 else things


def _record(value: Any) -> Any:
    return (value.encode() if isinstance(value, str) else bytes(value),)


def _shards(rdd: Any, structure: tuple[Any, ...], verb: str) -> Any:
    from orca.data.shard import SparkXShards

    return SparkXShards(rdd.mapPartitions(partial(_stacked, _numpy_types(structure))), transient=True)


def _numpy_types(structure: tuple[Any, ...]) -> Any:
    names = map_tree(lambda meta: str(tensorflow().as_dtype(meta.dtype).name), structure)
    return map_tree(lambda name: "object" if name == "string" else name, names)


def _stacked(types: tuple[Any, ...], records: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """Yield the records of a partition as shards of some rows each."""
    forms = [flatten(part) for part in types]
    while block := list(islice(records, _BLOCK)):
        columns = list(zip(*(_leaves(record, forms) for record in block), strict=True))
        shard, start = {}, 0
        for key, (kinds, form) in zip(("x", "y"), forms, strict=False):
            arrays = [_column_of(columns[start + n], kind) for n, kind in enumerate(kinds)]
            shard[key], start = unflatten(form, arrays), start + len(kinds)
        yield shard


def _column_of(cells: tuple[Any, ...], kind: str) -> np.ndarray:
    if kind == "object":
        column = np.empty(len(cells), object)
        column[:] = cells
        return column
    try:
        arrays = [np.asarray(cell) for cell in cells]
        shapes = sorted({array.shape for array in arrays})
        if len(shapes) > 1:
            raise DataError(f"records differ in shape: {shapes[0]} and {shapes[-1]}. Pad or cut them first.")
        column = np.stack(arrays)
        with np.errstate(invalid="ignore"):
            cast = column.astype(kind)
    except (TypeError, ValueError) as error:
        raise DataError(f"a record cannot be read as {kind}: {error}. Turn it into numbers first.") from error
    if column.dtype.kind == "f" and cast.dtype.kind in "iu" and not np.array_equal(column, cast):
        wrong = column[column != cast].ravel()[0]
        raise DataError(f"a record has {wrong}, where {kind} is described. Describe it as a float, or round it first.")
    return cast


def _leaves(record: Any, forms: list[tuple[list[str], Any]]) -> list[Any]:
    """Return the arrays of a record: those of the features, then those of the labels."""
    count = sum(len(kinds) for kinds, _ in forms)
    parts = list(record) if isinstance(record, list | tuple) else [record]
    leaves: list[Any] = []
    if len(parts) == len(forms):
        for part, (kinds, form) in zip(parts, forms, strict=True):
            if form is not None and form[0] == "dict" and isinstance(part, dict):
                leaves += [part[name] for name in form[1]]
            else:
                leaves += list(part) if form is not None and isinstance(part, list | tuple) else [part]
            if form is not None and len(kinds) != (len(part) if hasattr(part, "__len__") else 1):
                break
    if len(leaves) != count:
        leaves = parts
    if len(leaves) != count:
        raise DataError(f"a record must have {count} array(s), as features and labels describe; got {len(leaves)}.")
    return leaves


def _tfrecords(path: str) -> Any:
    tf = tensorflow()
    files = tf.io.gfile.glob(f"{path.rstrip('/')}/*" if tf.io.gfile.isdir(path) else path)
    if not files:
        raise DataError(f"there is no file at {path}.")
    return tf.data.TFRecordDataset(sorted(files))


def _of_samples(sets: tuple[Any, Any], parts: tuple[Any, Any], *sizes: Any, **options: Any) -> TFDataset:
    """Return the dataset of a set of Samples, and of one for validations: in an RDD, or here."""
    structure = _structure(*parts)
    data, valid = (None if each is None else _records(_samples(each), structure) for each in sets)
    return TFDataset(structure, *sizes, data=data, validation=valid, **options)


def _samples(source: Any) -> Any:
    samples = source
    while hasattr(samples, "to_samples"):  # a FeatureSet may hold an ImageSet
        samples = samples.to_samples()
    if not hasattr(samples, "mapPartitions") and not isinstance(samples, list | tuple):
        raise ArgumentError(f"a set of Samples is needed: an RDD or a list of them; got {type(samples).__name__}.")
    return samples


def _records(samples: Any, structure: tuple[Any, ...]) -> Any:
    if hasattr(samples, "mapPartitions"):
        return partial(_shards, samples.map(partial(_sample_record, labelled=len(structure) > 1)), structure)
    records = (_sample_record(sample, len(structure) > 1) for sample in samples)
    shards = list(_stacked(_numpy_types(structure), records))
    if not shards:
        raise DataError("the set has no Samples. Check where it was read from.")
    from orca.core.columns import concatenate

    parts = [concatenate([shard[key] for shard in shards]) for key in ("x", "y")[: len(structure)]]
    return partial(_arrays, tuple(parts))


def _sample_record(sample: Any, labelled: bool) -> list[np.ndarray]:
    """Return the arrays of a Sample: those of the features, and of the labels if `labelled`."""
    if not hasattr(sample, "features") or not hasattr(sample, "labels"):
        raise DataError(f"records must be Samples; got {type(sample).__name__}. Make them with Sample.from_ndarray.")
    return [tensor.to_ndarray() for tensor in (*sample.features, *(sample.labels if labelled else ()))]
