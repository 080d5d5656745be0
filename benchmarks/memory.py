"""Memory: the peak memory of a worker that trains on S and on 10 S of data; it must not grow with the data."""

from __future__ import annotations

import torch

from benchmarks.measure import Result
from benchmarks.sparks import session
from orca import Estimator, stop_orca_context

SMALL, LARGE = 6_000, 60_000


class Watched(torch.nn.Linear):
    """Report the process's peak memory as its loss's hidden companion: a buffer that rank 0 brings back."""

    def __init__(self) -> None:
        super().__init__(784, 10)
        self.register_buffer("peak", torch.zeros(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("VmHWM"))
        self.peak.fill_(float(line.split()[1]) / 1024)
        return super().forward(x)


def run(repeats: int) -> list[Result]:
    peaks = {}
    for rows in (SMALL, LARGE):  # a session each: Spark reuses its Python workers, and their peak stays
        spark = session()
        x = "transform(sequence(1, 784), i -> cast((id * i) % 97 as float)) as x"
        frame = spark.range(rows).selectExpr(x, "id % 10 as y")
        torch.manual_seed(0)
        model = Watched()
        estimator = Estimator.from_torch(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-6), loss=torch.nn.CrossEntropyLoss()
        )
        estimator.fit(frame, epochs=2, batch_size=256, feature_cols=["x"], label_cols=["y"])
        peaks[rows] = float(estimator.get_model().peak)
        stop_orca_context()
    name = f"peak memory of a worker, {SMALL:,} -> {LARGE:,} rows"
    return [Result(name, peaks[LARGE], peaks[SMALL], f"{SMALL:,} rows", "MB", 1 / 1.3)]
