from __future__ import annotations

import copy
import io
import json
import os
import pickle
import shutil
import warnings
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR

from orca.core.state import OutputSpec, State
from orca.errors import ArgumentError
from orca.frameworks.torch.files import load_file, save_file, save_module


def trained(lr: float = 0.01) -> State:
    """Return a state as a fit leaves it: Adam with two groups, betas of their own and a step behind it."""
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    groups: list[dict[str, Any]] = [
        {"params": list(net[0].parameters()), "lr": 0.5},
        {"params": [*net[1].parameters(), *net[2].parameters()], "betas": (0.7, 0.8), "weight_decay": 0.1},
    ]
    adam = torch.optim.Adam(groups, lr=lr, amsgrad=True)
    net(torch.randn(4, 3)).sum().backward()
    adam.step()
    payload = {"models": [dict(net.state_dict())], "optimizers": [adam.state_dict()], "schedulers": []}
    return State(
        epoch=3,
        steps=17,
        payload=payload,
        output=OutputSpec((("float32", (1,)), ("int64", ())), ("tuple", (), (None, None))),
    )


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda sgd: schedules.LambdaLR(sgd, [lambda epoch: 0.9**epoch, Halved(4)]),
    "MultiplicativeLR": lambda sgd: schedules.MultiplicativeLR(sgd, lambda epoch: 0.9),
    "StepLR": lambda sgd: schedules.StepLR(sgd, 2),
    "MultiStepLR": lambda sgd: schedules.MultiStepLR(sgd, [2, 4, 4, 6]),
    "MultiStepLR of numpy": lambda sgd: schedules.MultiStepLR(sgd, list(np.array([2, 4, 4, 6])), gamma=np.float64(0.5)),
    "ConstantLR": lambda sgd: schedules.ConstantLR(sgd, 0.5, 6),
    "LinearLR": lambda sgd: schedules.LinearLR(sgd, 0.1, total_iters=6),
    "ExponentialLR": lambda sgd: schedules.ExponentialLR(sgd, 0.9),
    "SequentialLR": lambda sgd: schedules.SequentialLR(
        sgd, [schedules.ConstantLR(sgd, 0.5, 2), schedules.MultiStepLR(sgd, [2, 3])], [2]
    ),
    "CosineAnnealingLR": lambda sgd: schedules.CosineAnnealingLR(sgd, 8, eta_min=np.float32(0.01)),
    "ChainedScheduler": lambda sgd: schedules.ChainedScheduler(
        [schedules.LinearLR(sgd, 0.1, total_iters=6), schedules.ExponentialLR(sgd, 0.9)]
    ),
    "ReduceLROnPlateau": lambda sgd: schedules.ReduceLROnPlateau(sgd, patience=1),
    "CyclicLR": lambda sgd: schedules.CyclicLR(sgd, 0.1, 1.0, step_size_up=2, scale_fn=Halved(3)),
    "CosineAnnealingWarmRestarts": lambda sgd: schedules.CosineAnnealingWarmRestarts(sgd, 2, 2),
    "OneCycleLR": lambda sgd: schedules.OneCycleLR(sgd, [0.5, 1.0], total_steps=12, three_phase=True),
    "PolynomialLR": lambda sgd: schedules.PolynomialLR(sgd, 8, 2.0),
    "SWALR": lambda sgd: SWALR(sgd, 0.01, anneal_epochs=20),
}


class Halved:
    """A schedule with a state of its own."""

    def __init__(self, every: int) -> None:
        self.every = every

    def __call__(self, step: float) -> float:
        return float(0.5 ** (step // self.every))


def with_scheduler(name: str) -> tuple[torch.optim.Optimizer, Any]:
    groups = [{"params": [nn.Parameter(torch.zeros(2))], "lr": lr} for lr in (0.1, 0.3)]
    sgd = torch.optim.SGD(groups, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of schedulers that are made one after the other
        return sgd, SCHEDULERS[name](sgd)


def advance(sgd: torch.optim.Optimizer, scheduler: Any, losses: Sequence[float]) -> list[list[float]]:
    """Return the learning rates of some steps."""
    rates = []
    for loss in losses:
        sgd.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step(*((loss,) if isinstance(scheduler, schedules.ReduceLROnPlateau) else ()))
        rates.append([float(group["lr"]) for group in sgd.param_groups])
    return rates


def same(one: Any, other: Any) -> bool:
    """Say whether two trees are equal in every value and every type."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)
    if isinstance(one, defaultdict) and one.default_factory is not other.default_factory:
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def by_name(state: State) -> list[dict[str, torch.Tensor]]:
    return [dict(sorted(model.items())) for model in state.payload["models"]]


@pytest.mark.parametrize("name", ["model", "model.pt", "model.ckpt", "deep/er/model", "deep/er/model.pth"])
def test_weights_and_optimizer_come_back_exactly(tmp_path: Path, name: str) -> None:
    state = trained()
    save_file(state, str(tmp_path / name))
    loaded, module = load_file(str(tmp_path / name))
    assert module is None
    assert (loaded.epoch, loaded.steps) == (3, 17)
    assert same(by_name(loaded), by_name(state))
    assert same(loaded.payload["optimizers"], state.payload["optimizers"])
    groups = loaded.payload["optimizers"][0]["param_groups"]
    assert groups[1]["betas"] == (0.7, 0.8) and isinstance(groups[1]["betas"], tuple)
    assert [group["lr"] for group in groups] == [0.5, 0.01]
    assert loaded.payload["schedulers"] == []


def test_a_folder_holds_safetensors_and_json_alone(tmp_path: Path) -> None:
    state = trained()
    save_file(state, str(tmp_path / "model"))
    assert sorted(os.listdir(tmp_path / "model")) == ["optimizer.safetensors", "state.json", "weights.safetensors"]
    assert json.loads((tmp_path / "model" / "state.json").read_text())["epoch"] == 3
    assert load_file(str(tmp_path / "model"))[0].output == state.output
    assert os.listdir(tmp_path) == ["model"]  # no draft


@pytest.mark.parametrize("name", ["model", "model.pt"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler_goes_on_where_it_was_saved(tmp_path: Path, name: str, scheduler: str) -> None:
    sgd, unbroken = with_scheduler(scheduler)
    advance(sgd, unbroken, [3.0, 2.0, 2.0])
    payload = {"models": [{}], "optimizers": [sgd.state_dict()], "schedulers": [unbroken.state_dict()]}
    save_file(State(payload=payload), str(tmp_path / name))
    loaded, _ = load_file(str(tmp_path / name))
    results, saved = loaded.payload["schedulers"][0], unbroken.state_dict()
    if scheduler == "MultiStepLR of numpy":  # numbers of numpy as keys come back as equal ones of Python
        results.pop("milestones"), saved.pop("milestones")
    assert same(results, saved)
    other, resumed = with_scheduler(scheduler)
    other.load_state_dict(loaded.payload["optimizers"][0])
    resumed.load_state_dict(load_file(str(tmp_path / name))[0].payload["schedulers"][0])
    losses = [2.0, 2.0, 2.0, 1.0, 2.0, 2.0]
    rates = advance(other, resumed, losses)
    assert rates == advance(sgd, unbroken, losses)
    assert len({tuple(rate) for rate in rates}) > 1  # something to go on with


def test_every_scheduler_of_torch_is_tested() -> None:
    classes = {name for name in schedules.__all__ if name != "LRScheduler"}
    assert classes <= set(SCHEDULERS)


@pytest.mark.parametrize("name", ["model", "model.pt", "memory"])
def test_all_parts_of_a_state_come_back(tmp_path: Path, name: str) -> None:
    """Averages, the scaler of mixed precision, an operator's own things, and where the fit was interrupted."""
    operator = {
        "custom": [np.float32(0.1), np.int64(7), np.bool_(True), np.float64("nan").item() != 0, np.complex64(1 + 2j)],
        "arrays": (np.arange(6, dtype="uint16").reshape(2, 3).T, np.array(2.5), np.zeros((0, 3))),
        "counts": Counter({"a": 2, 3: 1}),
        "groups": defaultdict(list, {(1, "x"): [1.0, {2: None}]}),
        "none": defaultdict(None, {1: 2}),
        "ordered": OrderedDict(b=1, a={"deep": np.float16(0.5)}),
        "last": deque([1, np.float32(2)], maxlen=3),
        "sets": [{1, 2}, frozenset({"a"}), set()],
        "bytes": b"\x00\xff",
        "numbers": [float("inf"), -float("inf"), 2**70, 1e-300, 3 - 4j, True, None, "text"],
        "random": torch.get_rng_state(),
        "half": torch.ones(2, dtype=torch.bfloat16),
    }
    scaler = {
        "scale": 65536.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 4,
    }
    state = trained()
    state.payload |= {
        "averages": [{key: value * 0.5 for key, value in state.payload["models"][0].items()}],
        "scaler": scaler,
        "operator": operator,
    }
    state.position = {"epoch": 2, "step": 5, "ranks": [{"seed": 1}, {"seed": 2}], "rate": 0.5, "kind": "rows"}
    before = copy.deepcopy(operator)
    path = "memory://orca-tests/parts" if name == "memory" else str(tmp_path / name)
    save_file(state, path)
    assert same(operator, before)
    try:
        loaded, _ = load_file(path)
    finally:
        if name == "memory":
            fsspec.filesystem("memory").rm("/orca-tests", recursive=True)
    assert loaded.position == state.position
    assert set(loaded.payload) == set(state.payload)
    for part in ("averages", "scaler", "operator", "optimizers", "schedulers"):
        assert same(loaded.payload[part], state.payload[part]), part


def test_a_torch_file_can_be_read_without_orca(tmp_path: Path) -> None:
    scheduler = with_scheduler("MultiStepLR")[1]
    averages = [nn.BatchNorm1d(2).state_dict()]
    payload = {"models": [{}], "optimizers": [], "schedulers": [scheduler.state_dict()], "averages": averages}
    save_file(State(epoch=2, steps=9, payload=payload), str(tmp_path / "model.pt"))
    found = torch.load(tmp_path / "model.pt", weights_only=True)
    assert set(found) == {"epoch", "steps", "position", "models", "optimizers", "schedulers", "averages"}
    assert same(found["schedulers"][0]["milestones"], Counter({2: 1, 4: 2, 6: 1}))
    assert found["averages"][0]._metadata == averages[0]._metadata


def test_older_saves_are_loaded(tmp_path: Path) -> None:
    """As they were written before a state had a position and more parts."""
    torch.save({"epoch": 2, "models": [{"w": torch.ones(2)}]}, tmp_path / "old.pt")
    loaded, _ = load_file(str(tmp_path / "old.pt"))
    assert (loaded.epoch, loaded.steps, loaded.position) == (2, 0, None)
    assert same(loaded.payload, {"optimizers": [], "schedulers": [], "models": [{"w": torch.ones(2)}]})


def test_a_value_of_a_newer_version_is_named(tmp_path: Path) -> None:
    save_file(State(payload={"models": [{}], "operator": {1, 2}}), str(tmp_path / "model"))
    about = tmp_path / "model" / "state.json"
    text = about.read_text().replace('"set"', '"bag"')
    fields = {name: value for name, value in json.loads(text).items() if name != "checksum"}
    about.write_text(json.dumps({"checksum": zlib.crc32(json.dumps(fields).encode()), **fields}))
    with pytest.raises(ArgumentError, match="holds a value of the kind 'bag'. Load it with the orca that saved it"):
        load_file(str(tmp_path / "model"))


def test_a_safetensors_file_holds_the_weights_alone(tmp_path: Path) -> None:
    from safetensors.torch import load_file as load_tensors

    state, path = trained(), str(tmp_path / "model.safetensors")
    save_file(state, path)
    assert same(dict(sorted(load_tensors(path).items())), by_name(state)[0])
    loaded, _ = load_file(path)
    assert same(by_name(loaded), by_name(state))
    assert loaded.payload["optimizers"] == []


def test_weights_in_any_memory_order_are_saved(tmp_path: Path) -> None:
    turned = torch.arange(6.0).reshape(2, 3).t()
    for name in ("folder", "file.safetensors", "file.pt"):
        save_file(State(payload={"models": [{"w": turned}], "optimizers": []}), str(tmp_path / name))
        assert torch.equal(load_file(str(tmp_path / name))[0].payload["models"][0]["w"], turned)


def test_tied_weights_are_saved(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    torch.save(net.state_dict(), tmp_path / "tied.pt")
    state, _ = load_file(str(tmp_path / "tied.pt"))
    for name in ("folder", "file.safetensors", "file.pt"):
        save_file(state, str(tmp_path / name))
        (weights,) = load_file(str(tmp_path / name))[0].payload["models"]
        assert torch.equal(weights["0.weight"], net[0].weight)
        assert torch.equal(weights["1.weight"], net[0].weight)


def test_a_state_dict_of_plain_torch_is_loaded(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        torch.save(net.state_dict(), tmp_path / "plain.pt", **options)
        loaded, module = load_file(str(tmp_path / "plain.pt"))
        assert module is None
        assert same(by_name(loaded), [dict(sorted(net.state_dict().items()))])
        assert loaded.payload["optimizers"] == []


def test_an_entire_module_is_loaded_only_when_trusted(tmp_path: Path) -> None:
    net, path = nn.Linear(3, 2), str(tmp_path / "entire.pt")
    save_module(net, path)
    with pytest.raises(
        ArgumentError, match=r"holds more than tensors.*If you trust it, call load\(path, weights_only=Fa"
    ):
        load_file(path)
    state, module = load_file(path, weights_only=False)
    assert isinstance(module, nn.Linear)
    assert torch.equal(module.weight, net.weight)
    assert torch.equal(state.payload["models"][0]["weight"], net.weight)


def test_a_module_whose_class_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "entire.pt")
    save_module(nn.Linear(3, 2), path)
    monkeypatch.delattr(nn.modules.linear, "Linear")
    with pytest.raises(ArgumentError, match="entire.pt holds a whole pickled module, .*Linear"):
        load_file(path, weights_only=False)


class Malice:
    """Create a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_code_in_a_file_is_never_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    buffer = io.BytesIO()
    torch.save({"weight": torch.zeros(1), "evil": Malice(trace)}, buffer)
    contents = [
        buffer.getvalue(),
        *(pickle.dumps(Malice(trace), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)),
    ]
    for number, content in enumerate(contents):
        for name in ("evil.pt", "evil", "evil.safetensors"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ArgumentError, match="holds more than tensors|cannot be read"):
                load_file(str(tmp_path / name))
            assert not trace.exists(), (number, name)
    folder = tmp_path / "folder"
    save_file(trained(), str(folder))
    for name in os.listdir(folder):
        broken = tmp_path / f"broken-{name}"
        shutil.copytree(folder, broken)
        (broken / name).write_bytes(contents[1])
        with pytest.raises(ArgumentError, match="not complete|cannot be read"):
            load_file(str(broken))
        assert not trace.exists(), name
    pickle.loads(contents[1])  # the trap is a real one: trusted, it springs
    assert trace.exists()


def test_a_whole_module_whose_class_is_not_defined_here_asks_for_it(tmp_path: Path, run_program: Any) -> None:
    path = tmp_path / "whole.pt"
    program = f"""
        import torch

        class Net(torch.nn.Linear):
            pass

        torch.save(Net(2, 1), {str(path)!r})
    """
    run_program(program)
    with pytest.raises(ArgumentError, match="holds a whole pickled module, .*'Net'.*Define or import the class"):
        load_file(str(path), weights_only=False)


def test_a_path_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="there is no saved model at .*nowhere.pt. Check the path"):
        load_file(str(tmp_path / "nowhere.pt"))
    with pytest.raises(ArgumentError, match="holds no saved model: there is no state.json in it"):
        load_file(str(tmp_path))


@pytest.mark.parametrize(
    "content", [b"", b"just some words", b'{"a": 1}', bytes(300), b"\x80\x02}q\x00", b"PK\x03\x04 a zip"]
)
@pytest.mark.parametrize("name", ["file.pt", "file.safetensors"])
def test_a_file_of_another_kind_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArgumentError, match=f"{name} cannot be read as .*Is it complete"):
        load_file(str(tmp_path / name))


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    for name in ("model.pt", "model.safetensors"):
        save_file(trained(), str(tmp_path / name))
        content = (tmp_path / name).read_bytes()
        for length in (20, len(content) // 2, len(content) - 20):
            (tmp_path / name).write_bytes(content[:length])
            with pytest.raises(ArgumentError, match=f"{name} cannot be read as .*Is it complete"):
                load_file(str(tmp_path / name))


def test_a_file_without_weights_is_named(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ArgumentError, match=r"list.pt holds a list, not a model's weights. Was it written by save\(\)"):
        load_file(str(tmp_path / "list.pt"))


def test_an_incomplete_folder_is_named(tmp_path: Path) -> None:
    for name in ("weights.safetensors", "optimizer.safetensors"):
        save_file(trained(), str(tmp_path / "model"))
        (tmp_path / "model" / name).unlink()
        with pytest.raises(ArgumentError, match="the model at .*model is damaged or not complete"):
            load_file(str(tmp_path / "model"))


def test_what_a_folder_cannot_hold_is_named(tmp_path: Path) -> None:
    state = State(payload={"models": [{}], "optimizers": [{"when": object()}]})
    with pytest.raises(ArgumentError, match="a object in it cannot be written as arrays and JSON. Leave it out; .*.pt"):
        save_file(state, str(tmp_path / "model"))
    state = State(payload={"models": [{"w": torch.zeros(2, dtype=torch.complex128)}]})
    for name in ("model", "model.safetensors"):
        with pytest.raises(ArgumentError, match="a tensor of type torch.complex128 cannot be written as safetensors"):
            save_file(state, str(tmp_path / name))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["model", "model.pt", "model.safetensors"])
def test_a_new_save_replaces_the_old(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    save_file(trained(), path)
    newer = trained()
    save_file(newer, path)
    assert same(by_name(load_file(path)[0]), by_name(newer))
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ["model", "model.pt"])
@pytest.mark.parametrize("moment", ["writing", "replacing"])
def test_a_save_that_fails_keeps_the_old(
    tmp_path: Path, name: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, old = str(tmp_path / name), trained()
    save_file(old, path)
    local = type(fsspec.filesystem("file"))
    write, replace, calls = local.pipe_file, os.replace, []

    def full_disk(fs: Any, spot: str, data: bytes, **more: Any) -> None:
        calls.append(spot)
        write(fs, spot, data[: len(data) // 2], **more)
        if spot.endswith("state.json") or name.endswith(".pt"):
            raise OSError("No space left on device")

    def refused(source: str, target: str) -> None:
        calls.append(source)
        if ".draft-" in source:
            raise OSError("No space left on device")
        replace(source, target)

    if moment == "writing":
        monkeypatch.setattr(local, "pipe_file", full_disk)
    else:
        monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(OSError, match="No space left"):
        save_file(trained(), path)
    monkeypatch.undo()
    assert calls
    assert same(by_name(load_file(path)[0]), by_name(old))
    assert os.listdir(tmp_path) == [name]


def test_a_folder_with_other_things_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for name in ("", "/"):
        with pytest.raises(
            ArgumentError, match="holds other things than a saved model, 'thesis.tex'.*a folder of its own"
        ):
            save_file(trained(), f"{tmp_path}{name}")
    folder = tmp_path / "notes.pt"
    folder.mkdir()
    (folder / "note").write_text("x")
    with pytest.raises(ArgumentError, match="holds other things than a saved model, 'note'"):
        save_file(trained(), str(folder))
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert sorted(os.listdir(tmp_path)) == ["notes.pt", "thesis.tex"]


def test_an_empty_folder_and_a_file_may_be_replaced(tmp_path: Path) -> None:
    for place in (tmp_path / "folder", tmp_path / "file"):
        place.mkdir() if place.name == "folder" else place.write_text("an old model")
        save_file(trained(), str(place))
        assert load_file(str(place))[0].epoch == 3


@pytest.mark.parametrize("name", ["model", "model.pt", "model.safetensors"])
def test_any_filesystem_will_do(name: str) -> None:
    path, state = f"memory://orca-tests/{name}", trained()
    try:
        save_file(trained(), path)
        save_file(state, path)
        assert same(by_name(load_file(path)[0]), by_name(state))
        with pytest.raises(ArgumentError, match="there is no saved model at memory://orca-tests/other"):
            load_file("memory://orca-tests/other")
    finally:
        fsspec.filesystem("memory").rm("/orca-tests", recursive=True)
