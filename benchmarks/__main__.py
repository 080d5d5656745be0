"""Run benchmarks: `python -m benchmarks [name ...] [--repeats N] [--quick] [--megabytes N]`.

Prints a table of each, as Markdown. After each, output/results.json has every time that was measured, the machine, the
versions of all libraries, and the peers that were left out; output/results.md has the tables, to be pasted into
docs/benchmarks.md. A benchmark that fails is named, and the others run. --quick runs each twice, on a part of the rows:
it shows that all of them run, and no figure of it is worth telling.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import measure, sizes

NAMES = ("startup", "frame", "predict", "training", "conversion", "memory", "keras_training", "tfgraph_training")
NAMES += ("openvino", "tables")
BY_NAME = ("gpu",)  # run only where they are asked for
OUTPUT = Path(__file__).parent / "output"
HEAD = (
    "| | ours | peer | | times as fast | goal | processor seconds: ours, peer |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, help=f"any of {', '.join([*NAMES, *BY_NAME])}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--megabytes", type=int, default=sizes.megabytes, help="the size of the file of tables")
    args = parser.parse_args()
    sizes.quick, sizes.megabytes = args.quick, args.megabytes
    repeats = 2 if args.quick else args.repeats
    whole: dict[str, Any] = {"machine": measure.machine(), "repeats": repeats, "quick": args.quick, "results": []}
    page = [_about(whole)]
    failed: dict[str, str] = {}
    for name in args.names or NAMES:
        began, load = time.time(), measure.load()
        try:
            results = importlib.import_module(f"benchmarks.{name}").run(repeats)
        except Exception as error:
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}"
            results = []
        title = f"{name}: {time.time() - began:.0f} s, load {load} before and {measure.load()} after"
        page.append("\n".join([f"{title}\n", HEAD, *map(row, results)]))
        print(f"\n{page[-1]}", flush=True)
        for result in results:
            measured = {"benchmark": name, "load": load, "ratio": result.ratio, "met": result.met}
            whole["results"].append(asdict(result) | measured)
        whole |= {"left_out": measure.left_out, "failed": failed}
        OUTPUT.mkdir(exist_ok=True)
        (OUTPUT / "results.json").write_text(json.dumps(whole, indent=2))
        (OUTPUT / "results.md").write_text("\n\n".join([*page, *_left_out(failed)]) + "\n")
    print("\n" + "\n".join(_left_out(failed)))
    sys.exit(bool(failed))


def _about(whole: dict[str, Any]) -> str:
    """Return the machine in a sentence."""
    machine = whole["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gb']} GB, Python {machine['python']}, "
        f"{versions}. {whole['repeats']} turns of each after one to warm up; medians."
    )


def _left_out(failed: dict[str, str]) -> list[str]:
    lines = [f"left out: {peer}, as {why}" for peer, why in measure.left_out.items()]
    return lines + [f"failed: {name}: {why}" for name, why in failed.items()]


def row(result: measure.Result) -> str:
    peer = "" if result.peer is None else f"{result.peer:.3g}"
    ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
    goal = "" if result.target is None else f"{result.target:.2f}: {'met' if result.met else 'missed'}"
    processor = "" if result.processor is None else f"{result.processor[0]:.3g}, {result.processor[1]:.3g}"
    figures = f"{result.ours:.3g} {result.unit} | {peer} | {result.peer_name}"
    return f"| {result.name} | {figures} | {ratio} | {goal} | {processor} |"


if __name__ == "__main__":
    main()
