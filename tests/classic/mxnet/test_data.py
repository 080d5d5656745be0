"""MXNet's data: what creators get, whose rows a batch has, and how ranks step together."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import chain
from typing import Any

import numpy as np
import pytest

from orca import Estimator
from orca.core.source import DataSpec
from orca.errors import ArgumentError, WorkerFailed
from orca_classic.mxnet import create_config

pytestmark = pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed")

X = np.arange(22, dtype="float32").reshape(11, 2)
Y = np.arange(11, dtype="float32")


def making(creator: Any, rank: int = 0, ranks: int = 2, batch_size: int = 4) -> Any:
    from orca_classic.mxnet.data import Making

    return Making(creator, DataSpec(batch_size=batch_size, config={"folder": "f"}), rank, ranks)


def iterator(config: dict[str, Any], kv: Any) -> Any:
    import mxnet as mx

    return mx.io.NDArrayIter(X, Y, config["batch_size"], shuffle=True)


def rows(stream: Any, rank: int = 0, ranks: int = 1) -> list[list[float]]:
    return [batch.y[: batch.rows].tolist() for batch in stream.batches(rank, ranks)]


def test_creator_that_leaves_kv_alone_makes_whole_steps_that_ranks_share() -> None:
    calls: list[Any] = []

    def creator(config: dict[str, Any], kv: Any) -> Any:
        calls.append((dict(config), kv.type))
        return iterator(config, kv)

    streams = [making(creator, rank).make() for rank in range(2)]
    assert [call[0]["batch_size"] for call in calls] == [2, 4, 2, 4] and calls[0][1] == "dist_sync"
    assert calls[0][0]["folder"] == "f" and not streams[0].own
    for _ in range(2):  # passes
        ranks = [rows(stream, rank, 2) for rank, stream in enumerate(streams)]
        steps = [first + second for first, second in zip(*ranks, strict=True)]
        assert [len(step) for step in steps] == [4, 4, 3]  # padding is cut
        assert sorted(chain.from_iterable(steps)) == Y.tolist()


def test_creator_that_asks_kv_makes_a_rank_s_own_share() -> None:
    def creator(config: dict[str, Any], kv: Any) -> Any:
        import mxnet as mx

        mine = slice(kv.rank, None, kv.num_workers)
        return mx.io.NDArrayIter(X[mine], Y[mine], config["batch_size"])

    stream = making(creator, 1).make()
    assert stream.own and rows(stream, 1, 2) == [[1.0, 3.0], [5.0, 7.0], [9.0]]


def test_order_of_a_pass_depends_on_seed_and_pass_alone() -> None:
    whole = making(iterator).make()
    passes = [rows(whole) for _ in range(3)]
    assert passes[0] != passes[1]
    late = making(iterator).make()
    np.random.seed(5)  # what the program draws has no say
    late.skip(2)
    assert rows(late) == passes[2]


def test_rows_that_roll_over_to_the_next_pass_are_not_cut() -> None:
    def creator(config: dict[str, Any], kv: Any) -> Any:
        import mxnet as mx

        return mx.io.NDArrayIter(X, Y, 4, last_batch_handle="roll_over")

    stream = making(creator).make()
    assert rows(stream) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert rows(stream) == [[8, 9, 10, 0], [1, 2, 3, 4], [5, 6, 7, 8]]


def test_loader_gives_inputs_labels_and_weights() -> None:
    def creator(config: dict[str, Any], kv: Any) -> Any:
        from mxnet import gluon

        return gluon.data.DataLoader(gluon.data.ArrayDataset(X, 2 * X, Y), config["batch_size"])

    first = next(making(creator, ranks=1).make().batches(0, 1))
    assert isinstance(first.x, tuple) and len(first.x) == 2 and first.y.tolist() == [0, 1, 2, 3]
    from orca_classic.mxnet.data import Making

    weighted = Making(creator, DataSpec(batch_size=4, weighted=True), 0, 1).make()
    first = next(weighted.batches(0, 1))
    assert first.x.shape == (4, 2) and first.weights.tolist() == [0, 1, 2, 3]


def test_ranks_of_uneven_and_empty_shares_step_together() -> None:
    def creator(config: dict[str, Any], kv: Any) -> Any:
        from mxnet import gluon

        mine = [slice(0, 9), slice(9, 9), slice(9, None)][kv.rank]
        return gluon.data.DataLoader(gluon.data.SimpleDataset(list(zip(X[mine], Y[mine], strict=True))), 2)

    est = regression(3)
    (line,) = est.fit(creator, epochs=1, batch_size=6)
    assert (line["num_samples"], line["batch_count"]) == (11, 5)  # as many as the largest share has
    assert est.evaluate(creator, batch_size=6)["num_samples"] == 11
    assert np.allclose(est.predict(creator), est.predict(X))


def regression(workers: int) -> Any:
    def model(config: dict[str, Any]) -> Any:
        from mxnet import gluon

        return gluon.nn.Dense(1)

    def loss(config: dict[str, Any]) -> Any:
        from mxnet import gluon

        return gluon.loss.L2Loss()

    config = create_config(optimizer_params={"learning_rate": 1e-4}, log_interval=0)
    return Estimator.from_mxnet(
        config=config, model_creator=model, loss_creator=loss, num_workers=workers, backend="local"
    )


def test_resized_epochs_go_on_in_the_data() -> None:
    lines = regression(2).fit(iterator, epochs=4, batch_size=4, train_resize_batch_num=2)
    assert [(line["batch_count"], line["num_samples"]) for line in lines] == [(2, 8), (2, 7), (2, 7), (2, 8)]


def test_data_of_this_process_is_refused_in_words() -> None:
    with pytest.raises(ArgumentError, match=r"a NDArrayIter of MXNet cannot be sent to the workers: .* Pass a creator"):
        regression(1).fit(iterator({"batch_size": 4}, None))


def test_creator_that_returns_something_else_is_refused_in_words() -> None:
    with pytest.raises(WorkerFailed, match=r"must return a DataIter or a gluon DataLoader; got tuple\. Pass arrays"):
        regression(1).fit(lambda config, kv: (X, Y))
