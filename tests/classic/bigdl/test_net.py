"""Models that answer: InferenceModel of every kind, several threads, Net; the low-level Estimator on FeatureSets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bigdl.optim.optimizer import MaxEpoch, Top1Accuracy  # noqa: E402
from orca.errors import ArgumentError, DataError, NotSupported  # noqa: E402
from orca.triggers import EveryEpoch  # noqa: E402
from orca_classic import Estimator  # noqa: E402
from orca_classic.bigdl import criterion as C  # noqa: E402
from orca_classic.bigdl import layers as L  # noqa: E402
from orca_classic.bigdl.featuresets import FeatureSet  # noqa: E402
from orca_classic.bigdl.keras import engine  # noqa: E402
from orca_classic.bigdl.keras.layers import KERAS  # noqa: E402
from orca_classic.bigdl.net import Estimator as LowEstimator  # noqa: E402
from orca_classic.bigdl.net import InferenceModel, Net  # noqa: E402
from orca_classic.bigdl.optimizers import SGD  # noqa: E402
from orca_classic.zoo.sample import JTensor  # noqa: E402

DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(41, 4)).astype(np.float32)
Y = 1 + (X[:, 0] > X[:, 1]).astype(np.float32)


def network() -> Any:
    torch.manual_seed(0)
    return L.Sequential().add(L.Linear(4, 8)).add(L.Tanh()).add(L.Dropout(0.5)).add(L.Linear(8, 2)).add(L.LogSoftMax())


def in_threads(serving: InferenceModel, truth: Any) -> None:
    """Check the answers of eight threads, each for rows of its own."""
    cuts = [slice(at, at + 5) for at in range(0, 40, 5)] * 8
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda cut: serving.predict(X[cut]), cuts))
    for cut, answer in zip(cuts, answers, strict=True):
        np.testing.assert_allclose(answer, truth[cut], rtol=1e-4, atol=1e-5)


def test_models_of_bigdl_and_torch_serve_threads_without_dropout(tmp_path: Path) -> None:
    model = network()
    truth = model.predict(X)
    model.training().saveModel(str(tmp_path / "model"))
    torch.jit.save(torch.jit.trace(model.to_torch().eval(), torch.tensor(X)), str(tmp_path / "model.pt"))
    serving = InferenceModel(supported_concurrent_num=4)
    for load, path in ((serving.load_bigdl, "model"), (serving.load_torch, "model.pt")):
        load(str(tmp_path / path))
        np.testing.assert_allclose(serving.predict(JTensor.from_ndarray(X)), truth, rtol=1e-5, atol=1e-6)
        in_threads(serving, truth)
    with pytest.raises(DataError, match="cannot take an input of shape"):
        serving.load_bigdl(str(tmp_path / "model"))
        serving.predict(X[:, :3])
    np.testing.assert_allclose(Net.load_torch(str(tmp_path / "model.pt")).predict(X), truth, rtol=1e-5, atol=1e-6)


def test_every_estimators_model_is_served_by_openvino(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    keras = engine.Sequential().add(KERAS["Dense"](6, activation="relu", input_shape=(4,))).add(KERAS["Dense"](2))
    for number, (model, loss) in enumerate(((network(), C.ClassNLLCriterion()), (keras, C.CrossEntropyCriterion()))):
        est = Estimator.from_bigdl(model=model, loss=loss, backend="local")
        est.fit((X.astype(np.int64 if number else np.float32), Y), 1)
        path = est.to_openvino(str(tmp_path / f"{number}.xml"))
        serving, truth = InferenceModel(), est.predict(X.astype(np.int64 if number else np.float32))
        serving.load_openvino(path, path.replace(".xml", ".bin"))
        np.testing.assert_allclose(serving.predict(X), truth, rtol=1e-4, atol=1e-5)
        in_threads(serving, truth)
    with pytest.raises(DataError, match="does not take an array of shape"):
        serving.predict(X[:, :3])
    with pytest.raises(ArgumentError, match="the weights must lie beside"):
        serving.load_openvino(path, str(tmp_path / "other.bin"))


def test_models_and_data_of_tensorflow_are_taken(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")

    class Doubled(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(np.full((4, 2), 2.0, np.float32))

        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, "x")])  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            return x @ self.weight

    tf.saved_model.save(Doubled(), str(tmp_path / "saved"))
    serving, truth = InferenceModel(), X @ np.full((4, 2), 2.0, np.float32)
    serving.load_tensorflow(str(tmp_path / "saved"), "savedModel")
    np.testing.assert_allclose(serving.predict(X.astype(np.float64)), truth, rtol=1e-5)
    in_threads(serving, truth)

    batches = FeatureSet.tf_dataset(lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(8), 41)
    est = LowEstimator(network(), SGD(learningrate=0.1), backend="local")
    est.train_minibatch(batches, C.ClassNLLCriterion(), MaxEpoch(1))
    (accuracy,) = est.evaluate_minibatch(batches, [Top1Accuracy()])
    assert accuracy.total_num == 41

    from orca_classic.tf1.tfpark.net import export_tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, 4])
        export_tf(session, str(tmp_path / "frozen"), [x], [x * 3.0])
    serving.load_tensorflow(str(tmp_path / "frozen"))
    np.testing.assert_allclose(serving.predict(X), X * 3, rtol=1e-5)
    np.testing.assert_allclose(Net.load_tf(str(tmp_path / "frozen")).forward(X), X * 3, rtol=1e-5)


def test_file_of_a_whole_module_is_loaded_where_it_is_trusted(tmp_path: Path) -> None:
    module, path = torch.nn.Linear(4, 2), str(tmp_path / "whole.pt")
    torch.save(module, path)
    serving = InferenceModel()
    with pytest.raises(ArgumentError, match="it runs code when it is loaded: pass weights_only=False if you trust it"):
        serving.load_torch(path)
    serving.load_torch(path, weights_only=False)
    np.testing.assert_allclose(serving.predict(X), module(torch.tensor(X)).detach().numpy(), rtol=1e-5)
    layer = Net.load_torch(path, weights_only=False)
    np.testing.assert_allclose(layer.forward(X), serving.predict(X), rtol=1e-5)
    torch.save({"weight": torch.zeros(2)}, tmp_path / "state.pt")
    with pytest.raises(ArgumentError, match=r"state\.pt holds a dict, no module"):
        serving.load_torch(str(tmp_path / "state.pt"), weights_only=False)


def test_files_that_hold_no_model_are_named(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, tmp_path / "state.pt")
    (tmp_path / "model.xml").write_text("<nothing/>")
    serving = InferenceModel()
    with pytest.raises(ArgumentError, match="there is no model yet"):
        serving.predict(X)
    with pytest.raises(ArgumentError, match=r"state\.pt is no TorchScript file\. Write one with torch\.jit\.save"):
        serving.load_torch(str(tmp_path / "state.pt"))
    for load in (serving.load_torch, serving.load_bigdl, Net.load_torch, Net.load):
        with pytest.raises(ArgumentError, match="there is no model at"):
            load(str(tmp_path / "none"))
    with pytest.raises(ArgumentError, match=r"the weights of .*model\.xml are missing"):
        pytest.importorskip("openvino")
        serving.load_openvino(str(tmp_path / "model.xml"))
    for refused in (
        lambda: Net.load_keras("a", "b"),
        lambda: Net.load_caffe("a", "b"),
        lambda: serving.load_caffe("a", "b"),
    ):
        with pytest.raises(NotSupported, match="supported: "):
            refused()


def test_a_model_in_memory_answers_for_an_rdd(spark: Any) -> None:
    serving, module = InferenceModel(), torch.nn.Linear(4, 2)
    serving.load_torch(module)
    parts = serving.distributed_predict(spark.sparkContext.parallelize([X[:3], X[3:]], 2), None).collect()
    np.testing.assert_allclose(np.concatenate(parts), module(torch.tensor(X)).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_low_level_estimator_reads_loaders_and_keeps_checkpoints(tmp_path: Path) -> None:
    def estimator() -> Any:
        torch.manual_seed(1)
        model = L.Sequential().add(L.Linear(4, 2)).add(L.LogSoftMax())
        return LowEstimator(model, SGD(learningrate=0.1), str(tmp_path / "kept"), backend="local")

    dataset = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    batches = FeatureSet.pytorch_dataloader(torch.utils.data.DataLoader(dataset, batch_size=41))
    est, other = estimator(), estimator()
    est.train_minibatch(batches, C.ClassNLLCriterion(), MaxEpoch(2), EveryEpoch(), batches, [Top1Accuracy()])
    other.train((X, Y), C.ClassNLLCriterion(), MaxEpoch(2), batch_size=41)
    np.testing.assert_allclose(est.model.get_weights()[0], other.model.get_weights()[0], rtol=1e-5)
    assert len(list((tmp_path / "kept").glob("run-*/orca.*"))) == 2
    (mine,), (truth,) = est.evaluate_minibatch(batches, [Top1Accuracy()]), est.evaluate((X, Y), Top1Accuracy())
    assert (mine.result, mine.total_num) == (pytest.approx(truth.result), truth.total_num)
    with pytest.raises(NotSupported, match="an optim method for each layer is not supported"):
        LowEstimator(est.model, {"a": SGD()})
