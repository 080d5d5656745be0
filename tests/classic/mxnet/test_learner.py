"""MXNet's learner: several inputs and outputs, number types, losses of symbols, and what is refused."""

from __future__ import annotations

import pickle
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from classic.mxnet.truth import X, Y, cross_entropy, network
from orca.core.source import Batch
from orca.core.state import State
from orca.errors import ArgumentError

pytestmark = pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed")
SGD = {"optimizer": "sgd", "optimizer_params": {"learning_rate": 0.1}}


def learner_of(creator: Any, loss: Any = cross_entropy, **config: Any) -> Any:
    """Return a learner with a model, in no session."""
    from orca_classic.mxnet.learner import MxnetLearner

    learner = MxnetLearner(creator, loss, None, SGD | config).copy_for(None, 0)
    learner.count_in([])
    return learner


def test_learner_travels_after_it_made_models() -> None:
    from orca_classic.mxnet.learner import MxnetLearner

    learner = MxnetLearner(network, cross_entropy, None, SGD)
    state = learner.initial_state(0)
    assert set(state.payload["models"][0]) == {"0.bias", "1.weight", "1.bias"}  # 0.weight: with the first row
    learner.build(state)
    assert pickle.loads(pickle.dumps(learner)) == learner
    predictor = learner.open_predictor(state)
    assert predictor.predict(X).shape == (len(X), 3)
    assert "0.weight" in predictor.learner.weights()


def test_weights_drawn_before_and_after_the_first_row_are_the_same_everywhere() -> None:
    one = learner_of(network)
    one.outputs(X[3:9])
    state = State(payload={"models": [one.initial_state(0).payload["models"][0]]})
    other = learner_of(network).open_predictor(state).learner
    other.outputs(X[:1])
    for name, value in one.weights().items():
        assert np.array_equal(value, other.weights()[name])


def test_models_have_several_inputs_and_outputs_and_losses_see_them_all() -> None:
    def model(config: dict[str, Any]) -> Any:
        from mxnet import gluon

        class Pair(gluon.HybridBlock):
            def __init__(self) -> None:
                super().__init__()
                self.left, self.right = gluon.nn.Dense(1), gluon.nn.Dense(2)

            def hybrid_forward(self, F: Any, a: Any, b: Any) -> Any:
                return self.left(a), self.right(F.concat(a, b))

        return Pair()

    def loss(config: dict[str, Any]) -> Any:
        return lambda one, two, y, z: (one - y.reshape((-1, 1))).square().sum(axis=1) + (two - z).square().sum(axis=1)

    learner = learner_of(model, loss)
    x, y = (X[:4], X[:4, :2]), (X[:4, 0], X[:4, 1:3])
    one, two = learner.outputs(x)
    assert one.shape == (4, 1) and two.shape == (4, 2)
    expected = ((one[:, 0] - y[0]) ** 2).sum() + ((two - y[1]) ** 2).sum()
    total, mass, gradients = learner.loss_and_gradients(Batch(x, y, 4, 4))
    assert (total, mass) == (pytest.approx(expected, rel=1e-5), 4.0)
    assert gradients["left.bias"] == pytest.approx(2 * (one[:, 0] - y[0]).sum(), rel=1e-4)


def test_weights_of_rows_count_in_loss_and_gradients() -> None:
    learner = learner_of(network)
    learner.outputs(X)
    weights = np.arange(8.0)
    total, mass, gradients = learner.loss_and_gradients(Batch(X[:8], Y[:8], 8, 8, weights=weights))
    each = [learner.loss_and_gradients(Batch(X[i : i + 1], Y[i : i + 1], 1, 1)) for i in range(8)]
    assert mass == 28.0 and total == pytest.approx(
        sum(w * one[0] for w, one in zip(weights, each, strict=True)), rel=1e-5
    )
    expected = sum(w * one[2]["1.bias"] for w, one in zip(weights, each, strict=True))
    np.testing.assert_allclose(gradients["1.bias"], expected, atol=1e-5)


def test_inputs_come_in_the_number_type_of_the_weights() -> None:
    def model(config: dict[str, Any]) -> Any:
        net = network(config)
        net.cast("float64")
        return net

    learner = learner_of(model)
    assert learner.outputs(X).dtype == np.float64
    _, _, gradients = learner.loss_and_gradients(Batch(X, Y, len(X), len(X)))
    assert gradients["1.weight"].dtype == np.float64
    learner.apply(gradients)


def test_large_whole_numbers_stay_exact() -> None:
    from orca_classic.mxnet.learner import _input

    assert _input(np.array([2**24 + 1]))[0].asscalar() == 2**24 + 1
    assert _input(np.array([3])).dtype == np.float32


@pytest.mark.parametrize(
    ("head", "label", "loss"),
    [
        ("LinearRegressionOutput", 0, lambda out, y: 0.5 * ((out - y) ** 2).sum()),
        ("MAERegressionOutput", 0, lambda out, y: np.abs(out - y).sum()),
        ("LogisticRegressionOutput", 1, lambda out, y: -np.log(np.where(y > 0, out, 1 - out)).sum()),
    ],
)
def test_symbols_tell_the_loss_whose_gradient_they_give(head: str, label: int, loss: Any) -> None:
    def module(config: dict[str, Any]) -> Any:
        import mxnet as mx

        out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, name="last")
        return mx.mod.Module(getattr(mx.sym, head)(out, mx.sym.var("truth"), name="loss"), label_names=["truth"])

    learner = learner_of(module, None)
    y = (X[:, 0] > 0).astype("float32") if label else X[:, 1]
    outputs = learner.outputs(X)
    batch = Batch(X, y, len(X), len(X))
    total, mass, gradients = learner.loss_and_gradients(batch)
    assert total == pytest.approx(loss(outputs[:, 0], y), rel=1e-4) and mass == len(X)
    assert learner.loss(outputs, batch)[0] == pytest.approx(total, rel=1e-5)
    weights, step = dict(learner.weights()), np.float32(1e-3)  # the gradient of that loss, by two small steps
    around = []
    for change in (step, -step):
        learner.set_weights(weights | {"last_bias": weights["last_bias"] + change})
        around.append(learner.loss(learner.outputs(X), batch)[0])
    assert gradients["last_bias"][0] == pytest.approx((around[0] - around[1]) / (2 * step), rel=2e-2, abs=0.3)


def test_losses_of_a_symbol_meet_their_own_labels_in_any_order() -> None:
    def module(config: dict[str, Any]) -> Any:
        import mxnet as mx

        data, sizes = mx.sym.var("data"), mx.sym.reshape(mx.sym.var("size"), shape=(-1, 1))
        size = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(data, num_hidden=1), sizes)
        kind = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=2), mx.sym.var("kind"))
        return mx.mod.Module(mx.sym.Group([size, kind]), label_names=["kind", "size"])

    learner = learner_of(module, None)
    kinds, sizes = (X[:, 0] > 0).astype("float32"), X[:, 1]
    size, kind = learner.outputs(X)
    expected = 0.5 * ((size[:, 0] - sizes) ** 2).sum() - np.log(kind[np.arange(len(X)), kinds.astype(int)]).sum()
    for y in ((kinds, sizes), {"kind": kinds, "size": sizes}, {"size": sizes, "kind": kinds}):
        batch = Batch(X, y, len(X), len(X))
        assert learner.loss((size, kind), batch)[0] == pytest.approx(expected, rel=1e-5)
        assert learner.loss_and_gradients(batch)[0] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ArgumentError, match=r"needs labels for \['size', 'kind'\]; the rows have \[\]"):
        learner.loss((size, kind), Batch(X, None, len(X), len(X)))


def test_a_symbol_that_makes_its_loss_is_evaluated_with_its_labels() -> None:
    def module(config: dict[str, Any]) -> Any:
        import mxnet as mx

        out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, name="last")
        gap = mx.sym.sum(mx.sym.square(mx.sym.broadcast_sub(out, mx.sym.reshape(mx.sym.var("truth"), (-1, 1)))), axis=1)
        return mx.mod.Module(mx.sym.MakeLoss(gap), label_names=["truth"])

    learner = learner_of(module, None)
    batch = Batch(X, X[:, 0], len(X), len(X))
    learner.complete_weights(batch.x, batch.y)
    weights = learner.weights()
    out = X @ weights["last_weight"].T + weights["last_bias"]
    expected = ((out[:, 0] - X[:, 0]) ** 2).sum()
    assert learner.loss_and_gradients(batch)[0] == pytest.approx(expected, rel=1e-5)


def test_layers_without_a_name_are_called_the_same_in_every_process() -> None:
    import mxnet as mx

    mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3)  # as many as this process has made before
    first, second = learner_of(softmax(), None), learner_of(softmax(), None)
    assert list(first.parameters) == list(second.parameters) == ["fullyconnected0_weight", "fullyconnected0_bias"]


def refused(match: str, creator: Any, loss: Any = cross_entropy, train: bool = False, **config: Any) -> None:
    with pytest.raises(ArgumentError, match=match):
        learner = learner_of(creator, loss, **config)
        if train:
            learner.outputs(X)
            learner.loss_and_gradients(Batch(X, Y, len(X), len(X)))


def softmax(**options: Any) -> Any:
    def module(config: dict[str, Any]) -> Any:
        import mxnet as mx

        out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3)
        return mx.mod.Module(mx.sym.SoftmaxOutput(out, name="softmax", **options))

    return module


def test_what_cannot_be_exact_is_refused_in_words() -> None:
    import mxnet as mx
    from mxnet import gluon

    refused("Loss not defined for gluon model, please specify loss_creator", network, None)
    refused(r"must return a gluon.Block or a mx.mod.Module; got list\.", lambda config: [])
    refused(r"has normalization='batch', which divides by the rows of one worker", softmax(normalization="batch"), None)
    refused(r"rescale_grad does not go with a Module", softmax(), None, optimizer_params={"rescale_grad": 0.1})
    refused(r"optimizer must be a name such as 'adam'; got SGD\.", softmax(), None, optimizer=mx.optimizer.SGD())
    weighted = Batch(X[:2], np.zeros(2, "float32"), 2, 2, weights=np.ones(2))
    symbol = learner_of(softmax(), None)
    for work in (lambda: symbol.loss(symbol.outputs(X[:2]), weighted), lambda: symbol.loss_and_gradients(weighted)):
        with pytest.raises(ArgumentError, match="the losses of a symbol take no weights of rows"):
            work()
    refused(r"LBSGD gathers gradients of several steps", network, optimizer="lbsgd")
    refused(r"has sparse gradients", lambda config: gluon.nn.Embedding(5, 2, sparse_grad=True))
    mean = r"must give one number a row, as those of gluon.loss do; got shape \(1,\) for 53 rows\. Leave out its mean"
    refused(mean, network, lambda config: lambda out, y: out.mean(), train=True)
    unused = r"the weights \['spare.weight'\] take no part in a forward pass"

    def spare(config: dict[str, Any]) -> Any:
        class Spare(gluon.Block):
            def __init__(self) -> None:
                super().__init__()
                self.used, self.spare = gluon.nn.Dense(3), gluon.nn.Dense(3)

            def forward(self, x: Any) -> Any:
                return self.used(x)

        return Spare()

    refused(unused, spare, train=True)


def test_states_that_do_not_fit_are_refused_in_words() -> None:
    learner = learner_of(network)
    with pytest.raises(
        ArgumentError, match=r"it has none of \['2.weight'\], and lacks \['0.bias', '1.weight', '1.bias'\]"
    ):
        learner.set_weights({"2.weight": np.zeros(2)})
    weights = dict(learner.weights())
    with pytest.raises(ArgumentError, match=r"1\.bias is \(4,\), not \(3,\)"):
        learner.set_weights(weights | {"1.bias": np.zeros(4, "float32")})
    adam = learner_of(network, optimizer="adam")
    with pytest.raises(ArgumentError, match="that of the optimizer SGD, but the config has Adam"):
        adam.set_optimizer_state(learner.optimizer_state())
