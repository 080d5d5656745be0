"""The folder of a state: what comes back, and what is said where it is broken."""

from __future__ import annotations

import json
import os
import re
from collections import Counter, OrderedDict, defaultdict, deque
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from orca.core.state import OutputSpec, State  # noqa: E402
from orca.errors import ArgumentError  # noqa: E402
from orca.storage.states import is_state, load_state, save_state  # noqa: E402


def loaded(payload: Any, path: Path) -> Any:
    save_state(State(payload=payload), str(path), "some")
    return load_state(str(path), "some").payload


def test_arrays_of_every_type_come_back(tmp_path: Path) -> None:
    arrays = [
        np.arange(6, dtype="float16").reshape(2, 3),
        np.array(1.5),
        np.array([1.5, 2.0], ml_dtypes.bfloat16),
        np.array([1.5, 2.0], ml_dtypes.float8_e4m3fn),
        np.array([1, 2**16 - 1], "uint16"),
        np.array([2**64 - 1], "uint64"),
        np.array([True, False]),
        np.zeros((0, 2), "int8"),
        np.arange(6.0)[::-2],
    ]
    payload = loaded({"models": [arrays, []], "optimizers": []}, tmp_path / "state")
    assert payload["models"][1] == [] == payload["optimizers"]
    for before, after in zip(arrays, payload["models"][0], strict=True):
        assert (before.dtype, before.shape) == (after.dtype, after.shape)
        assert before.tobytes() == after.tobytes()


def test_arrays_of_the_other_byte_order_keep_their_values(tmp_path: Path) -> None:
    arrays = [np.array([1, 256], kind) for kind in (">u2", ">f4", ">i8")]
    for before, after in zip(arrays, loaded({"models": [arrays]}, tmp_path / "state")["models"][0], strict=True):
        assert after.dtype == before.dtype.newbyteorder("=")
        assert after.tolist() == before.tolist()


def test_one_number_of_a_type_that_numpy_lacks_comes_back(tmp_path: Path) -> None:
    number = loaded({"models": [], "callbacks": ml_dtypes.bfloat16(1.5)}, tmp_path / "state")["callbacks"]
    assert (type(number), number) == (ml_dtypes.bfloat16, 1.5)


def test_conjugates_come_back(tmp_path: Path) -> None:
    weight = torch.tensor([1 + 2j]).conj()
    assert torch.equal(loaded({"models": [{"w": weight}]}, tmp_path / "state")["models"][0]["w"], weight)


@pytest.mark.parametrize(
    "value",
    [torch.eye(2).to_sparse(), torch.ones(1, device="meta"), np.ma.array([1, 2], mask=[0, 1]), np.array([b"a"], "V1")],
)
def test_kinds_that_would_lose_something_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ArgumentError, match="cannot be written"):
        save_state(State(payload={"models": [], "optimizers": value}), str(tmp_path / "state"), "some")
    assert not os.listdir(tmp_path)


def test_tensors_and_plain_values_come_back(tmp_path: Path) -> None:
    weights = {"w": torch.ones(2, 3, dtype=torch.bfloat16), "0/w": torch.zeros(2)}
    rest = {
        "optimizers": [{"state": {0: torch.arange(3)}, "betas": (0.7, float("inf")), (1, "a"): None}],
        "callbacks": {
            "several": [Counter("aab"), deque([1], 3), {1, 2}, b"\x00", 1j, frozenset("a"), np.float32(0.1)],
            "count": defaultdict(int, a=1),
            "order": OrderedDict(b=1, a=2),
        },
    }
    payload = loaded({"models": [weights], **rest}, tmp_path / "state")
    assert payload["models"][0].keys() == weights.keys()
    assert all(torch.equal(payload["models"][0][name], weight) for name, weight in weights.items())
    assert torch.equal(payload["optimizers"][0]["state"].pop(0), rest["optimizers"][0]["state"].pop(0))  # type: ignore[index]
    assert {name: value for name, value in payload.items() if name != "models"} == rest
    assert list(payload["callbacks"]["order"]) == ["b", "a"] and type(payload["callbacks"]["several"][-1]) is np.float32


class Weekday(IntEnum):
    """A number with a name."""

    MONDAY = 1


class Pair(NamedTuple):
    """A tuple with names."""

    one: Any
    other: Any


def test_derived_kinds_come_back_as_what_they_are_derived_from(tmp_path: Path) -> None:
    pair = Pair(torch.ones(1), np.float64(2.0))
    kept = [torch.Size([2, 3]), pair, Weekday.MONDAY, torch.__version__, defaultdict(lambda: 0, a=1)]
    size, tensors, *rest = loaded({"models": [], "callbacks": kept}, tmp_path / "state")["callbacks"]
    assert (size, type(size), type(tensors)) == ((2, 3), tuple, tuple)
    assert tensors[0].tolist() == [1.0] and type(tensors[1]) is np.float64
    assert rest == [1, str(torch.__version__), {"a": 1}] and type(rest[0]) is int


def test_names_of_arrays_that_would_be_the_same_are_kept_apart(tmp_path: Path) -> None:
    weights = [{"0/w": torch.ones(1), "0": {"w": torch.zeros(1)}}]
    ((first, second),) = (each.values() for each in loaded({"models": weights}, tmp_path / "state")["models"])
    assert (first.item(), second["w"].item()) == (1.0, 0.0)


def test_the_rest_of_a_state_comes_back(tmp_path: Path) -> None:
    output = OutputSpec((("float32", (1,)),), ("tuple", (), (None, None)))
    state = State(3, 17, {"models": []}, output, OutputSpec((("int64", ()),)), {"step": 5, "rows": [1, 2]})
    path = str(tmp_path / "state")
    assert not is_state(path)
    save_state(State(), path, "some")
    save_state(state, path, "some")  # in place of the other
    assert is_state(path) and load_state(path, "some") == state
    assert sorted(os.listdir(path)) == ["optimizer.safetensors", "state.json", "weights.safetensors"]


def test_arrays_may_stay_in_their_files(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    save_state(State(payload={"models": [{"w": torch.arange(5.0)}]}), path, "some")
    assert torch.equal(load_state(path, "some", mapped=True).payload["models"][0]["w"], torch.arange(5.0))


def test_what_cannot_be_written_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    for value, name in ((object(), "object"), (np.array(["a"]), "ndarray"), (lambda: 0, "function")):
        with pytest.raises(ArgumentError, match=f"a {name} in it cannot be written as arrays and JSON. Leave it out"):
            save_state(State(payload={"models": [], "operator": value}), str(tmp_path / "state"), "some")
    assert os.listdir(tmp_path) == []


def test_a_broken_state_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "state"

    def refused(words: str) -> None:
        with pytest.raises(ArgumentError, match=words):
            load_state(str(path), "some")

    refused("there is no saved model at .*state. Check the path")
    path.mkdir()
    refused("holds no saved model: there is no state.json in it")
    path.rmdir()
    save_state(State(payload={"models": [{"w": torch.ones(30)}], "operator": {1, 2}}), str(path), "some")
    about, weights = (path / "state.json").read_text(), (path / "weights.safetensors").read_bytes()
    (path / "weights.safetensors").write_bytes(weights[:40])
    refused("cannot be read as safetensors: .*Is it complete")
    (path / "weights.safetensors").unlink()
    refused("damaged or not complete: FileNotFoundError.*Save it again")
    (path / "weights.safetensors").write_bytes(weights[:-1] + b"!")
    refused("weights.safetensors is damaged: its content is not what was written")
    (path / "weights.safetensors").write_bytes(weights)
    (path / "state.json").write_text(about.replace('"some"', '"same"'))
    refused("state.json is damaged: its content is not what was written")
    about = re.sub(r'"checksum": \d+, ', "", about)  # as older states are
    for changed, words in (
        (about.replace('"0/w"', '"0/v"'), "damaged or not complete: KeyError"),
        (about[:20], "damaged or not complete: JSONDecodeError"),
        (json.dumps({"format": 1}), "was saved in format 1. Load it with the orca that saved it"),
        (about.replace('"some"', '"other"'), "holds a model of other, not of some. Load it with the Estimator that"),
        (about.replace('"set"', '"bag"'), "holds a value of the kind 'bag'. Load it with the orca that saved it"),
    ):
        (path / "state.json").write_text(changed)
        refused(words)


def deep(levels: int) -> str:
    return '{"tuple": [' * levels + "]}" * levels


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"epoch": 3', '"epoch": "3"'),
        ('"epoch": 3', '"epoch": -1'),
        ('"epoch": 3', '"epoch": 1e400'),
        ('"steps": 17', '"steps": true'),
        ('"steps": 17', '"steps": 1' + "0" * 400),
        ('"steps": 17', '"steps": null'),
        ('["float32", [1]]', '["float32", [1000000000000000]]'),
        ('["float32", [1]]', '["float32", [-1]]'),
        ('["float32", [1]]', '["nothing", [1]]'),
        ('["float32", [1]]', '["float32", 1.5]'),
        ('"lr": 0.5', f'"lr": {deep(100_000)}'),
        ('"lr": 0.5', '"lr": {"numpy": ["<i4", 1' + "0" * 60 + "]}"),
        ('"lr": 0.5', '"lr": {"defaultdict": ["open", []]}'),
        ('"lr": 0.5', '"lr": {"deque": [[], 1e300]}'),
        ('"lr": 0.5', '"lr": {"array": ["float32", 1]}'),
        ('"lr": 0.5', '"lr": {"set": [[[]]]}'),
        ('"lr": 0.5', '"lr": {}'),
    ],
)
def test_nonsense_in_a_state_is_an_error_that_names_it(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "state"
    state = State(3, 17, {"models": [], "lr": 0.5}, OutputSpec((("float32", (1,)),)))
    save_state(state, str(path), "some")
    about = re.sub(r'"checksum": \d+, ', "", (path / "state.json").read_text())
    before = before.replace('"lr": ', '"lr", ') if before not in about else before
    assert before in about, about
    (path / "state.json").write_text(about.replace(before, after))
    with pytest.raises(ArgumentError, match=f"{path} is damaged or not complete: .*Save it again"):
        load_state(str(path), "some")
