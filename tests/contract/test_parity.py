"""Parity: n ranks equal one process over the same global batches, on every engine, for every shape of shards."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from contract import truth
from contract.truth import FITS, Case, Outcome, RowsJob, TruthJob
from orca import Estimator
from orca.core.engine import Settings
from orca.core.source import Columns, DataSpec
from orca.registry import engine_class, source_of
from programs import in_rank

ENGINES = ("local", "spark", "ray")
RANKS = (pytest.param(1, marks=pytest.mark.full), pytest.param(2, marks=pytest.mark.full), 3)
pytestmark = pytest.mark.timeout(300)  # the first test of a run waits for all of it
SHAPES = {case.name: case for case in truth.shape_cases()}
LOADERS = {case.name: case for case in truth.loader_cases()}
OPTIMIZERS = {case.name: case for case in truth.optimizer_cases()}
OPTIONS = {case.name: case for case in truth.option_cases()}


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Callable[[str, int], list[dict[str, Outcome]]]:
    """Return the function that trains all cases on an engine, once, and gives what each rank brought back."""

    @cache
    def run(engine: str, ranks: int) -> Callable[[], list[dict[str, Outcome]]]:
        if engine in contexts:
            pytest.importorskip({"spark": "pyspark", "ray": "ray"}[engine])
            request.getfixturevalue(contexts[engine])
        job, shards = TruthJob((*SHAPES.values(), *LOADERS.values())), truth.all_shards(ranks, loaders=True)
        try:
            results = engine_class(engine).on_cluster(ranks).run(job, shards, Settings(60.0, False))
        except Exception as error:  # every test of the run fails with it; none of them runs it again
            return partial(_raise, error)
        return lambda: results

    contexts = {"spark": "spark", "ray": "ray_context"}
    return lambda engine, ranks: run(engine, ranks)()


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize("case", [*SHAPES, *LOADERS])
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_equal_one_process(engine: str, ranks: int, case: str, outcomes: Any) -> None:
    results = [rank[case] for rank in outcomes(engine, ranks)]
    check_parity((SHAPES | LOADERS)[case], results)


@pytest.mark.parametrize("case", [*SHAPES, *LOADERS])
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_row_once_in_full_steps(engine: str, ranks: int, case: str, outcomes: Any) -> None:
    results = [rank[case] for rank in outcomes(engine, ranks)]
    part, size = (SHAPES | LOADERS)[case].part, (SHAPES | LOADERS)[case].batch_size or truth.BATCH
    everything = list(range(len(truth.rows_for(part)[0])))
    steps = numbered(part, results)
    orders = [[n for step in epoch for rank in step for n in rank] for epoch in steps]
    sizes = [[sum(map(len, step)) for step in epoch] for epoch in steps]
    assert len({len(epoch) for rank in results for epoch in rank.steps}) == 1
    assert all(rows == size for epoch in sizes for rows in epoch[:-1])
    if part == "dropping":  # the loader says drop_last and no shuffle
        assert orders == [everything[: len(everything) // size * size]] * sum(FITS)
        return
    assert [sorted(order) for order in orders] == [everything] * sum(FITS)
    if len(everything) > 2:
        assert len({tuple(order) for order in orders}) == sum(FITS), "every epoch has the same order"
    assert [line["num_samples"] for line in results[0].lines] == [len(everything)] * sum(FITS)
    assert [line["batch_count"] for line in results[0].lines] == [len(sizes[0])] * sum(FITS)
    assert [line["epoch"] for line in results[0].lines] == [1, 2, 3]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("engine", ENGINES)
def test_metrics_equal_one_process(engine: str, ranks: int, outcomes: Any) -> None:
    results = outcomes(engine, ranks)[0]
    for name, case in SHAPES.items():
        if case.model is truth.single:
            continue  # floats: the outputs of one row differ with the batch it is in
        net = case.model({})
        net.load_state_dict(results[name].payload["models"][0])
        expected = truth.scores(net, *truth.rows_for("valid"))
        line = results[name].lines[-1]
        assert {key: line[key] for key in expected} == pytest.approx(expected, rel=1e-12, abs=0), name
        assert line["val_accuracy"] == expected["val_accuracy"]


@pytest.mark.full
@pytest.mark.parametrize("case", ["dataset", "loader", "dropping", "creator"])
@pytest.mark.parametrize("engine", ENGINES)
def test_any_number_of_ranks_sees_the_same_batches_of_a_dataset(engine: str, case: str, outcomes: Any) -> None:
    runs = [[rank[case] for rank in outcomes(engine, ranks)] for ranks in (1, 2, 3)]
    batches = [
        [[[n for rank in step for n in rank] for step in epoch] for epoch in numbered(case, run)] for run in runs
    ]
    assert batches[0] == batches[1] == batches[2]
    for run in runs[1:]:
        assert_close(run[0].payload["models"], runs[0][0].payload["models"], 1e-9)


@pytest.fixture(scope="module")
def stepped() -> list[dict[str, Outcome]]:
    """Return what the sharded sync makes of every optimizer."""
    job, shards = TruthJob(tuple(OPTIMIZERS.values())), truth.all_shards(2, loaders=False)
    return engine_class("local").on_cluster(2).run(job, shards, Settings(60.0, False))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_sharded_sync_equals_one_process_for_every_optimizer(optimizer: str, stepped: Any) -> None:
    check_parity(OPTIMIZERS[optimizer], [rank[optimizer] for rank in stepped])


@pytest.fixture(scope="module")
def optional() -> Callable[[int], list[dict[str, Outcome]]]:
    """Return the function that trains with every option on so many ranks."""

    @cache
    def run(ranks: int) -> Callable[[], list[dict[str, Outcome]]]:
        job, shards = TruthJob(tuple(OPTIONS.values())), truth.all_shards(ranks, loaders=False)
        try:
            results = engine_class("local").on_cluster(ranks).run(job, shards, Settings(60.0, False))
        except Exception as error:  # every test of the run fails with it; none of them runs it again
            return partial(_raise, error)
        return lambda: results

    return lambda ranks: run(ranks)()


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("ranks", RANKS)
def test_options_equal_one_process(ranks: int, case: str, optional: Any) -> None:
    check_parity(OPTIONS[case], [rank[case] for rank in optional(ranks)])


@pytest.mark.full
def test_estimator_of_arrays() -> None:
    case = SHAPES["even-adam-replicated"]
    estimator = check_estimator(case, truth.rows_for("even"), "local", 2)
    x, y = truth.rows_for("valid")
    with torch.no_grad():
        expected = estimator.get_model()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(estimator.predict(x, batch_size=3), expected, 1e-12, 1e-12)
    scores = {key.removeprefix("val_"): value for key, value in truth.scores(estimator.get_model(), x, y).items()}
    results = {key.lower(): value for key, value in estimator.evaluate((x, y), batch_size=4).items()}
    assert {key: results[key] for key in scores} == pytest.approx(scores, rel=1e-12, abs=0)


def test_estimator_of_a_dataframe_with_fewer_rows_than_ranks(spark: Any) -> None:
    x, y = truth.rows_for("few")
    rows = list(zip(x.tolist(), y[:, 0].tolist(), strict=True))
    frame = spark.createDataFrame(rows, "x array<double>, y double").coalesce(1)
    check_estimator(SHAPES["few-adam-sharded"], frame, "bigdl", 3, feature_cols=["x"], label_cols=["y"])


def test_estimator_of_xshards_with_uneven_partitions(spark: Any) -> None:
    from orca.data.shard import SparkXShards

    (x, y), cuts = truth.rows_for("uneven"), truth.dealt("uneven", 2)
    shards = [{"x": x[start:stop], "y": y[start:stop]} for start, stop in cuts]
    data = SparkXShards(spark.sparkContext.parallelize(shards, 2))
    check_estimator(SHAPES["uneven-sgd-replicated"], data, "spark", 2)


def check_estimator(case: Case, data: Any, backend: str, ranks: int, **columns: Any) -> Estimator:
    """Compare two fits of an Estimator with the plain loop; the rows of each step are told by a job of our own."""
    estimator = Estimator.from_torch(
        model=case.model,
        optimizer=case.optimizer,
        loss=case.loss,
        metrics=list(case.metrics()),
        backend=backend,
        workers_per_node=ranks,
        seed=truth.SEED,
        use_tqdm=False,
    )
    assert estimator.backend.sync == case.sync
    names = Columns(*(tuple(columns.get(key, ())) for key in ("feature_cols", "label_cols")))
    cut = source_of(data, DataSpec(names, batch_size=case.batch_size)).shards(ranks)
    steps = estimator.engine.run(RowsJob(sum(FITS), case.batch_size, truth.SEED), cut, estimator.settings)
    lines = [line for epochs in FITS for line in estimator.fit(data, epochs, case.batch_size, **columns)]
    state = estimator.get_state_dict()
    assert state["epoch"] == sum(FITS)
    check_parity(case, [Outcome(rank, lines, state) for rank in steps])
    return estimator


def check_parity(case: Case, ranks: list[Outcome]) -> None:
    """Compare a case with the plain loop: losses, weights and optimizer state, over two fits."""
    loop = partial(truth.plain_loop, case, numbered(case.part, ranks))
    plain = in_rank(loop) if case.option("precision") else loop()
    lines, payload = ranks[0].lines, ranks[0].payload
    assert payload is not None
    assert_close([line["train_loss"] for line in lines], plain.losses, case.tolerance)
    assert_close([line["last_train_loss"] for line in lines], plain.last_losses, case.tolerance)
    assert_close(payload["models"][0], plain.net.state_dict(), case.tolerance)
    if case.option("precision"):
        return  # the first steps of Adam are signs of gradients, and rounding turns some
    assert_close(payload["optimizers"][0], plain.optimizer.state_dict(), case.tolerance)
    if plain.average is not None:
        assert_close(payload["averages"][0], plain.average, case.tolerance)


def numbered(part: str, ranks: list[Outcome]) -> list[list[list[list[int]]]]:
    """Return row numbers by epoch, step and rank."""
    epochs = zip(*(rank.steps for rank in ranks), strict=True)
    return [[[truth.numbers_of(part, x) for x in step] for step in zip(*epoch, strict=True)] for epoch in epochs]


def assert_close(got: Any, expected: Any, tolerance: float, place: str = "") -> None:
    """Compare trees of tensors and numbers."""
    if isinstance(expected, dict):
        assert set(got) == set(expected), place
        for key in expected:
            assert_close(got[key], expected[key], tolerance, f"{place}/{key}")
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected), place
        for number, (one, other) in enumerate(zip(got, expected, strict=True)):
            assert_close(one, other, tolerance, f"{place}/{number}")
    elif isinstance(expected, torch.Tensor):
        assert got.shape == expected.shape and got.dtype == expected.dtype, place
        np.testing.assert_allclose(got.numpy(), expected.numpy(), tolerance, tolerance, err_msg=place)
    elif isinstance(expected, float):
        assert got == pytest.approx(expected, rel=tolerance, abs=tolerance), place
    else:
        assert got == expected, place
