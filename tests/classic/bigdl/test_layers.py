"""BigDL's layers against numpy and torch's own functions: forward, backward, single rows, shapes that do not fit."""

from __future__ import annotations

import copy
import json
import pickle
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca.errors import ArgumentError, DataError, NotSupported

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from orca.frameworks.torch import architecture, fsdp  # noqa: E402
from orca.frameworks.torch.penalties import penalised  # noqa: E402
from orca_classic.bigdl import doors, recurrent  # noqa: E402
from orca_classic.bigdl import layers as L  # noqa: E402
from orca_classic.bigdl.initial import L2Regularizer, MsraFiller, Ones, Xavier, Zeros  # noqa: E402
from orca_classic.bigdl.keras import engine  # noqa: E402
from orca_classic.bigdl.keras import layers as K  # noqa: E402
from orca_classic.bigdl.layer import Layer, Model  # noqa: E402

DRAW = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return DRAW.normal(size=shape).astype(np.float32)


def test_linear_is_a_product_with_gradients_of_its_weights() -> None:
    layer, x, gradient = L.Linear(3, 2), numbers(4, 3), numbers(4, 2)
    weight, bias = layer.get_weights()
    np.testing.assert_allclose(layer.forward(x), x @ weight.T + bias, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(layer.backward(x, gradient), gradient @ weight, rtol=1e-4, atol=1e-6)
    (parameters,) = layer.parameters().values()
    np.testing.assert_allclose(parameters["gradWeight"], gradient.T @ x, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(parameters["gradBias"], gradient.sum(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(layer.forward(x[0]), x[0] @ weight.T + bias, rtol=1e-4, atol=1e-6)
    layer.update_parameters(0.1)
    np.testing.assert_allclose(layer.get_weights()[1], bias - 0.1 * gradient.sum(0), rtol=1e-4, atol=1e-6)
    layer.zero_grad_parameters()
    assert not next(iter(layer.parameters().values()))["gradWeight"].any()


def test_convolution_shows_its_groups_and_keeps_the_size_with_padding_of_minus_one() -> None:
    layer, x = L.SpatialConvolution(4, 6, 3, 5, 2, 1, 1, 2, 2), numbers(2, 4, 9, 8)
    weight, bias = layer.get_weights()
    assert weight.shape == (2, 3, 2, 5, 3)
    expected = F.conv2d(
        torch.tensor(x), torch.tensor(weight.reshape(6, 2, 5, 3)), torch.tensor(bias), (1, 2), (2, 1), 1, 2
    )
    np.testing.assert_allclose(layer.forward(x), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.forward(x[0]), expected[0], rtol=1e-4, atol=1e-5)
    same = L.SpatialConvolution(4, 2, 3, 3, 2, 2, -1, -1)
    assert same.forward(x).shape == (2, 2, 5, 4)
    last = L.SpatialConvolution(4, 2, 3, 3, data_format="NHWC")
    first = L.SpatialConvolution(4, 2, 3, 3)
    weight, bias = first.get_weights()
    last.set_weights([weight.transpose(0, 3, 4, 2, 1), bias])
    np.testing.assert_allclose(last.forward(x.transpose(0, 2, 3, 1)), first.forward(x).transpose(0, 2, 3, 1), rtol=1e-4)
    with pytest.raises(ArgumentError, match="whose dimensions are in another order. Transpose it"):
        last.set_weights(first.get_weights())
    given = L.SpatialConvolution(4, 2, 3, 3, data_format="NHWC", init_weight=last.get_weights()[0])
    np.testing.assert_array_equal(given.get_weights()[0], last.get_weights()[0])


def test_dropout_drops_in_training_alone() -> None:
    layer, x = L.Dropout(0.5), np.ones((100, 10))
    dropped = layer.forward(x)
    assert set(np.unique(dropped)) == {0.0, 2.0}
    np.testing.assert_array_equal(layer.backward(x, np.ones((100, 10))), dropped)  # the same numbers as forward
    assert set(np.unique(L.Dropout(0.5, scale=False).forward(x))) == {0.0, 1.0}
    np.testing.assert_array_equal(layer.evaluate().forward(x), x)
    assert not layer.is_training() and layer.training().is_training()


def test_input_of_recurrent_layers_needs_time() -> None:
    with pytest.raises(DataError, match=r"LSTM .* is missing the required \"forward\" function"):
        recurrent.LSTM(2, 3).forward(numbers(4, 2))
    with pytest.raises(DataError, match=r"Recurrent .* \(4, 3\): the input needs the dimensions batch, time"):
        recurrent.Recurrent().add(recurrent.RnnCell(3, 2, L.Tanh())).forward(numbers(4, 3))


def test_concat_and_graph_join_branches() -> None:
    x = numbers(4, 3)
    a, b = L.Linear(3, 2), L.Linear(3, 5)
    whole = L.Concat(2).add(a).add(b)
    np.testing.assert_allclose(whole.forward(x), np.hstack([a.forward(x), b.forward(x)]), rtol=1e-5)
    start = L.Input()
    model = Model([start], [L.JoinTable(2, 2)([a(start), b(start)]), a(start)])
    joined, alone = model.forward(x)
    np.testing.assert_allclose(joined, whole.forward(x), rtol=1e-5)
    np.testing.assert_allclose(alone, a.forward(x), rtol=1e-5)
    assert model.backward(x, [np.ones((4, 7)), np.ones((4, 2))]).shape == (4, 3)
    assert len(model.get_weights()) == 4  # a layer that is used twice has its weights once


def test_chain_becomes_a_graph_and_srelu_has_four_ways_to_begin() -> None:
    chain, x = L.Sequential().add(L.Linear(3, 2)).add(L.SReLU([2])), numbers(4, 3)
    chain.layers[1].set_init_method(Zeros(), aRightInit=Ones())
    left, _, _, rise = chain.layers[1].get_weights()
    assert not left.any() and rise.all()
    np.testing.assert_array_equal(chain.to_graph().forward(x), chain.forward(x))
    with pytest.raises(NotSupported, match="save_caffe is not supported: use saveModel"):
        chain.save_caffe("a", "b")
    with pytest.raises(NotSupported, match="load_keras is not supported: train a Keras model"):
        Model.load_keras(json_path="x")


def test_wrong_shape_names_the_layer() -> None:
    model = L.Sequential().add(L.Linear(3, 2).set_name("first")).add(L.Linear(5, 1).set_name("second"))
    with pytest.raises(DataError, match=r"Linear \[second\] cannot take an input of shape \(4, 2\)"):
        model.forward(numbers(4, 3))
    with pytest.raises(DataError, match=r"ParallelTable .*: 2 layers take as many tensors; got 3"):
        L.ParallelTable().add(L.Tanh()).add(L.Tanh()).forward([numbers(2)] * 3)
    with pytest.raises(DataError, match="the index must be 1 to 3"):
        L.Select(2, 4).forward(numbers(2, 3))


def test_one_tensor_is_a_table_of_one_and_a_table_is_no_tensor() -> None:
    x, node = np.arange(6.0).reshape(2, 3), L.Input()
    for layer in (L.CAddTable(), L.CMaxTable(), L.JoinTable(1), L.SelectTable(1), L.ParallelTable().add(L.Identity())):
        np.testing.assert_array_equal(np.asarray(layer.forward(x)).reshape(2, 3), x)
        np.testing.assert_array_equal(np.asarray(Model(node, layer([node])).forward(x)).reshape(2, 3), x)
    for layer, table in ((L.Exp(), [x, x]), (L.Masking(), [x, x]), (L.CSubTable(), [x] * 3), (L.DotProduct(), x)):
        with pytest.raises(DataError, match=rf"{type(layer).__name__} \[.*cannot take an input of shape .*tensor"):
            layer.forward(table)


def test_graph_of_several_inputs_takes_no_rows_for_them() -> None:
    nodes = [L.Input(), L.Input()]
    model = Model(nodes, L.CAddTable()(nodes))
    for verb in (model.forward, model.predict):
        with pytest.raises(DataError, match="the model has 2 inputs; got 1"):
            verb(numbers(2, 3))
    assert len(L.FlattenTable().to_torch()(torch.ones(2), (torch.ones(1), [torch.ones(3)]))) == 3


class Own(torch.nn.Module):
    """A program's own module, with mistakes."""

    def __init__(self, mistake: Any) -> None:
        super().__init__()
        self.mistake, self.table = mistake, None

    def forward(self, x: Any) -> Any:
        return self.mistake(self, x)


def failing(own: Any, x: Any) -> Any:
    raise RuntimeError("mine\nsecond line")


@pytest.mark.parametrize(
    ("mistake", "kind", "words"),
    [
        (lambda own, x: own.table.size, AttributeError, "'NoneType' object has no attribute 'size'"),
        (lambda own, x: [].size, AttributeError, "'list' object has no attribute 'size'"),
        (lambda own, x: own.tables, AttributeError, "'Own' object has no attribute 'tables'"),
        (lambda own, x: own.table[0], DataError, "Own .* input of shape .*: 'NoneType' object is not subscriptable"),
        (lambda own, x: [][1], DataError, "Own .* cannot take an input of shape .*: list index out of range"),
        (failing, DataError, "Own .* cannot take an input of shape .*: mine"),
    ],
)
def test_mistakes_of_a_programs_own_modules_are_told_in_their_words(mistake: Any, kind: Any, words: str) -> None:
    model = L.Sequential().add(L.Sequential().add(Layer.of(Own(mistake))))
    with pytest.raises(kind, match=words) as told:
        model.forward(numbers(2, 3))
    first = told.value if kind is AttributeError else told.value.__cause__
    assert type(first) in (AttributeError, TypeError, IndexError, RuntimeError) and first.__cause__ is None
    lines = traceback.extract_tb(first.__traceback__)
    assert any(line.name in ("<lambda>", "failing") for line in lines)  # the program's own is told


def test_gradients_of_a_table_are_as_many_as_its_tensors() -> None:
    both, x = L.ConcatTable().add(L.Tanh()).add(L.Exp()), numbers(2, 3)
    with pytest.raises(DataError, match="gave 2 output"):
        both.backward(x, [x])


def test_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="there is no model at"):
        Model.load_torch(str(tmp_path / "none.pt"))


def test_unknown_arguments_are_refused_with_those_there_are() -> None:
    with pytest.raises(ArgumentError, match="Linear has no argument 'bias'; it has input_size, output_size, with_bias"):
        L.Linear(2, 3, bias=True)
    with pytest.raises(ArgumentError, match="missing a required argument: 'output_size'"):
        L.Linear(2)
    for name, names in {"SGD": "learningrate, ", "Poly": "power", "MaxEpoch": "max_epoch", "L2Regularizer": "l2",
                        "Optimizer": "model, training_rdd", "TrainSummary": "log_dir"}.items():  # fmt: skip
        with pytest.raises(ArgumentError, match=f"{name} has no argument 'lr'; it has {names}"):
            doors.optimizer(name)(lr=1)
    with pytest.raises(ArgumentError, match="Linear.* is called with nodes"):
        L.Linear(2, 3)(np.zeros(2))


def test_input_is_numbers_arrays_or_tables_of_them() -> None:
    layer, x = L.Linear(3, 2), numbers(2, 3)
    np.testing.assert_array_equal(layer.forward(x.tolist()), layer.forward(x))
    np.testing.assert_allclose(L.CAddTable().forward([x.tolist(), x]), 2 * x, rtol=1e-6)
    with pytest.raises(DataError, match="a layer takes arrays, or a list of them; got NoneType"):
        layer.forward(None)
    for table in (L.LookupTable(5, 2), L.LookupTableSparse(5, 2)):
        for index, words in (
            (1.5, "whole number; got 1.5"),
            (6.0, "from 1 to 5; got 6"),
            (np.nan, "from 1 to 5; got nan"),
        ):
            with pytest.raises(DataError, match=f"LookupTable.*{words}"):
                table.forward(np.array([[index]]))


def test_classes_are_those_of_one_output() -> None:
    both = L.ConcatTable().add(L.Linear(3, 2)).add(L.Linear(3, 2))
    with pytest.raises(ArgumentError, match="has 2 outputs: predict_class takes models with one"):
        both.predict_class(numbers(4, 3))


def test_weights_are_taken_over_or_refused() -> None:
    layer = L.Linear(3, 2, init_weight=np.ones((2, 3)), init_bias=np.zeros(2))
    assert layer.get_weights()[0].sum() == 6
    layer.set_init_method(Zeros(), Ones())
    assert not layer.get_weights()[0].any() and layer.get_weights()[1].all()
    layer.set_init_method(Xavier())
    assert 0 < np.abs(layer.get_weights()[0]).max() <= np.sqrt(6 / 5)
    MsraFiller().fill(layer.module.weight)
    with pytest.raises(ArgumentError, match="has 2 arrays of weights; got 1"):
        layer.set_weights([np.zeros(6)])
    with pytest.raises(ArgumentError, match=r"weight of Linear .* \(2, 3\); got an array of shape \(4,\)"):
        layer.set_weights([np.zeros(4), np.zeros(2)])


def test_layers_freeze_by_name() -> None:
    model = L.Sequential().add(L.Linear(3, 2).set_name("a")).add(L.Linear(2, 1).set_name("b"))
    model.freeze(["a"])
    assert [p.requires_grad for p in model.to_torch().parameters()] == [False, False, True, True]
    model.unfreeze()
    assert all(p.requires_grad for p in model.to_torch().parameters())
    with pytest.raises(ArgumentError, match="has no layer 'c'; it has .*a, b"):
        model.freeze("c")


def test_regularizer_adds_its_gradient() -> None:
    x, gradient = numbers(4, 3), numbers(4, 2)
    plain = L.Linear(3, 2)
    layer = L.Linear(3, 2, wRegularizer=L2Regularizer(0.5))
    layer.set_weights(plain.get_weights())
    for each in (plain, layer):
        each.backward(x, gradient)
    (mine,), (other,) = layer.parameters().values(), plain.parameters().values()
    np.testing.assert_allclose(mine["gradWeight"], other["gradWeight"] + 0.5 * other["weight"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(mine["gradBias"], other["gradBias"], rtol=1e-5)


def test_model_is_saved_without_pickles_and_answers_the_same(tmp_path: Path) -> None:
    x = numbers(4, 3)
    start = L.Input()
    hidden = L.Linear(3, 4, wRegularizer=L2Regularizer(0.1)).set_name("hidden")(start)
    model = Model([start], [L.CAddTable()([L.ReLU()(hidden), hidden])]).freeze(["hidden"]).evaluate()
    one, two = str(tmp_path / "one"), [str(tmp_path / "model"), str(tmp_path / "weights")]
    model.saveModel(one)
    model.saveModel(*two)
    for loaded in (Model.loadModel(one), Model.loadModel(*two)):
        np.testing.assert_array_equal(loaded.forward(x), model.forward(x))
        assert not any(p.requires_grad for p in loaded.to_torch().parameters())
        assert loaded.layer_named("hidden").module.penalties == {"weight": (0.0, 0.1)}
    with pytest.raises(ArgumentError, match="Pass over_write=True"):
        model.saveModel(one)
    with pytest.raises(ArgumentError, match="there is no model at"):
        Model.loadModel(str(tmp_path / "nothing"))
    with pytest.raises(ArgumentError, match="needs weightPath="):
        Model.loadModel(two[0])
    with pytest.raises(ArgumentError, match="it is no layer of BigDL"):
        L.Sequential().add(Layer.of(torch.nn.Linear(1, 1))).saveModel(str(tmp_path / "x"))


def test_model_is_loaded_by_a_program_that_knows_no_layers_yet(tmp_path: Path, run_program: Any) -> None:
    L.Sequential().add(L.Linear(3, 2)).add(L.Tanh()).saveModel(str(tmp_path / "model"))
    load = f"load_layer({str(tmp_path / 'model')!r}).forward([1, 2, 3])"
    run_program(f"from orca_classic.bigdl.files import load_layer; assert {load}.shape == (2,)")


def test_module_answers_in_a_worker_that_knows_no_layers_yet(tmp_path: Path, run_program: Any) -> None:
    model = engine.Sequential().add(K.Dense(3, input_shape=(2,))).add(K.Dropout(0.5)).add(K.Mul())
    (tmp_path / "module.pkl").write_bytes(pickle.dumps(model.evaluate().to_torch()))
    (tmp_path / "module.json").write_text(json.dumps(architecture.describe(L.Tanh().to_torch())))
    run_program(
        f"""
        import json, pickle, torch
        from orca.frameworks.torch.architecture import build

        tanh = build(json.load(open({str(tmp_path / "module.json")!r})))
        assert not tanh(torch.zeros(4, 2)).any()
        net = pickle.load(open({str(tmp_path / "module.pkl")!r}, "rb"))
        assert net(torch.zeros(4, 2)).shape == (4, 3)
        """
    )


def test_torch_traces_a_model_for_any_number_of_rows() -> None:
    model = L.Sequential().add(L.Reshape([1, 8, 8])).add(L.SpatialConvolution(1, 2, 3, 3, 1, 1, -1, -1))
    model.add(L.SpatialBatchNormalization(2)).add(L.SpatialAveragePooling(2, 2, 2, 2, -1, -1)).add(L.View([32]))
    module = model.add(L.Linear(32, 3)).add(L.LogSoftMax()).evaluate().to_torch()
    traced, x = torch.jit.trace(module, (torch.rand(4, 8, 8),)), torch.rand(2, 8, 8)
    np.testing.assert_allclose(traced(x).detach(), module(x).detach(), rtol=1e-5)


def test_layers_of_the_programs_own_classes_compute_what_their_bases_do() -> None:
    class Net(L.Sequential):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.add(L.Linear(3, 2)).add(Half())

    class Half(L.MulConstant):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(0.5)

    model, x = Net(), numbers(4, 3)
    weight, bias = model.get_weights()
    np.testing.assert_allclose(model.forward(x), (x @ weight.T + bias) / 2, rtol=1e-4, atol=1e-6)
    model.inner = model.twin = L.Linear(1, 1)  # words of the program
    model.freeze()
    assert model.twin.module.weight.requires_grad and not model.layers[0].module.weight.requires_grad


def test_layers_travel_as_pickles_and_copies() -> None:
    model = L.Sequential().add(L.Linear(3, 2)).add(L.View([2])).add(L.Dropout())
    x = numbers(4, 3)
    model.evaluate().forward(x)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(other.forward(x), model.forward(x))
    assert pickle.loads(pickle.dumps(model.to_torch()))(torch.tensor(x)).shape == (4, 2)


def test_quantized_model_answers_nearly_the_same(tmp_path: Path) -> None:
    model, x = L.Sequential().add(L.Linear(8, 4)).add(L.Highway(4)), numbers(5, 8)
    whole, one = model.quantize(), L.Linear(8, 4).quantize()
    assert model.is_training() and not whole.is_training()
    parts = [part for each in (whole, one) for part in each.module.modules() if type(part).__name__ == "Linear"]
    assert len(parts) == 4 and not any(isinstance(part, torch.nn.modules.linear.Linear) for part in parts)
    np.testing.assert_allclose(whole.predict(x), model.evaluate().predict(x), atol=0.05)
    with pytest.raises(ArgumentError, match="is quantized, .* Save the model, and call quantize"):
        whole.saveModel(str(tmp_path / "model"))


def test_model_predicts_and_evaluates_arrays() -> None:
    from orca_classic.bigdl.validation import Loss, Top1Accuracy, Top5Accuracy

    model, x = L.Sequential().add(L.Linear(3, 6)).add(L.LogSoftMax()), numbers(301, 3)
    answers = model.predict(x, 100)
    classes = model.predict_class(x)
    np.testing.assert_array_equal(classes, answers.argmax(1) + 1)
    labels = np.where(np.arange(301) < 200, classes, 7 - classes)
    accuracy, loss, best = model.evaluate(x, labels, 100, [Top1Accuracy(), Loss(), Top5Accuracy()])
    assert (accuracy.total_num, accuracy.method) == (301, "Top1Accuracy")
    assert accuracy.result == pytest.approx((labels == classes).mean())
    assert loss.result == pytest.approx(-answers[np.arange(301), labels - 1].mean(), rel=1e-5)
    assert best.result > accuracy.result
    with pytest.raises(ArgumentError, match="with brackets; got type"):
        model.evaluate(x, labels, 100, [Top1Accuracy])
    with pytest.raises(DataError, match="there are no rows to evaluate"):
        model.evaluate(x[:0], labels[:0], 100, [Top1Accuracy()])


def test_backward_goes_with_the_input_weights_and_mode_that_are_there_now() -> None:
    layer, x, gradient = L.Linear(3, 2), numbers(4, 3), numbers(4, 2)
    layer.forward(x)
    x *= 5
    layer.backward(x, gradient)
    np.testing.assert_allclose(layer.parameters()[layer.name()]["gradWeight"], gradient.T @ x, rtol=1e-4, atol=1e-5)
    model = L.Sequential().add(L.Linear(3, 2)).add(L.Linear(2, 2))
    model.backward(x, gradient)
    model.update_parameters(0.1)
    first, second = (weight for weight in model.get_weights() if weight.ndim == 2)
    np.testing.assert_allclose(model.backward(x, gradient), gradient @ second @ first, rtol=1e-4, atol=1e-5)
    dropped = L.Dropout()
    dropped.forward(x)
    np.testing.assert_array_equal(dropped.evaluate().backward(x, x), x)


def test_layers_that_stand_twice_are_one_after_loading(tmp_path: Path) -> None:
    shared, start = L.Linear(3, 3), L.Input()
    inner = L.Sequential().add(shared).add(L.Tanh()).add(shared)
    graph = Model([start], L.CAddTable()([inner(start), shared(start), L.TimeDistributed(shared)(start)]))
    tied = engine.Sequential().add(K.KERAS["Dense"](4, input_shape=(4,)))
    tied.add(tied.layers[0])
    for at, model in enumerate((inner, graph, tied)):
        model.saveModel(str(tmp_path / str(at)))
        loaded = Model.loadModel(str(tmp_path / str(at)))
        assert len(loaded.get_weights()) == len(model.get_weights()) == 2
    np.testing.assert_array_equal(loaded.forward(np.ones((2, 4))), tied.forward(np.ones((2, 4))))


def test_regularizers_that_were_set_later_are_saved(tmp_path: Path) -> None:
    layer = L.Linear(3, 2, bRegularizer=L2Regularizer(0.1)).setWRegularizer(L2Regularizer(0.5))
    layer.saveModel(str(tmp_path / "layer"))
    assert Model.loadModel(str(tmp_path / "layer")).module.penalties == {"bias": (0.0, 0.1), "weight": (0.0, 0.5)}


@pytest.mark.parametrize(
    ("layer", "shapes"),
    [
        (recurrent.ConvLSTMPeephole(2, 3, 3, 3, uRegularizer=L2Regularizer(0.5)), [(12, 3, 3, 3)]),
        (recurrent.ConvLSTMPeephole(2, 3, 3, 3, wRegularizer=L2Regularizer(0.5)), [(12, 2, 3, 3)]),
        (recurrent.ConvLSTMPeephole(2, 3, 3, 3, cRegularizer=L2Regularizer(0.5)), [(3, 3, 1, 1)]),
        (L.SpatialSeparableConvolution(2, 3, 1, 2, 2, w_regularizer=L2Regularizer(0.5)), [(2, 1, 2, 2)]),
        (L.SpatialSeparableConvolution(2, 3, 1, 2, 2, p_regularizer=L2Regularizer(0.5)), [(3, 2, 1, 1)]),
        (K.KERAS["SeparableConvolution2D"](3, 2, 2, pointwise_regularizer=L2Regularizer(0.5)).build((2, 4, 4)),
         [(3, 2, 1, 1)]),
        (K.KERAS["SeparableConvolution2D"](3, 2, 2, depthwise_regularizer=L2Regularizer(0.5)).build((2, 4, 4)),
         [(2, 1, 2, 2)]),
        (K.KERAS["ConvLSTM2D"](3, 3, U_regularizer=L2Regularizer(0.5)).build((4, 2, 5, 5)), [(12, 3, 3, 3)]),
    ],
)  # fmt: skip
def test_regularizers_are_on_the_weights_that_they_name(layer: Any, shapes: Any) -> None:
    assert [tuple(weight.shape) for weight, _ in penalised(layer.module)] == shapes


def test_pooling_of_all_steps_and_layers_that_pass_no_gradient() -> None:
    x = numbers(2, 5, 3)
    np.testing.assert_array_equal(L.TemporalMaxPooling(-1).forward(x), x.max(1, keepdims=True))
    layer = L.LocallyConnected1D(5, 3, 2, 2, propagate_back=False)
    assert not layer.backward(x, np.ones((2, 4, 2))).any()


def keras(name: str, *args: Any, shape: Any, **kwargs: Any) -> Any:
    return K.KERAS[name](*args, **kwargs).build(shape)


def test_keras_embedding_masks_its_padding_and_refuses_indices_it_does_not_have() -> None:
    masked = keras("Embedding", 5, 2, mask_zero=True, shape=(3,))
    answer, table = masked.forward(np.array([[0, 1, 4], [2, 0, 0]])), masked.get_weights()[0]
    np.testing.assert_array_equal(answer, [[table[0] * 0, table[1], table[4]], [table[2], table[0] * 0, table[0] * 0]])
    other = keras("Embedding", 5, 2, mask_zero=True, padding_value=4, shape=(3,))
    assert other.forward(np.array([[0, 4, 1]])).any(-1).tolist() == [[True, False, True]]
    plain = keras("Embedding", 5, 2, shape=(3,))
    np.testing.assert_array_equal(plain.forward(np.array([[0, 1, 4]]))[0], plain.get_weights()[0][[0, 1, 4]])
    with pytest.raises(DataError, match="counts from 1 to 5; got 0 to 2"):
        keras("Embedding", 5, 2, zero_based_id=False, shape=(3,)).forward(np.array([[0, 1, 2]]))


def test_keras_arguments_are_followed_or_refused() -> None:
    assert len(keras("LocallyConnected1D", 2, 2, bias=False, shape=(5, 3)).get_weights()) == 1
    same = keras("LocallyConnected2D", 2, 3, 3, border_mode="same", shape=(1, 5, 4))
    assert same.get_output_shape() == (None, 2, 5, 4)
    ends = keras("Dense", 3, init="uniform", limits=(2.0, 3.0), shape=(4,)).get_weights()[0]
    assert 2 <= ends.min() <= ends.max() <= 3
    assert (keras("SparseDense", 2, init_weight=np.full((2, 4), 7.0), shape=(4,)).get_weights()[0] == 7).all()
    assert (K.KERAS2["Dense"](2, bias_initializer="one").build((4,)).get_weights()[1] == 1).all()
    assert (keras("SReLU", t_right_init="one", shape=(4,)).get_weights()[2] == 1).all()
    assert keras("Convolution1D", 2, np.int64(3), shape=(5, 4)).get_output_shape() == (None, 3, 2)
    larger = keras("Deconvolution2D", 2, 3, 3, output_shape=(None, 2, 6, 6), shape=(1, 4, 4))
    assert larger.get_output_shape() == (None, 2, 6, 6)
    for name, args, more, shape, words in [
        ("LocallyConnected1D", (2, 2), {"border_mode": "same"}, (5, 3), "border_mode='valid' alone"),
        ("LocallyConnected2D", (2, 2, 2), {"border_mode": "same"}, (1, 5, 5), "odd kernels"),
        ("Convolution2D", (2, 3, 3), {"border_mode": None}, (1, 4, 4), "border_mode must be one of 'valid', 'same'"),
        ("Deconvolution2D", (2, 3, 3), {"border_mode": "same"}, (1, 4, 4), "border_mode='valid' alone"),
        ("Deconvolution2D", (2, 3, 3), {"output_shape": (None, 2, 9, 9)}, (1, 4, 4), r"rows of shape \(2, 6, 6\)"),
        ("ConvLSTM2D", (2, 3), {"dim_ordering": "tf"}, (3, 5, 5, 1), "dim_ordering='th' alone"),
        ("BatchNormalization", (), {}, (2, 6), r"features or of images; got rows of shape \(2, 6\)"),
        ("BatchNormalization", (), {"axis": 2}, (3, 4, 4), "got axis=2"),
        ("BatchNormalization", (), {"gamma_init": "some"}, (3, 4, 4), "there is no init 'some'"),
        ("Dense", (3,), {"limits": (0, 1)}, (4,), "limits are the bounds of init='uniform'"),
    ]:  # fmt: skip
        with pytest.raises(ArgumentError, match=words):
            keras(name, *args, shape=shape, **more)


def test_arrays_may_run_backwards_and_weights_may_not_be_transposed() -> None:
    layer, x = L.Linear(3, 2), numbers(4, 3)
    np.testing.assert_array_equal(layer.forward(x[::-1]), layer.forward(x[::-1].copy()))
    np.testing.assert_array_equal(layer.predict(x[:, ::-1]), layer.predict(x[:, ::-1].copy()))
    weight, bias = layer.get_weights()
    layer.set_weights([weight.reshape(1, 2, 3), bias])
    with pytest.raises(ArgumentError, match=r"\(2, 3\); got .* \(3, 2\), .* another order. Transpose it"):
        layer.set_weights([weight.T, bias])


def test_graph_begins_with_layers_called_without_nodes(tmp_path: Path) -> None:
    first, second = L.Linear(4, 2).set_name("first"), L.Linear(3, 2)
    starts = [first(), second()]
    x, y = numbers(5, 4), numbers(5, 3)
    model = Model(starts, [L.ReLU().set_name("end")(L.CAddTable()(starts))])
    wanted = np.maximum(first.forward(x) + second.forward(y), 0)
    np.testing.assert_allclose(model.forward([x, y]), wanted, rtol=1e-6)
    assert len(model.get_weights()) == 4
    model.saveModel(str(tmp_path / "model"))
    np.testing.assert_array_equal(Model.loadModel(str(tmp_path / "model")).forward([x, y]), model.forward([x, y]))
    model.freeze_up_to("first")
    assert [weight.requires_grad for weight in model.module.parameters()] == [False, False, True, True]


def test_channels_last_are_normalized_by_whatever_forward_pass_ranks_share() -> None:
    norm, seen = L.SpatialBatchNormalization(2, data_format="NHWC"), []
    norm.module.__dict__["forward"] = lambda rows: seen.append(tuple(rows.shape)) or rows
    images = numbers(3, 4, 5, 2)
    np.testing.assert_array_equal(norm.forward(images), images)
    assert seen == [(3, 2, 4, 5)]


def test_both_cells_of_birecurrent_are_told_and_frozen_by_name() -> None:
    layer = recurrent.BiRecurrent().add(recurrent.LSTM(2, 3))
    layer.layers[0].set_name("cell")
    assert list(layer.parameters()["cell"])[::2] == ["weight", "bias", "hidden", "weight2", "bias2", "hidden2"]
    layer.freeze("cell")
    assert not any(weight.requires_grad for weight in layer.module.parameters())
    for loaded in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        loaded.layers[0].unfreeze()
        assert all(weight.requires_grad for weight in loaded.module.parameters())
        loaded.layers[0].freeze("cell")
        assert not any(weight.requires_grad for weight in loaded.module.parameters())


def test_inner_layers_of_stacked_cells_and_wrappers_are_frozen_by_name(tmp_path: Path) -> None:
    lower, upper = recurrent.LSTM(4, 3).set_name("lower"), recurrent.GRU(3, 3).set_name("upper")
    model = L.Sequential().add(recurrent.BiRecurrent().add(recurrent.MultiRNNCell([lower, upper])))
    model.add(L.TimeDistributed(L.Linear(3, 2).set_name("wrapped")))
    assert list(model.parameters()) == ["lower", "upper", "wrapped"]

    def still(model: Any) -> int:
        return sum(not weight.requires_grad for weight in model.module.parameters())

    model.freeze(["lower", "wrapped"])
    model.saveModel(str(tmp_path / "model"))
    loaded = Model.loadModel(str(tmp_path / "model"))
    assert still(model) == still(loaded) == 2 * 3 + 2
    lower.unfreeze()
    loaded.unfreeze("lower")
    assert still(model) == still(loaded) == 2
    assert model.layer_named("lower") is lower  # and not its copy that reads backwards


def test_layers_that_merge_or_operate_are_told_and_frozen_by_name() -> None:
    merge = L.Sequential().add(L.JoinTable(3, 3)).add(L.Bottle(L.Linear(6, 2).set_name("merge")))
    both = recurrent.BiRecurrent(merge).add(recurrent.LSTM(4, 3).set_name("cell"))
    operation = L.TableOperation(L.Bilinear(2, 2, 1).set_name("operation"))
    for layer, names in ((both, ["cell", "merge"]), (operation, ["operation"])):
        assert list(layer.parameters()) == names
        layer.freeze(names[-1])
        frozen = [name for name, weight in layer.module.named_parameters() if not weight.requires_grad]
        assert len(frozen) == 2 and all("merge" in name or name.startswith("part") for name in frozen)
    assert both.forward(numbers(2, 5, 4)).shape == (2, 5, 2)


def test_state_of_stacked_cells_holds_no_graph() -> None:
    layer = recurrent.Recurrent().add(recurrent.MultiRNNCell([recurrent.LSTM(2, 3), recurrent.GRU(3, 3)]))
    layer.forward(numbers(1, 4, 2))
    assert not layer.module.state[1][0].requires_grad
    assert not list(fsdp._blocks(layer.to_torch()))  # the container calls no forward of a cell


def test_stopped_layers_are_saved_under_their_newest_names_and_inner_ones_refused(tmp_path: Path) -> None:
    start, inner = L.Input(), L.Linear(2, 2).set_name("inner")
    outer = L.Sequential().add(inner).set_name("outer")
    model = Model([start], [outer(start)])
    with pytest.raises(ArgumentError, match="inner.* is inside another layer"):
        model.stop_gradient(["inner"])
    model.stop_gradient(["outer"])
    outer.set_name("renamed")
    model.saveModel(str(tmp_path / "model"))
    assert Model.loadModel(str(tmp_path / "model")).steps()["stops"] == ["renamed"]
