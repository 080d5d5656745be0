"""Run benchmarks: `python -m benchmarks [name ...] [--repeats N] [--quick]`.

Prints a table of each, as Markdown, and writes output/results.json: every time that was measured, the machine, the
versions of all libraries, and the peers that were left out. --quick runs each twice, on a part of the rows: it shows
that all of them run, and no figure of it is worth telling.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks import measure, sizes

NAMES = ("startup", "frame", "predict", "training", "conversion", "memory", "keras_training", "tfgraph_training")
NAMES += ("openvino", "tables")
BY_NAME = ("gpu",)  # run only where they are asked for
OUTPUT = Path(__file__).parent / "output"
HEAD = "| | ours | peer | | times as fast | goal |\n| --- | --- | --- | --- | --- | --- |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, help=f"any of {', '.join([*NAMES, *BY_NAME])}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    sizes.quick = args.quick
    results: list[measure.Result] = []
    before = measure.machine()
    for name in args.names or NAMES:
        began = time.time()
        found = importlib.import_module(f"benchmarks.{name}").run(2 if args.quick else args.repeats)
        print(f"\n{name} ({time.time() - began:.0f} s)\n\n{HEAD}", flush=True)
        for result in found:
            print(row(result), flush=True)
        results += found
    for peer, why in measure.left_out.items():
        print(f"\nleft out: {peer}, as {why}")
    OUTPUT.mkdir(exist_ok=True)
    told = [asdict(result) | {"ratio": result.ratio, "met": result.met} for result in results]
    whole = {"machine": before, "repeats": args.repeats, "quick": args.quick, "left_out": measure.left_out}
    (OUTPUT / "results.json").write_text(json.dumps(whole | {"results": told}, indent=2))


def row(result: measure.Result) -> str:
    peer = "" if result.peer is None else f"{result.peer:.3g}"
    ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
    goal = "" if result.target is None else f"{result.target:.2f}: {'met' if result.met else 'missed'}"
    told = f"{result.ours:.3g} {result.unit} | {peer} | {result.peer_name}"
    return f"| {result.name} | {told} | {ratio} | {goal} |"


if __name__ == "__main__":
    main()
