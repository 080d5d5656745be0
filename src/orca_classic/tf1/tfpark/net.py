"""TFNet: a part of a TensorFlow graph as a model for inference. Owns the formats it is read from.

It is frozen: variables are constants of its graph.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from orca.errors import ArgumentError
from orca.rows.tree import flatten
from orca_classic.data.tf.loading import tensorflow
from orca_classic.tf1.tfpark.dataset import TFDataset, only
from orca_classic.tf1.tfpark.predictor import as_records

_GRAPH_FILE, _META = "frozen_inference_graph.pb", "graph_meta.json"


class TFNet:
    """A frozen graph with named inputs and outputs.

    Args:
        path: A folder with `frozen_inference_graph.pb` and `graph_meta.json`, or a .pb file.
        input_names: Names of the tensors that are fed, if the folder has no `graph_meta.json`.
        output_names: Names of the tensors to answer with.
        tf_session_config: Accepted.
        options: More arguments of `Estimator.from_graph`: backend, workers_per_node.

    Raises:
        ArgumentError: There is no such graph, or it lacks a tensor.
    """

    def __init__(
        self,
        path: str,
        input_names: list[str] | None = None,
        output_names: list[str] | None = None,
        tf_session_config: Any = None,
        **options: Any,
    ) -> None:
        file = os.path.join(path, _GRAPH_FILE) if os.path.isdir(path) else path
        meta = os.path.join(path, _META)
        if not os.path.exists(file):
            raise ArgumentError(f"there is no frozen graph at {file}. Pass a .pb file, or a folder of export_tf.")
        if os.path.exists(meta) and (input_names is None or output_names is None):
            with open(meta) as stream:
                names = json.load(stream)
            input_names, output_names = input_names or names["input_names"], output_names or names["output_names"]
        if not input_names or not output_names:
            raise ArgumentError(f"{path} does not name its inputs and outputs. Pass input_names= and output_names=.")
        with open(file, "rb") as stream:
            self._open(stream.read(), _listed(input_names), _listed(output_names), options)

    def _open(self, definition: bytes, inputs: list[str], outputs: list[str], options: dict[str, Any]) -> None:
        from orca_classic.tf1.estimators.graph import GraphEstimator

        tf = tensorflow().compat.v1
        self.definition, self.input_names, self.output_names = definition, inputs, outputs
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.import_graph_def(tf.GraphDef.FromString(definition), name="")
            try:
                self.inputs, self.outputs = ([self.graph.get_tensor_by_name(n) for n in g] for g in (inputs, outputs))
            except (KeyError, ValueError) as error:
                raise ArgumentError(f"the graph has no such tensor: {error}. Names end in ':0'.") from error
            self.estimator: Any = GraphEstimator.of(
                inputs=only(self.inputs), outputs=only(self.outputs), sess=tf.Session(graph=self.graph), **options
            )

    @staticmethod
    def from_export_folder(folder: str, tf_session_config: Any = None, **options: Any) -> TFNet:
        """Make a net of a folder that `export_tf` wrote."""
        if not os.path.isdir(folder):
            raise ArgumentError(f"there is no folder {folder}. Pass one that export_tf wrote.")
        return TFNet(folder, **options)

    @staticmethod
    def from_saved_model(
        model_path: str,
        tag: str | None = None,
        signature: str | None = None,
        inputs: list[str] | None = None,
        outputs: list[str] | None = None,
        tf_session_config: Any = None,
        init_op: str | None = None,
        **options: Any,
    ) -> TFNet:
        """Make a net of a SavedModel: of a signature's inputs and outputs, or of tensors by their names.

        Args:
            model_path: The folder of the SavedModel.
            tag: Its tag; "serve" unless given.
            signature: The signature; "serving_default" unless given.
            inputs: Names of the tensors that are fed, in place of the signature's.
            outputs: Names of the tensors to answer with.
            tf_session_config: Accepted.
            init_op: An operation to run after loading.
            options: More arguments of `Estimator.from_graph`.
        """
        tf = tensorflow().compat.v1
        with tf.Graph().as_default(), tf.Session() as session:
            meta = tf.saved_model.load(session, [tag or "serve"], model_path)
            if init_op is not None:
                session.run(init_op)
            if inputs is None or outputs is None:
                name = signature or "serving_default"
                if name not in meta.signature_def:
                    raise ArgumentError(f"the SavedModel has no signature {name!r}; it has {list(meta.signature_def)}.")
                entry = meta.signature_def[name]
                inputs = inputs or [entry.inputs[key].name for key in sorted(entry.inputs)]
                outputs = outputs or [entry.outputs[key].name for key in sorted(entry.outputs)]
            graph = session.graph
            ports, heads = ([graph.get_tensor_by_name(n) for n in _listed(g)] for g in (inputs, outputs))
            return TFNet.from_session(session, ports, heads, **options)

    @staticmethod
    def from_session(
        sess: Any,
        inputs: Any,
        outputs: Any,
        generate_backward: bool = False,
        allow_non_differentiable_input: bool = True,
        tf_session_config: Any = None,
        **options: Any,
    ) -> TFNet:
        """Make a net of tensors of a session, with the values that its variables have now.

        Args:
            sess: The session.
            inputs: The tensors that are fed.
            outputs: The tensors to answer with.
            generate_backward: Whether gradients must pass through it, where it is a layer of a larger model.
            allow_non_differentiable_input: Whether they may end at some of its inputs.
            tf_session_config: Accepted.
            options: More arguments of `Estimator.from_graph`.
        """
        net = TFNet.__new__(TFNet)
        ports, heads = flatten(inputs)[0], flatten(outputs)[0]
        if generate_backward and not allow_non_differentiable_input:
            _check_differentiable(ports, heads)
        net._open(frozen(sess, heads), [t.name for t in ports], [t.name for t in heads], options)
        return net

    def predict(
        self, x: Any, batch_per_thread: int | None = None, distributed: bool = True, mini_batch: bool = False
    ) -> Any:
        """Predict arrays (as arrays), XShards, a DataFrame, a TFDataset, or an RDD of Samples or arrays (as RDDs).

        Args:
            x: The data. Predictions of a TFDataset are an RDD where a Spark is up.
            batch_per_thread: Rows of one run of the graph.
            distributed: Whether to predict on workers; else in this process, for arrays.
            mini_batch: False: rows are no batches.
        """
        if mini_batch:
            raise ArgumentError("mini_batch=True is not supported: records are rows. Leave it out.")
        if hasattr(x, "mapPartitions"):
            x = self._dataset(x, batch_per_thread)
        if isinstance(x, TFDataset):
            return as_records(self.estimator.predict(x, batch_size=x.batch_per_thread), self.outputs)
        if not distributed:
            return self.forward(x)
        return self.estimator.predict(x, batch_size=batch_per_thread)

    def _dataset(self, rdd: Any, batch_per_thread: int | None) -> TFDataset:
        specs = [(tensor.dtype.base_dtype, tensor.shape.as_list()[1:]) for tensor in self.inputs]
        return TFDataset.from_rdd(rdd.map(_record), features=only(specs), batch_per_thread=batch_per_thread)

    def forward(self, x: Any) -> Any:
        """Predict one batch of arrays, here."""
        arrays = [np.asarray(each) for each in flatten(x)[0]]
        if len(arrays) != len(self.inputs):
            raise ArgumentError(f"the graph has the inputs {self.input_names}; got {len(arrays)} array(s).")
        from orca_classic.tf1.graph.program import FedTensor

        feeds = {tensor: FedTensor.of(tensor).arrange(array) for tensor, array in zip(self.inputs, arrays, strict=True)}
        return only(self.estimator.sess.run(self.outputs, feeds))

    def __call__(self, x: Any) -> Any:
        """Predict arrays; called with nodes of a graph of BigDL's layers, return a node after them."""
        nodes = list(x) if isinstance(x, list | tuple) else [x]
        return nodes[0].followed_by(self, nodes) if hasattr(nodes[0], "followed_by") else self.forward(x)

    def to_torch(self) -> Any:
        """Return the graph as a torch module: a layer without weights, for models of BigDL's layers and NNFrames."""
        from orca_classic.tf1.tfpark.module import GraphModule

        return GraphModule(self.definition, self.input_names, self.output_names)

    def evaluate(self, dataset: Any, batch_size: int, val_methods: Any) -> dict[str, float]:
        """Evaluate metrics of the answers, compared with the labels of (x, y) or a TFDataset of arrays."""
        from orca.core.metrics import metrics_of
        from orca_classic.bigdl.validation import with_classes_from_zero

        data = dataset.data_for("evaluate") if isinstance(dataset, TFDataset) else dataset
        if not isinstance(data, tuple) or len(data) != 2:
            raise ArgumentError(f"evaluate of a TFNet takes arrays (x, y); got {type(data).__name__}.")
        metrics = with_classes_from_zero(metrics_of(val_methods))
        answers, y = self.estimator.predict(data[0], batch_size=batch_size), data[1]
        for metric in metrics:
            metric.update(answers, y)
        return {metric.name: metric.result() for metric in metrics}


def _record(row: Any) -> list[Any]:
    """Return the arrays of a Sample's features, or of a row that is arrays already."""
    if hasattr(row, "features"):
        return [tensor.to_ndarray() for tensor in row.features]
    return list(row) if isinstance(row, list | tuple) else [row]


def _check_differentiable(inputs: list[Any], outputs: list[Any]) -> None:
    gradients = tensorflow().gradients(outputs, inputs)
    ends = [tensor.name for tensor, gradient in zip(inputs, gradients, strict=True) if gradient is None]
    if ends:
        raise ArgumentError(
            f"no gradient passes from the outputs to {', '.join(ends)}. Leave it out of the inputs, or pass "
            "allow_non_differentiable_input=True."
        )


def frozen(session: Any, outputs: list[Any]) -> bytes:
    """Return the graph of some outputs with the variables as constants."""
    tf = tensorflow().compat.v1
    level = tf.logging.get_verbosity()
    tf.logging.set_verbosity(tf.logging.ERROR)
    try:
        names = [tensor.op.name for tensor in outputs]
        with session.graph.as_default():
            definition = session.graph.as_graph_def()
            constants = tf.graph_util.convert_variables_to_constants(session, definition, names)
    finally:
        tf.logging.set_verbosity(level)
    return bytes(constants.SerializeToString())


def export_tf(sess: Any, folder: str, inputs: Any, outputs: Any, **older: Any) -> None:
    """Write a session's graph, its variables as constants, for `TFNet.from_export_folder`.

    Args:
        sess: The session.
        folder: The folder to write.
        inputs: The tensors that are fed.
        outputs: The tensors to answer with.
        older: generate_backward and others of older releases.
    """
    ports, heads = flatten(inputs)[0], flatten(outputs)[0]
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, _GRAPH_FILE), "wb") as stream:
        stream.write(frozen(sess, heads))
    with open(os.path.join(folder, _META), "w") as text:
        json.dump({"input_names": [t.name for t in ports], "output_names": [t.name for t in heads]}, text)


def save_tf_checkpoint(sess: Any, checkpoint_path: str, saver: Any = None) -> None:
    """Save the variables of a session as `tf.train.Saver` does, at any path of fsspec."""
    from orca_classic.tf1.graph.checkpoints import save_checkpoint

    save_checkpoint(sess, checkpoint_path, saver)


def load_tf_checkpoint(sess: Any, checkpoint_path: str, saver: Any = None) -> None:
    """Restore the variables of a session from a checkpoint of `tf.train.Saver`, at any path of fsspec."""
    from orca_classic.tf1.graph.checkpoints import load_checkpoint

    load_checkpoint(sess, checkpoint_path, saver)


def get_checkpoint_state(checkpoint_dir: str) -> Any:
    """Return the contents of a folder's `checkpoint` file of TensorFlow: model_checkpoint_path is the newest."""
    return tensorflow().compat.v1.train.get_checkpoint_state(checkpoint_dir)


def _listed(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
