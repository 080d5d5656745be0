from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from frameworks.torch.alone import alone
from orca import Estimator
from orca.core.feed import Feed, spool_parts, weigh
from orca.core.source import Batch
from orca.errors import WorkerFailed
from orca.frameworks.torch import resident
from orca.frameworks.torch.resident import keep
from orca.frameworks.torch.tensors import Place
from orca.monitor.heartbeat import Heartbeat

PLACE = Place(torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu"), torch.float32)


def feed_of_numbers(world: Any, folder: Path, weighted: bool = False) -> Feed:
    x = {"wide": np.arange(70.0).reshape(35, 2), "pixels": np.arange(35, dtype=np.uint8)}
    y: Any = np.arange(35)
    y = weigh(y, np.arange(35) / 7) if weighted else y
    rows = spool_parts([("train", x, y)], folder, ["train"])["train"]
    return Feed(rows, world, 4, shuffle=True, seed=3, weighted=weighted)


def as_lists(batch: Batch) -> Any:
    weights = None if batch.weights is None else np.asarray(batch.weights).tolist()
    return {name: leaf.tolist() for name, leaf in batch.x.items()}, batch.y.tolist(), weights, batch.rows


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("block", [1, 100, 1 << 20])  # bytes: rows one by one, some, all at once
def test_rows_on_the_device_make_the_same_batches(
    weighted: bool, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "_BLOCK", block)
    with alone(Heartbeat()) as world:
        spooled, kept = (feed_of_numbers(world, tmp_path, weighted) for _ in range(2))

        def counted(batch: Batch) -> Batch:
            assert isinstance(batch.y, np.ndarray)  # not on the device yet
            return Batch(batch.x, batch.y, batch.rows, batch.step_rows, masses=batch.y * 2.0)

        assert keep(kept, PLACE, counted)
        for epoch in (1, 2):
            pairs = list(zip(spooled.epoch(epoch, 2), kept.epoch(epoch, 2), strict=True))
            assert len(pairs) == 7
            for one, other in pairs:
                assert as_lists(one) == as_lists(other)
                assert other.masses.tolist() == (one.y * 2.0).tolist()
                assert other.x["wide"].dtype == torch.float32 and other.x["pixels"].dtype == torch.uint8
                assert other.x["wide"].device == other.y.device == PLACE.device


def test_rows_that_do_not_fit_stay_on_the_disk_and_a_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resident, "_free_bytes", lambda device, ranks: 1000)
    with alone(Heartbeat()) as world:
        feed = feed_of_numbers(world, tmp_path)
        rows = feed.rows
        assert not keep(feed, PLACE, lambda batch: batch)
        assert feed.rows is rows and "read from the disk" in caplog.text


def test_ranks_of_one_machine_share_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident.psutil, "virtual_memory", lambda: SimpleNamespace(available=4000, total=2**30))
    place = Place(torch.device("cpu"), torch.float32)
    with alone(Heartbeat()) as world:
        fits = []
        for world.local_size in (1, 4):
            feed = feed_of_numbers(world, tmp_path)
            assert feed.rows.count * feed.rows.spool.row_bytes < 2000
            fits.append(keep(feed, place, lambda batch: batch))
        assert fits == [True, False]


def losses(device_cache: bool) -> list[float]:
    generator = np.random.default_rng(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    est = Estimator.from_torch(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=lambda output, target: nn.functional.cross_entropy(output, target, ignore_index=-100),  # which is asked
        backend="local",
        workers_per_node=2,
        seed=1,
        device_cache=device_cache,
    )
    labels = generator.integers(0, 4, 50)
    labels[::5] = -100
    data = generator.random((50, 3)), labels
    lines = est.fit(data, epochs=2, batch_size=7, validation_data=data)
    return [line[name] for line in lines for name in ("train_loss", "val_loss")]


def test_a_fit_with_rows_on_the_device_is_the_same_fit() -> None:
    assert losses(device_cache=True) == losses(device_cache=False)


def test_data_that_runs_code_of_its_own_is_refused() -> None:
    rows = torch.utils.data.TensorDataset(torch.zeros(8, 3), torch.zeros(8, 1))
    model = nn.Linear(3, 1)
    est = Estimator.from_torch(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.MSELoss(), backend="local",
        device_cache=True,
    )  # fmt: skip
    with pytest.raises(WorkerFailed, match="device_cache keeps rows of arrays"):
        est.fit(torch.utils.data.DataLoader(rows, 4), epochs=1, batch_size=4)
