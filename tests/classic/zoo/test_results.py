"""Numbers of fits and evaluations, read as tensors."""

from __future__ import annotations

import json
import pickle

import numpy as np

from orca_classic.zoo.results import Result, as_results


def test_number_is_read_as_a_float_and_as_a_tensor() -> None:
    number = Result(0.75)
    assert number.data.item() == number.item() == number.detach().cpu().numpy() == 0.75
    assert type(number.item()) is float and number.numpy().shape == () and number.numpy().dtype == np.float32
    assert json.dumps(number) == "0.75" and f"{number:.1f}" == "0.8" and round(number, 1) == 0.8
    assert type(pickle.loads(pickle.dumps(number))) is Result


def test_floats_in_statistics_become_results_and_all_else_stays() -> None:
    curve = ([0.0, 1.0], [0.5])
    (line,) = as_results([{"Accuracy": 0.5, "num_samples": 4, "ROC": curve, "profile": {"mean_fwd_s": 0.1}}])
    assert line["Accuracy"].data.item() == 0.5 and line["profile"]["mean_fwd_s"].item() == 0.1
    assert type(line["num_samples"]) is int and line["ROC"] is curve
