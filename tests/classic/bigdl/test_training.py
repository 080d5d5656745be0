"""Training of BigDL models: the Estimator, Optimizer, the Keras-style API; one rank and several alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca.errors import ArgumentError, DataError, WorkerFailed
from orca_classic import Estimator
from orca_classic.bigdl.optimizers import SGD, Adam
from orca_classic.zoo.sample import Sample

torch = pytest.importorskip("torch")

from bigdl.optim.optimizer import MaxEpoch, Optimizer, Top1Accuracy, TrainSummary, ValidationSummary  # noqa: E402
from orca.triggers import EveryEpoch  # noqa: E402
from orca_classic.bigdl import criterion as C  # noqa: E402
from orca_classic.bigdl import layers as L  # noqa: E402
from orca_classic.bigdl.initial import L1L2Regularizer  # noqa: E402
from orca_classic.bigdl.keras import autograd, engine  # noqa: E402
from orca_classic.bigdl.keras import layers as K  # noqa: E402
from orca_classic.bigdl.layer import Model  # noqa: E402
from orca_classic.bigdl.net import Estimator as LowEstimator  # noqa: E402
from orca_classic.bigdl.net import InferenceModel, Net  # noqa: E402

DRAW = np.random.default_rng(2)
X = DRAW.normal(size=(53, 4)).astype(np.float32)
Y = 1 + (X[:, 0] > X[:, 1]).astype(np.float32) + (X[:, 2] > 1)  # classes 1 to 3
WEIGHTS = [DRAW.normal(size=shape).astype(np.float32) for shape in ((5, 4), (5,), (3, 5), (3,))]


def network() -> Any:
    penalty = L1L2Regularizer(0.01, 0.05)
    model = (
        L.Sequential().add(L.Linear(4, 5, wRegularizer=penalty)).add(L.Tanh()).add(L.Linear(5, 3)).add(L.LogSoftMax())
    )
    model.set_weights(WEIGHTS)
    return model


def trained(ranks: int, **options: Any) -> list[Any]:
    loss = C.ClassNLLCriterion(np.array([1.0, 2.0, 3.0]))
    est = Estimator.from_bigdl(
        model=network(), loss=loss, optimizer=SGD(learningrate=0.3, momentum=0.9, dampening=0.0), backend="local",
        workers_per_node=ranks, seed=0, **options,
    )  # fmt: skip
    assert est.fit((X, Y), 3, batch_size=53, shuffle=False) is est
    return est.get_model().get_weights()


def by_hand() -> list[Any]:
    net = network().to_torch()
    weights, velocities = list(net.parameters()), [torch.zeros_like(p) for p in net.parameters()]
    for _ in range(3):
        net.zero_grad()
        scores = net(torch.tensor(X))
        torch.nn.functional.nll_loss(scores, torch.tensor(Y).long() - 1, torch.tensor([1.0, 2, 3])).backward()
        with torch.no_grad():
            weights[0].grad += 0.01 * weights[0].sign() + 0.05 * weights[0]
            for parameter, velocity in zip(weights, velocities, strict=True):
                velocity.mul_(0.9).add_(parameter.grad)
                parameter.sub_(velocity, alpha=0.3)
    return [parameter.detach().numpy() for parameter in weights]


@pytest.mark.parametrize("ranks", [1, 3])
def test_any_number_of_ranks_trains_as_a_plain_loop_with_weights_and_penalties(ranks: int) -> None:
    for mine, truth in zip(trained(ranks), by_hand(), strict=True):
        np.testing.assert_allclose(mine, truth, rtol=2e-4, atol=2e-5)


def test_criterions_with_the_same_padding_are_one_loss_on_any_number_of_ranks() -> None:
    padded = np.where(np.arange(53) < 20, -1, Y)  # ranks have different numbers of labels that count
    full = C.SoftmaxWithCriterion(normalize_mode="FULL")  # whose mean has the rows of padding
    weights = []
    for ranks, second in ((1, C.CrossEntropyCriterion()), (3, C.CrossEntropyCriterion()), (3, full)):
        loss = C.MultiCriterion().add(C.ClassNLLCriterion(), 2.0).add(second)
        est = Estimator.from_bigdl(model=network(), loss=loss, backend="local", workers_per_node=ranks, seed=0)
        if second is full:
            with pytest.raises(
                WorkerFailed, match="MultiCriterion adds up means over different labels: .* same padding"
            ):
                est.fit((X, padded), 1, batch_size=53, shuffle=False)
        else:
            weights.append(est.fit((X, padded), 2, batch_size=53, shuffle=False).get_model().get_weights())
    for one, three in zip(*weights, strict=True):
        np.testing.assert_allclose(three, one, rtol=2e-4, atol=2e-5)


def on_backend(backend: str, **options: Any) -> list[Any]:
    """Return weights after a fit of the torch module underneath by the torch Estimator, and of the model by its own."""
    method, loss = SGD(learningrate=0.3, momentum=0.9, dampening=0.0), C.ClassNLLCriterion(np.array([1.0, 2.0, 3.0]))
    torchs = Estimator.from_torch(
        model=network().to_torch(), loss=loss.to_torch(), optimizer=method, backend=backend, workers_per_node=3,
        loss_reduction=loss.reduction, **options,
    )  # fmt: skip
    torchs.fit((X, Y), 3, batch_size=53, shuffle=False)
    bigdls = Estimator.from_bigdl(
        model=network(), loss=loss, optimizer=method, backend=backend, workers_per_node=3, **options
    )
    bigdls.fit((X, Y), 3, batch_size=53, shuffle=False)
    return [[weight.numpy() for weight in torchs.get_model().state_dict().values()], bigdls.get_model().get_weights()]


@pytest.mark.parametrize("backend", ["spark", "bigdl", pytest.param("ray", marks=pytest.mark.full)])
def test_every_backend_trains_the_model_and_the_module_underneath(backend: str, request: Any) -> None:
    request.getfixturevalue("ray_context" if backend == "ray" else "spark")
    for weights in on_backend(backend):
        for mine, truth in zip(weights, by_hand(), strict=True):
            np.testing.assert_allclose(mine, truth, rtol=2e-4, atol=2e-5)


def test_estimator_evaluates_predicts_saves_and_loads(tmp_path: Path) -> None:
    est = Estimator.from_bigdl(
        model=network(), loss=C.ClassNLLCriterion(), optimizer=Adam(learningrate=0.05), metrics=[Top1Accuracy()],
        backend="local", model_dir=str(tmp_path / "kept"),
    )  # fmt: skip
    est.fit((X, Y), 4, batch_size=16, validation_data=(X, Y), checkpoint_trigger=EveryEpoch())
    found = est.evaluate((X, Y), batch_size=16)
    assert found["Top1Accuracy"] > 0.6 and found["num_samples"] == 53
    answers = est.predict(X)
    np.testing.assert_allclose(answers, est.get_model().predict(X), rtol=1e-5, atol=1e-6)
    est.save(str(tmp_path / "model"))
    assert sorted(file.name for file in tmp_path.glob("model*")) == ["model.bigdl", "model.bin"]
    other = Estimator.from_bigdl(model=network(), loss=C.ClassNLLCriterion(), backend="local")
    np.testing.assert_allclose(other.load(str(tmp_path / "model")).predict(X), answers, rtol=1e-5, atol=1e-6)
    again = Estimator.from_bigdl(model=network(), loss=C.ClassNLLCriterion(), backend="local")
    again.load(str(tmp_path / "kept"), is_checkpoint=True)
    np.testing.assert_allclose(again.predict(X), answers, rtol=1e-5, atol=1e-6)
    with pytest.raises(ArgumentError, match="fit needs to know when to end"):
        est.fit((X, Y))


def test_optimizer_trains_samples_with_validation_and_summaries(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    rows = [Sample.from_ndarray(x, y) for x, y in zip(X, Y, strict=True)]
    optimizer = Optimizer(
        model=network(), training_rdd=rows, criterion=C.ClassNLLCriterion(), optim_method=Adam(learningrate=0.05),
        end_trigger=MaxEpoch(3), batch_size=20, backend="local",
    )  # fmt: skip
    optimizer.set_validation(batch_size=20, val_rdd=rows, trigger=EveryEpoch(), val_method=[Top1Accuracy()])
    train, valid = (kind(str(tmp_path), "run") for kind in (TrainSummary, ValidationSummary))
    optimizer.set_train_summary(train)
    optimizer.set_val_summary(valid)
    optimizer.set_gradclip_l2norm(5.0)
    model = optimizer.optimize()
    assert train.read_scalar("Loss").shape == (9, 3) and valid.read_scalar("Top1Accuracy").shape == (3, 3)
    (result,) = model.evaluate(X, Y, 20, [Top1Accuracy()])
    assert result.result == pytest.approx(valid.read_scalar("Top1Accuracy")[-1, 1])


@pytest.mark.parametrize("still", ["stopped", "left out"])
def test_weights_without_a_gradient_rest_on_any_number_of_ranks(still: str) -> None:
    def resting() -> Any:
        if still == "left out":
            both = L.ConcatTable().add(L.Linear(4, 3)).add(L.Linear(4, 3))
            return L.Sequential().add(both).add(L.SelectTable(2)).add(L.LogSoftMax())
        start = L.Input()
        model = Model([start], L.LogSoftMax()(L.Linear(5, 3)(L.Linear(4, 5).set_name("still")(start))))
        return model.stop_gradient(["still"])

    results = []
    for ranks in (1, 2):
        model = resting()
        shapes = [weight.shape for weight in model.get_weights()]
        model.set_weights([np.full(shape, 0.1 * (at + 1)) for at, shape in enumerate(shapes)])
        before = model.get_weights()
        est = Estimator.from_bigdl(
            model=model, loss=C.ClassNLLCriterion(), optimizer=Adam(learningrate=0.1), backend="local",
            workers_per_node=ranks,
        )  # fmt: skip
        results.append(est.fit((X, Y), 2, batch_size=53, shuffle=False).get_model().get_weights())
        assert [(new != old).any() for new, old in zip(results[-1], before, strict=True)] == [False, False, True, True]
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_low_level_estimator_goes_on_until_its_trigger() -> None:
    est = LowEstimator(network(), Adam(learningrate=0.05), backend="local")
    est.train((X, Y), C.ClassNLLCriterion(), end_trigger=MaxEpoch(1), batch_size=16)
    first = est.model.get_weights()[0]
    est.train((X, Y), C.ClassNLLCriterion(), end_trigger=MaxEpoch(2), batch_size=16)
    assert not np.array_equal(first, est.model.get_weights()[0])
    assert est.estimator.get_state_dict()["epoch"] == 2
    (accuracy,) = est.evaluate((X, Y), [Top1Accuracy()])
    assert accuracy.total_num == 53


def test_keras_style_model_finds_shapes_trains_and_is_saved(tmp_path: Path) -> None:
    model = engine.Sequential()
    model.add(K.KERAS["Dense"](8, activation="relu", input_shape=(4,))).add(K.KERAS["Dense"](3, activation="softmax"))
    assert model.get_input_shape() == (None, 4) and model.get_output_shape() == (None, 3)
    model.compile(Adam(learningrate=0.05), "sparse_categorical_crossentropy", ["accuracy"])
    model.fit(X, Y - 1, batch_size=16, nb_epoch=10, distributed=False)
    loss, accuracy = model.evaluate(X, Y - 1, batch_size=16)
    assert (loss.method, accuracy.method) == ("Loss", "Accuracy")
    assert accuracy.result == pytest.approx((model.predict(X, distributed=False).argmax(1) == Y - 1).mean())
    assert accuracy.result > 0.6
    model.saveModel(str(tmp_path / "model"))
    loaded = Model.loadModel(str(tmp_path / "model"))
    np.testing.assert_allclose(loaded.forward(X), model.forward(X), rtol=1e-6)
    with pytest.raises(ArgumentError, match="Call compile"):
        loaded.fit(X, Y)
    with pytest.raises(ArgumentError, match="there is no loss named 'mean'"):
        model.compile("adam", "mean")
    with pytest.raises(ArgumentError, match="the first layer must know its input's shape"):
        engine.Sequential().add(K.KERAS["Dense"](3))
    with pytest.raises(ArgumentError, match="Dense has no argument 'units'; it has output_dim, init"):
        K.KERAS["Dense"](units=3)


def test_variables_are_layers_losses_and_graphs(tmp_path: Path) -> None:
    a, b = engine.Input(shape=(4,)), engine.Input(shape=(4,))
    shift = autograd.Parameter((4,), init_weight=np.arange(4))
    both = K.merge([a + shift, b * 2.0 - 1.0], mode="concat")
    model = engine.Model([a, b], autograd.FUNCTIONS["mean"](both, axis=1, keepDims=True))
    expected = np.hstack([X + np.arange(4), X * 2 - 1]).mean(1, keepdims=True)
    np.testing.assert_allclose(model.forward([X, X]), expected, rtol=1e-5, atol=1e-6)
    model.saveModel(str(tmp_path / "graph"))
    np.testing.assert_allclose(Net.load(str(tmp_path / "graph")).forward([X, X]), expected, rtol=1e-5, atol=1e-6)
    twice = engine.Sequential()
    twice.add(autograd.Lambda(lambda x: x * 2 + 1, input_shape=(4,)))
    np.testing.assert_allclose(twice.forward(X), X * 2 + 1, rtol=1e-6)
    loss = autograd.CustomLoss(lambda y_true, y_pred: autograd.FUNCTIONS["abs"](y_true - y_pred), (4,))
    assert loss.forward(X, np.zeros_like(X)) == pytest.approx(np.abs(X).mean(), rel=1e-5)
    np.testing.assert_allclose(loss.backward(np.zeros_like(X), X), np.sign(X) / X.size, rtol=1e-5)
    with pytest.raises(AttributeError, match="a Variable has no 'reshape'"):
        a.reshape((2, 2))
    with pytest.raises(DataError, match="inputs of different shapes"):
        K.merge([a, engine.Input(shape=(3,))])


def test_inference_model_serves_what_was_saved(tmp_path: Path) -> None:
    model = network()
    model.saveModel(str(tmp_path / "m"))
    torch.jit.save(torch.jit.trace(model.to_torch(), torch.tensor(X)), str(tmp_path / "m.pt"))
    served = InferenceModel()
    with pytest.raises(ArgumentError, match="there is no model yet"):
        served.predict(X)
    for load, path in ((served.load_bigdl, "m"), (served.load_torch, "m.pt")):
        load(str(tmp_path / path))
        np.testing.assert_allclose(served.predict(X), model.predict(X), rtol=1e-5, atol=1e-6)


def test_loading_with_another_loss_takes_its_reduction_too(tmp_path: Path) -> None:
    def estimator(loss: Any) -> Any:
        return Estimator.from_bigdl(model=network(), loss=loss, backend="local", workers_per_node=2)

    saved = estimator(C.ClassNLLCriterion()).save(str(tmp_path / "model"))
    summed, targets = C.AbsCriterion(False), np.zeros((53, 3), np.float32)
    loaded = estimator(C.ClassNLLCriterion()).load(saved, loss=summed, optimizer=SGD(learningrate=0.001))
    weights = []
    for est in (loaded, estimator(summed).load(saved, optimizer=SGD(learningrate=0.001))):
        est.fit((X, targets), 1, batch_size=53, shuffle=False)
        weights.append(est.get_model().get_weights())
    for mine, other in zip(*weights, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("over_write", "kept"), [(True, 1), (False, 3)])
def test_keras_style_model_keeps_one_checkpoint_or_all(tmp_path: Path, over_write: bool, kept: int) -> None:
    model = engine.Sequential().add(K.KERAS["Dense"](1, input_shape=(4,)))
    model.compile("sgd", "mse")
    model.set_checkpoint(str(tmp_path), over_write)
    model.fit(X, Y[:, None], batch_size=53, nb_epoch=3, distributed=False)
    assert len(list(tmp_path.glob("run-*/orca.*"))) == kept


def test_optimizer_goes_on_where_it_ended() -> None:
    method = Adam(learningrate=0.05)
    optimizer = Optimizer(network(), (X, Y), C.ClassNLLCriterion(), MaxEpoch(1), 20, method, backend="local")
    first = optimizer.optimize().get_weights()[0]
    optimizer.set_end_when(MaxEpoch(3))
    second = optimizer.optimize().get_weights()[0]
    assert optimizer.estimator.get_state_dict()["epoch"] == 3
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(optimizer.optimize().get_weights()[0], second)  # three epochs are over


def test_inference_model_takes_several_and_whole_numbers_and_leaves_a_module_alone() -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.drop = torch.nn.Embedding(5, 3), torch.nn.Dropout()

        def forward(self, index: Any, x: Any) -> Any:
            return self.drop(self.table(index)) + x

    module, serving, x = Both(), InferenceModel(), np.ones((2, 3))
    serving.load_torch(module)
    answer = serving.predict([np.array([4, 0]), x])
    np.testing.assert_allclose(answer, module.table.weight.detach().numpy()[[4, 0]] + 1, rtol=1e-6)
    assert module.training and module.drop.training


def test_validation_method_loss_is_that_of_its_own_criterion(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from bigdl.optim.optimizer import Loss

    weighted = C.ClassNLLCriterion(np.array([1.0, 100.0, 3.0]))
    optimizer = Optimizer(network(), (X, Y), C.ClassNLLCriterion(), MaxEpoch(2), 20, SGD(0.1), backend="local")
    optimizer.set_validation(20, (X, Y), EveryEpoch(), [Top1Accuracy(), Loss(weighted)])
    summary = ValidationSummary(str(tmp_path), "run")
    optimizer.set_val_summary(summary)
    model = optimizer.optimize()
    expected = weighted.forward(model.predict(X), Y)
    assert summary.read_scalar("Loss")[-1, 1] == pytest.approx(expected, rel=1e-5)
    est = Estimator.from_bigdl(model=model, loss=C.MultiMarginCriterion(), metrics=[Loss()], backend="local")
    plain = C.ClassNLLCriterion().forward(model.predict(X), Y)
    assert est.evaluate((X, Y), validation_methods=[Loss(weighted)])["Loss"] == pytest.approx(expected, rel=1e-5)
    other = Estimator.from_bigdl(model=model, loss=C.ClassNLLCriterion(), metrics=[Loss()], backend="local")
    assert other.evaluate((X, Y))["Loss"] == pytest.approx(plain, rel=1e-5)
    assert est.metrics[0].name == other.metrics[0].name


def test_last_block_of_one_row_is_predicted_as_the_others() -> None:
    model = L.Sequential().add(L.Linear(4, 1)).add(L.Squeeze())
    rows = np.concatenate([X] * 5)[:257]  # a block, and one row
    expected = rows @ model.get_weights()[0].T + model.get_weights()[1]
    np.testing.assert_allclose(model.predict(rows), expected[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.predict(rows[:1]), expected[:1, 0], rtol=1e-4, atol=1e-5)


def test_batch_normalization_is_over_the_rows_of_all_ranks() -> None:
    weights = []
    for ranks in (1, 2):
        model = L.Sequential().add(L.Linear(4, 5)).add(L.BatchNormalization(5)).add(L.Linear(5, 1))
        model.set_weights([np.full(weight.shape, 0.1 * (at + 1)) for at, weight in enumerate(model.get_weights())])
        model.layers[0].set_weights(WEIGHTS[:2])
        est = Estimator.from_bigdl(
            model=model, loss=C.MSECriterion(), optimizer=SGD(0.1), backend="local", workers_per_node=ranks
        )
        weights.append(est.fit((X, Y[:, None]), 3, batch_size=53, shuffle=False).get_model().get_weights())
    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-5)


def test_several_columns_are_one_vector_that_a_preprocessing_may_cut(spark: Any) -> None:
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    rows = [(i, float(x[0]), [float(x[1]), float(x[2])], [float(x[3])], float(y)) for i, (x, y) in enumerate(
        zip(X, Y, strict=True))]  # fmt: skip
    frame = spark.createDataFrame(rows, "n int, a float, b array<double>, c array<double>, y double")
    frame = frame.withColumn("c", array_to_vector("c")).withColumn("z", F.col("y") * 2)
    columns = ["a", "b", "c"]
    est = Estimator.from_bigdl(model=network(), loss=C.ClassNLLCriterion(), optimizer=SGD(0.1))
    est.fit(frame, 1, batch_size=53, feature_cols=columns, label_cols=["y"])
    predicted = est.predict(frame, feature_cols=columns)
    assert predicted.columns == [*frame.columns, "prediction"]
    found = np.array([row.prediction for row in predicted.orderBy("n").collect()])
    np.testing.assert_allclose(found, est.get_model().predict(X), rtol=1e-4, atol=1e-5)

    a, b = L.Input(), L.Input()
    model = Model([a, b], L.JoinTable(2, 2)([L.Linear(1, 1)(a), L.Linear(3, 1)(b)]))
    cut = Estimator.from_bigdl(model=model, loss=C.MSECriterion(), feature_preprocessing=[[1], [3]])
    cut.fit(frame, 1, batch_size=53, feature_cols=columns, label_cols=["y", "z"])
    found = np.array([row.prediction for row in cut.predict(frame, feature_cols=columns).orderBy("n").collect()])
    np.testing.assert_allclose(found, cut.get_model().predict([X[:, :1], X[:, 1:]]), rtol=1e-4, atol=1e-5)
    scores = cut.evaluate(frame, feature_cols=columns, label_cols=["y", "z"])
    truth = np.stack([Y, 2 * Y], axis=1)
    assert scores["val_loss"] == pytest.approx(((found - truth) ** 2).mean(), rel=1e-4)


def test_metrics_have_the_names_of_bigdl_in_older_programs(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from bigdl.orca.learn.bigdl import Estimator as OlderEstimator
    from bigdl.orca.learn.metrics import Accuracy, Top5Accuracy

    est = OlderEstimator.from_bigdl(
        model=network(), loss=C.ClassNLLCriterion(), metrics=[Accuracy(zero_based_label=False)], backend="local"
    )
    est.set_tensorboard(str(tmp_path), "run")
    est.fit((X, Y), 2, batch_size=20, validation_data=(X, Y))
    accuracy = est.evaluate((X, Y))["Top1Accuracy"]
    for name in ("Top1Accuracy", "Accuracy"):
        assert est.get_validation_summary(name)[-1][1] == pytest.approx(accuracy)
    assert set(est.evaluate((X, Y), validation_methods=[Top5Accuracy()])) >= {"Top5Accuracy", "num_samples"}
