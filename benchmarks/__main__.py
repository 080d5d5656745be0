"""Run benchmarks: `python -m benchmarks [name ...] [--repeats N]`. Prints a table, writes output/results.json."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.measure import Result

NAMES = (
    "training",
    "conversion",
    "startup",
    "predict",
    "frame",
    "memory",
    "keras_training",
    "tfgraph_training",
    "openvino",
)
OUTPUT = Path(__file__).parent / "output"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, help=f"any of {', '.join(NAMES)}")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    results: list[Result] = []
    for name in args.names or NAMES:
        began = time.time()
        found = importlib.import_module(f"benchmarks.{name}").run(args.repeats)
        print(f"{name}: {time.time() - began:.0f} s", flush=True)
        for result in found:
            print("  " + row(result), flush=True)
        results += found
    OUTPUT.mkdir(exist_ok=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    told = [asdict(result) | {"ratio": result.ratio, "met": result.met} for result in results]
    (OUTPUT / "results.json").write_text(json.dumps({"machine": machine, "results": told}, indent=2))
    print(f"\n{'benchmark':44} {'ours':>10} {'peer':>10}        {'ratio':>6} {'target':>7}")
    for result in results:
        print(row(result))


def row(result: Result) -> str:
    target = "" if result.target is None else f"{result.target:>6.2f} {'ok' if result.met else 'MISSED'}"
    numbers = f"{result.ours:>10.4g} {result.peer:>10.4g} {result.unit:6}"
    return f"{result.name:44} {numbers} {result.ratio:>6.2f} {target:10} vs {result.peer_name}"


if __name__ == "__main__":
    main()
