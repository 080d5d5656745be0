"""Rows of Spark for engines that are not Spark's: exact counts, wherever they are put, and nothing left of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orca import Estimator
from orca.core.engine import Settings
from orca.core.source import Columns, DataSpec, Shards
from orca.data.shard import XShards
from orca.engines.local import LocalEngine
from orca.errors import DataError, WorkerFailed
from orca.sources.export import LIMIT, STAGING, ArrowFile, Staging
from orca.sources.frame import FrameSource
from orca.storage.files import filesystem
from raised import raises

ROWS, PARTITIONS = 101, 15


@pytest.fixture
def staging(spark: Any) -> Iterator[Any]:
    """Yield a function that sets where rows are put; nothing of them may be left on this machine."""
    yield lambda place: spark.conf.set(STAGING, place) if place else None
    for name in (STAGING, LIMIT):
        spark.conf.unset(name)
    assert left() == []


def left() -> list[str]:
    """Return what is left of rows in the temporary folder."""
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("orca-rows")]


def uneven(spark: Any) -> Any:
    """Return numbered rows in partitions of very different sizes, some without any."""
    return spark.range(0, 90, 1, 1).union(spark.range(90, 95, 1, 3)).union(spark.range(95, ROWS, 1, 11))


def shards_of(frame: Any, ranks: int) -> Shards:
    return FrameSource(frame, DataSpec(Columns(("id",)), labelled=False)).shards(ranks)


def ids(pieces: list[Any]) -> list[list[int]]:
    """Return the numbers of the rows that each piece gives."""
    return [[i for batch in piece() for i in batch.column(1).to_pylist()] for piece in pieces]


def even(parts: list[list[int]], ranks: int) -> list[int]:
    """Return the sizes of what ranks get of the pieces, as engines deal them."""
    return sorted(sum(len(part) for part in parts[rank::ranks]) for rank in range(ranks))


@pytest.mark.parametrize("place", ["", "driver", "folder"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_every_row_arrives_once_in_even_parts(spark: Any, staging: Any, tmp_path: Path, place: str, ranks: int) -> None:
    staging(str(tmp_path) if place == "folder" else place)
    shards = shards_of(uneven(spark), ranks)
    pieces = shards.portable()
    parts = ids(pieces)
    assert sorted(i for part in parts for i in part) == list(range(ROWS))
    sizes = even(parts, ranks)
    assert sizes[-1] - sizes[0] <= PARTITIONS, sizes
    assert {piece.here for piece in pieces} == {place != "folder"}
    assert (len(os.listdir(tmp_path)) == 1) is (place == "folder") and (left() != []) is (place != "folder")
    shards.release()
    shards.release()
    assert os.listdir(tmp_path) == [] and left() == []


def test_staged_rows_are_the_users_alone_and_those_of_killed_programs_are_removed(
    spark: Any, staging: Any, tmp_path: Path
) -> None:
    old, young, foreign = (tmp_path / name for name in ("orca-rows-" + "a" * 32, "orca-rows-" + "b" * 32, "other"))
    for folder in (old, young, foreign):
        folder.mkdir()
        (folder / "rows").touch()
    for folder in (old, foreign):
        os.utime(folder, (0, 0))
    staging(str(tmp_path))
    shards = shards_of(uneven(spark), 2)
    shards.portable()
    assert not old.exists() and young.exists() and foreign.exists()
    [fresh] = set(tmp_path.iterdir()) - {young, foreign}
    assert fresh.stat().st_mode & 0o777 == 0o700
    shards.release()


@pytest.mark.parametrize("place", ["", "driver"])
def test_no_rows_are_no_files(spark: Any, staging: Any, place: str) -> None:
    staging(place)
    shards = shards_of(spark.range(0), 2)
    assert shards.portable() == []
    shards.release()


def test_too_many_rows_for_the_driver_are_told_with_the_setting(spark: Any, staging: Any) -> None:
    staging("driver")
    spark.conf.set(LIMIT, "2k")
    shards = shards_of(spark.range(5000), 2)
    message = r"more than 2048 bytes, .* Pass conf=\{'spark.orca.staging': 'hdfs://\.\.\.'\} to init_orca_context"
    with pytest.raises(DataError, match=message):
        shards.portable()
    shards.release()
    spark.conf.set(LIMIT, "lots")
    with raises("bad-size", match="'lots'"):
        shards.portable()


def test_rows_that_a_worker_cannot_see_are_told_with_the_setting(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lost.arrow are not there on .* Pass conf=\{'spark.orca.staging'"):
        list(ArrowFile(str(tmp_path / "lost.arrow"))())


def test_rows_are_removed_when_the_run_fails(spark: Any, staging: Any) -> None:
    def fail(world: Any, rows: Any, heartbeat: Any) -> None:
        raise ValueError(f"rank {world.rank} saw {rows['train'].count} rows")

    with pytest.raises(WorkerFailed, match=r"rank [01] saw [1-9]\d* rows"):
        LocalEngine(2).run(fail, shards_of(uneven(spark), 2), Settings(30))
    assert left() == []


def regression() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(50, 4)).astype(np.float32)
    return x, (x @ np.array([1.0, -2.0, 0.5, 3.0], np.float32))[:, None]


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Linear(4, 1)


def plain_loop(epochs: int) -> dict[str, torch.Tensor]:
    """Train in this process, each step on all rows."""
    (x, y), trained = map(torch.from_numpy, regression()), model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(trained(x), y).backward()
        optimizer.step()
    return trained.state_dict()


def spark_data(spark: Any, kind: str) -> tuple[Any, dict[str, Any]]:
    x, y = regression()
    if kind == "shards":
        return XShards.partition({"x": x, "y": y}, 3), {}
    rows = [([float(v) for v in a], float(b[0])) for a, b in zip(x, y, strict=True)]
    first = spark.createDataFrame(rows[:1], "x array<float>, y float").coalesce(1)
    rest = spark.createDataFrame(rows[1:], "x array<float>, y float").repartition(3)
    return first.union(rest), {"feature_cols": ["x"], "label_cols": ["y"]}


@pytest.mark.parametrize(
    ("backend", "place", "kind"),
    [
        ("local", "driver", "frame"),
        ("local", "", "shards"),
        pytest.param("ray", "", "frame", marks=pytest.mark.full),
        pytest.param("ray", "driver", "shards", marks=pytest.mark.full),
        pytest.param("ray", "folder", "frame", marks=pytest.mark.full),
    ],
)
def test_training_on_rows_of_spark_equals_a_plain_loop(
    spark: Any, staging: Any, request: pytest.FixtureRequest, tmp_path: Path, backend: str, place: str, kind: str
) -> None:
    if backend == "ray":
        pytest.importorskip("ray")
        request.getfixturevalue("ray_context")
    staging(str(tmp_path) if place == "folder" else place)
    est = Estimator.from_torch(
        model=model(),
        optimizer=lambda trained, config: torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9),
        loss=torch.nn.MSELoss(),
        backend=backend,
        workers_per_node=2,
    )
    data, columns = spark_data(spark, kind)
    est.fit(data, epochs=3, batch_size=50, **columns)
    assert os.listdir(tmp_path) == []
    wanted = plain_loop(3)
    for name, value in est.get_model().state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_rows_on_the_drivers_machine_are_carried_to_ranks_elsewhere(spark: Any, staging: Any, ray_context: Any) -> None:
    ray = pytest.importorskip("ray")
    from orca.engines.ray import Carried, RayEngine

    shards = shards_of(uneven(spark), 2)
    parcels = RayEngine(2)._parcels(shards, here=False)
    shards.release()  # what ranks get must not need the files any more
    assert left() == []
    read = ray.remote(lambda parcel: [type(piece).__name__ for piece in parcel.pieces()] + ids(parcel.pieces()))
    (one, *first), (two, *second) = ray.get([read.remote(parcel) for parcel in parcels])
    assert {one, two} == {Carried.__name__}
    assert sorted(i for part in first + second for i in part) == list(range(ROWS))


@pytest.mark.yarn
def test_rows_go_over_hdfs(spark: Any, staging: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    base = "hdfs:///tmp/orca-export-test"
    staging(base)
    shards = shards_of(uneven(spark), 2)
    parts = ids(shards.portable())
    assert sorted(i for part in parts for i in part) == list(range(ROWS))
    fs, place = filesystem(base)
    assert len(fs.ls(place)) == 1
    shards.release()
    assert fs.ls(place) == []
    fs.rm(place, recursive=True)

    found = Staging()
    folder = found._on_hdfs()
    assert folder is not None and "/.orca/orca-rows-" in folder and filesystem(folder)[0].exists(filesystem(folder)[1])
    found.release()
    assert not fs.exists(filesystem(folder)[1])
