"""Learners of arrays: types of weights, copies, and gradients that are none."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from orca.core.array_session import ArraySession
from orca.core.engine import Settings
from orca.core.learner import FitPlan
from orca.engines.local import LocalEngine
from orca.errors import WorkerFailed
from orca.job import FitJob
from orca.testing import LinearLearner, shards_of


@dataclass
class Rounded(LinearLearner):
    """A learner whose weights are of another type than its gradients."""

    kind: str = "float32"

    def make(self) -> None:
        super().make()
        self.weight, self.lock = self.weight.astype(self.kind), threading.Lock()

    def apply(self, gradients: Mapping[str, np.ndarray]) -> None:
        assert gradients["weight"].dtype == ("float64" if self.kind == "int64" else self.kind)
        self.weight = (self.weight - self.rate * gradients["weight"]).astype(self.kind)


@pytest.mark.parametrize("kind", ["float16", "float32", "int64"])
def test_gradients_may_be_of_another_type_than_the_weights(kind: str) -> None:
    x = np.array([[1.0], [2.0], [3.0]])
    ranks = [(x[:2], x[:2, 0]), (x[2:], x[2:, 0]), (x[:0], x[:0, 0])]  # the last one has no rows
    job = FitJob(Rounded(1, rate=1e-6, kind=kind), FitPlan(batch_size=2, shuffle=False), (), None)
    (_, state), *_ = LocalEngine(3).run(job, shards_of(ranks), Settings(10))
    assert state.payload["models"][0]["weight"].dtype == kind
    assert np.isfinite(state.payload["models"][0]["weight"]).all()


def test_a_model_that_cannot_be_pickled_stays_where_it_was_made() -> None:
    learner = Rounded(1)
    assert learner.initial_state(0).payload["models"][0]["weight"].shape == (2,)
    pickle.dumps(learner)


def test_a_state_is_a_copy() -> None:
    learner = LinearLearner(1).copy_for(None, 0)
    state = learner.copied_state()
    learner.velocity += 1.0  # the next step, while the state is being written
    assert state.payload["optimizers"][0]["velocity"].tolist() == [0.0, 0.0]


@dataclass
class Misnamed(LinearLearner):
    """A learner that calls its gradient by another name."""

    def loss_and_gradients(self, batch: Any) -> Any:
        total, mass, gradients = super().loss_and_gradients(batch)
        return total, mass, {"Weight": gradients["weight"]}


def test_a_gradient_of_no_weight_is_an_error() -> None:
    job = FitJob(Misnamed(1), FitPlan(), (), None)
    with pytest.raises(WorkerFailed, match=r"returned gradients of \['Weight'\], but the weights are \['weight'\]"):
        LocalEngine(1).run(job, shards_of([(np.ones((3, 1)), np.ones(3))]), Settings(10))


@dataclass
class Taking(LinearLearner):
    """A learner of which one rank alone has a gradient of a further weight, in its later steps alone."""

    def make(self) -> None:
        super().make()
        self.shift, self.applied = np.zeros(2, np.float32), list[list[str]]()

    def weights(self) -> dict[str, np.ndarray]:
        return {"shift": self.shift, **super().weights(), "frozen": np.zeros(3, np.int64)}

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        super().set_weights(weights)
        self.shift = np.array(weights["shift"])

    def loss_and_gradients(self, batch: Any) -> Any:
        total, mass, gradients = super().loss_and_gradients(batch)
        late = len(self.applied) >= 2 and self.world.rank == 1
        return total, mass, gradients | ({"shift": np.array([batch.rows, 2.0 * batch.rows])} if late else {})

    def apply(self, gradients: Mapping[str, np.ndarray]) -> None:
        super().apply(gradients)
        self.applied.append(sorted(gradients))
        self.shift = self.shift + gradients.get("shift", np.float32(0))
        assert self.applied[-1] == (["shift", "weight"] if len(self.applied) > 2 else ["weight"])


def test_a_gradient_may_be_there_in_later_steps_alone() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(20, 2)), draw.normal(size=20)
    weights = []
    for parts in ([slice(0, 20)], [slice(0, 10), slice(10, 20)]):
        learner = Taking(2) if len(parts) > 1 else LinearLearner(2)
        job = FitJob(learner, FitPlan(epochs=5, batch_size=20, shuffle=False), (), None)
        (_, state), *_ = LocalEngine(len(parts)).run(
            job, shards_of([(x[part], y[part]) for part in parts]), Settings(10)
        )
        weights.append(state.payload["models"][0])
    np.testing.assert_allclose(weights[1]["weight"], weights[0]["weight"], atol=1e-12)
    np.testing.assert_allclose(weights[1]["shift"], [1.5, 3.0])  # half of the rows, in three steps


class Sums:
    """A world of one rank that notes how much it is given to add up."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.sizes: list[list[int]] = []
        self.kinds: list[list[str]] = []

    def all_reduce(self, arrays: Any, how: str) -> Any:
        self.sizes.append([array.size for array in arrays])
        self.kinds.append([array.dtype.name for array in arrays])
        return arrays


def session_of(learner: LinearLearner) -> tuple[ArraySession, Sums]:
    world = Sums()
    return ArraySession(learner.copy_for(None, 0), world, None, 0), world  # type: ignore[arg-type]


def test_weights_that_are_never_trained_do_not_travel_and_the_loss_of_complex_ones_is_real() -> None:
    session, world = session_of(Taking(1))
    session.learner.set_weights({"weight": np.zeros(2, np.complex64), "shift": np.zeros(1000, np.float32)})
    for _ in range(2):
        loss, gradients = session.all_reduce(6.0, 3.0, {"weight": np.array([3j, 6.0])})
        assert type(loss) is float and loss == 2.0
        assert list(gradients) == ["weight"] and gradients["weight"].tolist() == [1j, 2.0]
    # A loss, its mass, and which weights have gradients; from then on, these go along.
    assert world.sizes == [[5], [5, 2], [5, 2]]


def test_the_type_of_a_loss_is_the_same_on_a_rank_that_has_none() -> None:
    session, world = session_of(LinearLearner(1))
    assert session.all_reduce(np.float32(6.0), np.float32(3.0), {"weight": np.ones(2)})[0] == 2.0
    session.all_reduce(0.0, 0.0, {})
    session.all_reduce(0, 0, {})
    assert {kinds[0] for kinds in world.kinds} == {"float64"}


def test_callbacks_cannot_reach_a_session_that_is_closed() -> None:
    session, _ = session_of(LinearLearner(1))
    assert session.runner.learning_rates == [0.1]
    session.close()
    with pytest.raises(AttributeError):
        session.runner.get_state_dict()
