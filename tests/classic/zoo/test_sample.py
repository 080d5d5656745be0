"""Rows as BigDL programs hold them, and BigDL's random numbers."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from orca.errors import ArgumentError
from orca_classic.zoo.sample import RNG, EvaluatedResult, JTensor, Sample


def test_jtensor_is_float32_storage_and_a_shape() -> None:
    array = np.arange(6).reshape(2, 3)
    tensor = JTensor.from_ndarray(array)
    assert tensor.storage.tolist() == [0, 1, 2, 3, 4, 5] and tensor.shape.tolist() == [2, 3]
    assert tensor.storage.dtype == tensor.to_ndarray().dtype == np.float32
    np.testing.assert_array_equal(tensor.to_ndarray(), array)
    assert JTensor.from_ndarray(None) is None
    assert tensor == pickle.loads(pickle.dumps(tensor)) and tensor != JTensor.from_ndarray(array.ravel())


def test_sparse_jtensor_becomes_a_dense_array() -> None:
    tensor = JTensor.sparse(np.array([1, 2]), np.array([[0, 1], [2, 0]]), np.array([2, 3]))
    np.testing.assert_array_equal(tensor.to_ndarray(), [[0, 0, 1], [2, 0, 0]])
    assert JTensor.sparse([3], [1], [4]).to_ndarray().tolist() == [0, 3, 0, 0]


def test_jtensor_refuses_storage_of_another_shape() -> None:
    with pytest.raises(ArgumentError, match=r"shape \(2, 2\) holds 4 values; got 3"):
        JTensor([1, 2, 3], [2, 2])
    with pytest.raises(ArgumentError, match=r"one array a dimension.*\(2, 1\); got \(1, 1\)"):
        JTensor.sparse([1], [0], [2, 2])
    with pytest.raises(ArgumentError, match="JTensor.from_ndarray must be an array or a number; got str 'cat'"):
        JTensor.from_ndarray("cat")


def test_sample_holds_one_or_several_tensors() -> None:
    sample = Sample.from_ndarray(np.ones((2, 3)), 4)
    assert sample.feature.to_ndarray().shape == (2, 3)
    assert sample.label.to_ndarray().tolist() == [4]
    several = Sample.from_ndarray([np.zeros(2), np.ones(3)], [np.array(1.0), 2])
    assert [tensor.shape.tolist() for tensor in several.features] == [[2], [3]]
    assert [tensor.storage.tolist() for tensor in several.labels] == [[1], [2]]
    assert several == Sample.from_jtensor(several.features, several.labels)
    assert several == pickle.loads(pickle.dumps(several)) and several != sample


def test_sample_refuses_what_is_no_tensor() -> None:
    with pytest.raises(ArgumentError, match="made of JTensors; got ndarray"):
        Sample(np.zeros(2), JTensor.from_ndarray(1))
    with pytest.raises(ArgumentError, match="the labels of Sample.from_ndarray must be an array or a number; got dict"):
        Sample.from_ndarray(np.zeros(2), {"y": 1})


def test_random_numbers_are_those_of_the_mersenne_twister() -> None:
    rng = RNG()
    rng.set_seed(100)
    first = rng.uniform(0.1, 0.2, [2, 3])
    np.testing.assert_allclose(first[0], [0.15434049, 0.16711557, 0.12783694], atol=1e-8)
    doubles = np.random.RandomState(100).random_sample(3)  # two of the numbers each
    np.testing.assert_allclose(first.ravel()[::2], doubles * 0.1 + 0.1, atol=1e-8)
    assert first.dtype == np.float32
    assert not np.array_equal(first, rng.uniform(0.1, 0.2, [2, 3]))
    rng.set_seed(100)
    np.testing.assert_array_equal(first, rng.uniform(0.1, 0.2, [2, 3]))


def test_result_of_an_evaluation_says_what_it_is_of() -> None:
    result = EvaluatedResult(0.5, 10, "Top1Accuracy")
    assert (result.result, result.total_num, result.method) == (0.5, 10, "Top1Accuracy")
    assert str(result) == repr(result) == "Evaluated result: 0.5, total_num: 10, method: Top1Accuracy"
