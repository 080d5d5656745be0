from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

ov = pytest.importorskip("openvino")
from openvino import opset13 as op  # noqa: E402

from orca.core.resources import cores  # noqa: E402
from orca.core.state import OutputSpec  # noqa: E402
from orca.errors import ArgumentError, DataError  # noqa: E402
from orca.frameworks import openvino as ours  # noqa: E402
from orca.frameworks.openvino import OpenvinoSpec, check_config, convert, threads  # noqa: E402

WEIGHTS = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)


def image_model(batch: int = -1, size: int = 2, dtype: Any = np.float32) -> Any:
    """Return a model of images [batch, 3, size, 2] with 3 outputs a row; size -1 leaves the height free."""
    image = op.parameter([batch, 3, size, 2], dtype, name="image")
    real = op.convert(image, "f32")
    if size == -1:
        scores = op.reduce_sum(real, np.array([2, 3]))
    else:
        scores = op.matmul(op.reshape(real, np.array([0, -1]), True), WEIGHTS, False, False)
    return named(ov.Model([scores], [image]), ["scores"])


def two_headed() -> Any:
    """Return a model of (number, vector): their sum, and the vector's double."""
    number, vector = op.parameter([-1, 1], name="number"), op.parameter([-1, 4], name="vector")
    heads = [op.add(number, vector), op.multiply(vector, np.float32(2))]
    return named(ov.Model(heads, [number, vector]), ["total", "double"])


def named(model: Any, outputs: list[str]) -> Any:
    for port in model.inputs:
        port.tensor.set_names({port.node.friendly_name})
    for port, name in zip(model.outputs, outputs, strict=True):
        port.tensor.set_names({name})
    return model


def saved(model: Any, folder: Path, name: str = "model") -> str:
    ov.save_model(model, folder / f"{name}.xml", compress_to_fp16=False)
    return str(folder / f"{name}.xml")


def predictor_of(path: str, *, batch: int = 0, batch_size: int = 4, nested: bool = False, **config: Any) -> Any:
    """Return a predictor of a model that went through a pickle, as it does on its way to a worker."""
    spec, state = OpenvinoSpec.of(path, batch)
    spec = spec.with_options(batch_size, config, nested)
    spec, state = cloudpickle.loads(cloudpickle.dumps((spec, state.for_answers())))
    return spec.open_predictor(state)


def images(rows: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 50, size=(rows, 3, 2, 2)).astype(dtype)


def answers(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1).astype(np.float32) @ WEIGHTS


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.shape == expected.shape and np.allclose(found, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 4, 7, 103])
def test_rows_are_answered_in_order_whatever_the_batches(tmp_path: Path, rows: int) -> None:
    predictor = predictor_of(saved(image_model(), tmp_path))
    assert close(predictor.predict(images(rows)), answers(images(rows)))


@pytest.mark.parametrize("rows", [1, 4, 7, 103])
def test_last_batch_of_a_fixed_batch_model_is_filled_up_and_trimmed(tmp_path: Path, rows: int) -> None:
    predictor = predictor_of(saved(image_model(batch=4), tmp_path), batch_size=50)
    assert close(predictor.predict(images(rows)), answers(images(rows)))


def test_batch_size_of_the_model_can_be_set(tmp_path: Path) -> None:
    predictor = predictor_of(saved(image_model(), tmp_path), batch=5)
    assert predictor.signature.batch == 5
    assert close(predictor.predict(images(7)), answers(images(7)))


def test_batches_of_rows_are_answered_in_their_shape(tmp_path: Path) -> None:
    for batch in (-1, 4):
        predictor = predictor_of(saved(image_model(batch), tmp_path), nested=True)
        x = images(15)
        assert close(predictor.predict(x.reshape(5, 3, 3, 2, 2)), answers(x).reshape(5, 3, 3))
    with pytest.raises(DataError, match="batches of 5 rows do not fit a model with a fixed batch of 4"):
        predictor.predict(images(15).reshape(3, 5, 3, 2, 2))


def test_other_number_types_are_cast(tmp_path: Path) -> None:
    path = saved(image_model(), tmp_path)
    for dtype in (np.float64, np.uint8, np.float16):
        assert close(predictor_of(path).predict(images(6, dtype)), answers(images(6)))
    bytes_in = predictor_of(saved(image_model(dtype=np.uint8), tmp_path, "bytes"))
    assert close(bytes_in.predict(images(6)), answers(images(6)))


def test_arrays_that_may_not_be_written_or_lie_scattered_are_read(tmp_path: Path) -> None:
    predictor = predictor_of(saved(image_model(), tmp_path))
    x = images(10)
    scattered = np.asfortranarray(x)[::2]
    assert close(predictor.predict(scattered), answers(x[::2]))
    x.flags.writeable = False
    assert close(predictor.predict(x), answers(x))


@pytest.mark.parametrize("shape", [(6, 12), (6, 3, 1, 2, 2)])
def test_flat_rows_get_the_shape_of_the_input(tmp_path: Path, shape: tuple[int, ...]) -> None:
    predictor = predictor_of(saved(image_model(), tmp_path))
    assert close(predictor.predict(images(6).reshape(shape)), answers(images(6)))


def test_axes_in_another_order_are_refused_although_the_sizes_agree(tmp_path: Path) -> None:
    predictor = predictor_of(saved(image_model(), tmp_path))
    with pytest.raises(
        DataError, match=r"input 'image' does not take an array of shape \(6, 2, 2, 3\).*\[\?, 3, 2, 2\]"
    ):
        predictor.predict(images(6).reshape(6, 2, 2, 3))


def test_several_inputs_come_in_order_or_by_name_and_several_outputs_as_a_list(tmp_path: Path) -> None:
    predictor = predictor_of(saved(two_headed(), tmp_path))
    number, vector = np.arange(6, dtype=np.float32), np.arange(24, dtype=np.float32).reshape(6, 4)
    for x in ((number, vector), [number[:, None], vector], {"vector": vector, "number": number}):
        total, double = predictor.predict(x)
        assert close(total, number[:, None] + vector)
        assert close(double, vector * 2)
    assert isinstance(predictor.predict((number, vector)), list)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            images(4),
            r"has 2 input\(s\), but the data has 1 array.*'number' float32 \[\?, 1\]; 'vector' float32 \[\?, 4\]",
        ),
        ((np.ones(4), np.ones((4, 5))), r"input 'vector' does not take an array of shape \(4, 5\)"),
        ((np.array(["a"] * 4), np.ones((4, 4))), r"input 'number' takes numbers; got text"),
        ((np.ones(4, "datetime64[s]"), np.ones((4, 4))), r"input 'number' takes numbers; got datetime64"),
    ],
)
def test_data_that_does_not_fit_is_refused_in_words(tmp_path: Path, x: Any, message: str) -> None:
    predictor = predictor_of(saved(two_headed(), tmp_path))
    with pytest.raises(DataError, match=message):
        predictor.predict(x)


def test_no_rows_give_empty_answers_of_the_right_shape(tmp_path: Path) -> None:
    predictor = predictor_of(saved(image_model(), tmp_path))
    for empty in (np.zeros((0, 3, 2, 2)), np.zeros((0, 0))):
        assert predictor.predict(empty).shape == (0, 3)


def test_output_is_told_without_running_where_only_the_batch_is_free(tmp_path: Path) -> None:
    assert OpenvinoSpec.of(saved(image_model(), tmp_path))[1].output == OutputSpec((("float32", (3,)),))
    _, state = OpenvinoSpec.of(saved(two_headed(), tmp_path))
    assert state.output == OutputSpec.of([np.zeros((1, 4), np.float32)] * 2)
    free = op.parameter([-1, -1], name="x")
    assert OpenvinoSpec.of(saved(ov.Model([op.relu(free)], [free]), tmp_path))[1].output is None


def test_rows_of_any_height_are_taken_where_the_model_leaves_it_free(tmp_path: Path) -> None:
    predictor = predictor_of(saved(image_model(size=-1), tmp_path), nested=True)
    for height in (2, 5):
        x = np.random.default_rng(0).random((6, 3, height, 2), np.float32)
        assert close(predictor.predict(x), x.sum(axis=(2, 3)))
        assert close(predictor.predict(x[None]), x.sum(axis=(2, 3))[None])


def test_an_output_without_rows_is_refused(tmp_path: Path) -> None:
    x = op.parameter([-1, 2], name="x")
    path = saved(named(ov.Model([op.reduce_sum(x, np.array([0]), True)], [x]), ["sum"]), tmp_path)
    with pytest.raises(DataError, match=r"output 'sum' has the shape \(1, 2\) for a batch of 4 rows"):
        predictor_of(path).predict(np.ones((8, 2)))


def test_predictor_goes_on_after_a_failed_request(tmp_path: Path) -> None:
    free = op.parameter([-1, -1], name="x")
    path = saved(ov.Model([op.add(free, np.ones((1, 3), np.float32))], [free]), tmp_path)
    predictor = predictor_of(path)
    with pytest.raises(DataError, match=r"the OpenVINO model failed on rows of shapes \[\('n', 2\)\]"):
        predictor.predict(np.ones((9, 2), np.float32))
    assert (predictor.predict(np.ones((9, 3), np.float32)) == 2).all()


def test_answers_have_all_digits_where_the_processor_could_do_with_fewer(tmp_path: Path) -> None:
    predictor = predictor_of(saved(image_model(), tmp_path))
    assert predictor.compiled_model.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f32


def test_threads_are_those_the_process_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    predictor = predictor_of(saved(image_model(), tmp_path))
    assert predictor.compiled_model.get_property("INFERENCE_NUM_THREADS") == 1
    assert predictor.compiled_model.get_property("NUM_STREAMS") == 1
    assert predictor.compiled_model.get_property("ENABLE_CPU_PINNING") is (os.cpu_count() == 1)
    assert len(predictor.queue) >= 2  # one is filled while the other is computed
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads() == cores()


def test_config_is_passed_on_and_wrong_names_and_values_are_refused(tmp_path: Path) -> None:
    path = saved(image_model(), tmp_path)
    predictor = predictor_of(path, PERFORMANCE_HINT="LATENCY")
    assert str(predictor.compiled_model.get_property("PERFORMANCE_HINT")).endswith("LATENCY")
    assert check_config({ov.properties.num_streams: 1}) == {"NUM_STREAMS": 1}
    with pytest.raises(ArgumentError, match="no property 'NUM_STREAM' for the CPU. Did you mean 'NUM_STREAMS'"):
        check_config({"NUM_STREAM": 1})
    with pytest.raises(ArgumentError, match="config must be a dict"):
        check_config("LATENCY")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="cannot compile the model with config={'NUM_STREAMS': 'many'}"):
        predictor_of(path, NUM_STREAMS="many")


def test_nothing_is_reported_over_the_network(run_program: Callable[..., Any]) -> None:
    said = run_program(
        """
        import sys
        import orca.frameworks.openvino
        from openvino.tools.ovc import telemetry_utils
        print(telemetry_utils.tm.__name__, [name for name in sys.modules if name.startswith("openvino_telemetry")])
        """
    )
    assert said.stdout.split() == ["openvino.tools.ovc.telemetry_stub", "[]"]


# Files


def test_models_are_read_and_written_at_any_fsspec_path(tmp_path: Path) -> None:
    import fsspec

    saved(image_model(), tmp_path)
    fs = fsspec.filesystem("memory")
    for suffix in ("xml", "bin"):
        fs.pipe_file(f"/openvino/model.{suffix}", (tmp_path / f"model.{suffix}").read_bytes())
    assert close(predictor_of("memory://openvino/model.xml").predict(images(5)), answers(images(5)))


def onnx_file(path: Path, external: bool = False) -> str:
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["image"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["scores"])],
        "scores",
        [helper.make_tensor_value_info("image", kinds.FLOAT, ["n", 3, 2, 2])],
        [helper.make_tensor_value_info("scores", kinds.FLOAT, ["n", 3])],
        [onnx.numpy_helper.from_array(WEIGHTS, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, str(path), save_as_external_data=external, size_threshold=0, location="weights.data")
    return str(path)


@pytest.mark.parametrize("external", [False, True])
def test_onnx_files_are_read_with_weights_inside_or_beside_them(tmp_path: Path, external: bool) -> None:
    predictor = predictor_of(onnx_file(tmp_path / "model.onnx", external))
    assert [port.name for port in predictor.signature.inputs] == ["image"]
    assert close(predictor.predict(images(7)), answers(images(7)))


def test_missing_and_broken_files_are_told_apart(tmp_path: Path) -> None:
    path = saved(image_model(), tmp_path)
    weights = tmp_path / "model.bin"
    weights.write_bytes(weights.read_bytes()[:20])
    with pytest.raises(ArgumentError, match=r"model.xml cannot be read as an OpenVINO model: Incorrect weights"):
        OpenvinoSpec.of(path)
    weights.unlink()
    with pytest.raises(ArgumentError, match=r"the weights of .*model.xml are missing: there is no .*model.bin"):
        OpenvinoSpec.of(path)
    weights.touch()
    Path(path).write_text("<html>not found</html>")
    with pytest.raises(ArgumentError, match="model.xml cannot be read as an OpenVINO model: Unable to read"):
        OpenvinoSpec.of(path)
    (tmp_path / "model.onnx").write_bytes(b"no onnx")
    with pytest.raises(ArgumentError, match="model.onnx cannot be read as an ONNX model"):
        OpenvinoSpec.of(str(tmp_path / "model.onnx"))
    with pytest.raises(ArgumentError, match="there is no model file at .*none.xml. Check model_path"):
        OpenvinoSpec.of(str(tmp_path / "none.xml"))
    with pytest.raises(ArgumentError, match=r"an .xml file .* or an .onnx file; got '.*model.pb'"):
        OpenvinoSpec.of(str(tmp_path / "model.pb"))


def test_models_that_rows_cannot_be_fed_to_are_refused(tmp_path: Path) -> None:
    single = op.parameter([], name="x")
    with pytest.raises(ArgumentError, match="'x' of this model is a single number"):
        OpenvinoSpec.of(saved(named(ov.Model([op.relu(single)], [single]), ["y"]), tmp_path))
    half = op.parameter([-1, 2], ov.Type.bf16, name="x")
    with pytest.raises(ArgumentError, match="'x' of this model is of type bf16"):
        OpenvinoSpec.of(saved(named(ov.Model([op.relu(half)], [half]), ["y"]), tmp_path))
    a, b = op.parameter([2, 1], name="a"), op.parameter([1, 2], name="b")
    with pytest.raises(ArgumentError, match="must begin with the same batch dimension; got 'a' float32"):
        OpenvinoSpec.of(saved(named(ov.Model([op.add(a, b)], [a, b]), ["y"]), tmp_path))
    fixed = op.parameter([2, 2], name="x")
    model = ov.Model([op.reshape(fixed, np.array([2, 2, 1]), False)], [fixed])
    with pytest.raises(ArgumentError, match="cannot be given batch_size=3"):
        OpenvinoSpec.of(saved(model, tmp_path), 3)


# Converting


def check_conversion(model: Any, sample: Any, answer: Callable[..., Any], path: str) -> None:
    assert convert(model, sample, path) == path
    predictor = predictor_of(path)
    assert predictor.signature.batch is None
    draw = np.random.default_rng(2)
    for rows in (1, 2, 4, 9):
        shapes = [leaf.shape[1:] for leaf in (sample if isinstance(sample, tuple) else (sample,))]
        x = tuple(draw.normal(size=(rows, *shape)).astype(np.float32) for shape in shapes)
        expected = answer(*x)
        found = predictor.predict(x)
        for one, other in zip(*[v if isinstance(v, list | tuple) else [v] for v in (found, expected)], strict=True):
            assert one.dtype == np.float32
            assert np.abs(one - np.asarray(other)).max() < 1e-4


@pytest.mark.full
def test_torch_model_with_batch_norm_answers_alike(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
    model.append(nn.Linear(4 * 6 * 6, 5))
    model(torch.rand(16, 3, 8, 8) * 3)  # gives the batch norm something to remember
    model[0].eval()

    def answer(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model.eval()(torch.from_numpy(x)).numpy()

    convert(model, np.zeros((1, 3, 8, 8)), str(tmp_path / "doubles.xml"))  # floats of the model's precision
    assert [module.training for module in model.children()] == [False, True, True, True, True, True]
    check_conversion(model, np.zeros((1, 3, 8, 8), np.float32), answer, str(tmp_path / "model.xml"))


def test_torch_model_of_two_inputs_and_two_outputs_answers_alike(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(5, 3)

        def forward(self, second: Any, first: Any) -> Any:
            return self.layer(torch.cat([second, first], dim=1)), first.sum(dim=1, keepdim=True)

    model = Two()

    def answer(*x: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad():
            return [output.numpy() for output in model(*map(torch.from_numpy, x))]

    sample = (np.zeros((1, 2), np.float32), np.zeros((1, 3), np.float32))
    check_conversion(model, sample, answer, str(tmp_path / "model.xml"))


def test_names_of_inputs_are_kept_and_dicts_meet_them_by_name(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Named(torch.nn.Module):
        def forward(self, inputs: dict[str, Any]) -> Any:
            return inputs["a"] - 2 * inputs["b"]

    class Two(torch.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return a - 2 * b

    class Odd(torch.nn.Module):
        def forward(self, a: Any) -> Any:
            return torch.special.bessel_j0(a)

    a, b = np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((3, 2), np.float32)
    row = np.zeros((1, 2), np.float32)
    for model, sample in ((Named(), {"b": row, "a": row}), (Two(), (row, row))):
        predictor = predictor_of(convert(model, sample, str(tmp_path / "model.xml")))
        for x in ({"a": a, "b": b}, {"b": b, "a": a}):
            assert close(predictor.predict(x), a - 2 * b)
        for wrong in ({"a": a, "B": b}, {"a": a}, {"x": a, "b": b}):
            with pytest.raises(DataError, match=r"the model's inputs are called \['.', '.'\]; the data has \["):
                predictor.predict(wrong)
    with pytest.raises(ArgumentError, match=r"Named does not take the sample \(a tuple of 2\): .*in the form that"):
        convert(Named(), (row, row), str(tmp_path / "no.xml"))
    with pytest.raises(ArgumentError, match=r"cannot convert this Odd: .*operations: aten::special_bessel_j0\.$"):
        convert(Odd(), row, str(tmp_path / "no.xml"))


@pytest.mark.full
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_keras_models_answer_alike(tmp_path: Path, library: str) -> None:
    pytest.importorskip("tensorflow")
    keras = pytest.importorskip(library)
    layers = keras.layers
    image = keras.Input((8, 8, 3))
    hidden = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3)(image)))
    network = keras.Model(image, layers.Dense(5)(layers.Dropout(0.5)(layers.Flatten()(hidden))))
    network(np.random.default_rng(0).random((16, 8, 8, 3), np.float32) * 3, training=True)
    sample = np.zeros((1, 8, 8, 3), np.float32)
    check_conversion(network, sample, lambda x: network(x, training=False), str(tmp_path / "network.xml"))

    second, first = keras.Input((2,), name="second"), keras.Input((3,), name="first")
    both = layers.Concatenate()([second, first])
    # Names in the reverse order of the outputs: a converter that sorts them would be found out.
    two = keras.Model([second, first], [layers.Dense(3, name="z")(both), layers.Dense(3, name="a")(both)])
    check_conversion(
        two, (sample[:, 0, 0, :2], sample[:, 0, 0, :3]), lambda *x: two(list(x)), str(tmp_path / "two.xml")
    )


def test_conversion_leaves_the_programs_logging_alone(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    root = logging.getLogger()
    before = (root.level, list(root.filters), list(root.handlers))
    convert(torch.nn.Linear(3, 2), np.zeros((1, 3), np.float32), str(tmp_path / "m.xml"))
    assert (root.level, list(root.filters), list(root.handlers)) == before


def test_conversion_writes_both_files_or_nothing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import fsspec

    sample = np.zeros((1, 3), np.float32)
    assert convert(torch.nn.Linear(3, 2), sample, str(tmp_path / "new" / "m")) == str(tmp_path / "new" / "m.xml")
    assert sorted(os.listdir(tmp_path / "new")) == ["m.bin", "m.xml"]
    assert convert(torch.nn.Linear(3, 2), sample, "memory://converted/m.xml") == "memory://converted/m.xml"
    assert fsspec.filesystem("memory").isfile("/converted/m.bin")

    class Fixed(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.reshape(1, -1)

    class Drawn(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + torch.rand_like(x)

    class Broken(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise TypeError("no such thing")

    for model in (Fixed(), Drawn()):
        with pytest.raises(ArgumentError, match="the converted model does not answer as the model does|one answer for"):
            convert(model, sample, str(tmp_path / "new" / "wrong.xml"))
    with pytest.raises(
        ArgumentError, match=r"this Broken does not take the sample \(an array of shape .*TypeError: no such thing"
    ):
        convert(Broken(), sample, str(tmp_path / "new" / "wrong.xml"))
    with pytest.raises(ArgumentError, match="only torch modules and Keras models can be converted; got a str"):
        convert("model", sample, str(tmp_path / "new" / "wrong.xml"))
    with pytest.raises(ArgumentError, match="sample must be one row"):
        convert(torch.nn.Linear(3, 2), np.zeros((2, 3)), str(tmp_path / "new" / "wrong.xml"))
    assert sorted(os.listdir(tmp_path / "new")) == ["m.bin", "m.xml"]


def test_a_failed_write_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    sample = np.zeros((1, 3), np.float32)
    path = convert(torch.nn.Linear(3, 2), sample, str(tmp_path / "m.xml"))
    before = [(tmp_path / name).read_bytes() for name in ("m.bin", "m.xml")]

    def full(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(ours.os, "replace", full)
    with pytest.raises(OSError, match="the disk is full"):
        convert(torch.nn.Linear(3, 2), sample, path)
    assert sorted(os.listdir(tmp_path)) == ["m.bin", "m.xml"]
    assert [(tmp_path / name).read_bytes() for name in ("m.bin", "m.xml")] == before
