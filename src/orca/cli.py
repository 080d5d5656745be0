"""Command line: `orca version`, `orca doctor`, `orca environment`, `orca submit`. Owns its arguments and exit statuses.

Status 0: all is well (doctor: training would start); 1: it is not; 2: the arguments are wrong.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import orca
from orca.cluster.context import init_orca_context, stop_orca_context
from orca.cluster.environment import packed
from orca.cluster.hadoop import SHARED, configuration_folder
from orca.cluster.kinds import KINDS
from orca.cluster.news import human
from orca.cluster.options import CORES_OR_ALL, COUNT, SECONDS, add_option, cluster_options
from orca.cluster.spark import set_environment
from orca.doctor import Diagnosis, Finding, examine
from orca.doctor.examination import SURVEY_WITHIN, limited
from orca.doctor.finding import advice, error, ok, summary, warn, without_secrets
from orca.errors import ArgumentError, OrcaError
from orca.registry import backend_names, backend_of
from orca.storage import hdfs

GOOD, BAD, WRONG, INTERRUPTED = 0, 1, 2, 130
STOP_WITHIN = 30.0
_VERSION = f"orca {orca.__version__} (Python {platform.python_version()})"

# Where the driver would run elsewhere, the doctor looks at the same executors from here.
_FROM_HERE = {"yarn-cluster": "yarn-client"}

# Options that init_orca_context gets as they are.
_AS_GIVEN = ("conf", "master", "hadoop_conf", "queue", "python_location")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `orca`.

    Args:
        argv: Its arguments; those of this process unless given.

    Returns:
        The exit status.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["submit"]:  # the arguments after it are the program's and Spark's
        return _submit(words[1:])
    arguments = _parser().parse_args(words)
    status: int = arguments.command(arguments)
    return status


def _submit(words: list[str]) -> int:
    """Run a program on a cluster; an error of ours is printed without a trace."""
    from orca.cluster.submit import main as submit

    try:
        return submit(words)
    except OrcaError as problem:
        sys.stderr.write(f"orca submit: {problem}\n")
        return WRONG if isinstance(problem, ArgumentError) else BAD
    except KeyboardInterrupt:
        return INTERRUPTED


def version(arguments: argparse.Namespace) -> int:
    """Say which Orca this is."""
    _say(_VERSION)
    return GOOD


def environments(arguments: argparse.Namespace) -> int:
    """List, or remove, what was packed for clusters: on this machine, and on the HDFS of Hadoop's settings."""
    try:
        with ExitStack() as life:
            files = packed()
            if arguments.hadoop_conf or os.environ.get("HADOOP_CONF_DIR"):
                set_environment({"HADOOP_CONF_DIR": str(configuration_folder(arguments.hadoop_conf))}, life)
                files += packed(f"hdfs:///user/{hdfs.user_name()}/{SHARED}")
            for file in files:
                purged = arguments.action == "purge" and file.age >= arguments.older_than * 86400
                if purged:
                    file.remove()
                words = " removed" if purged else ""
                _say(f"{human(file.size):>10}  {file.age / 86400:6.1f} days  {file.path}{words}")
    except OrcaError as problem:
        sys.stderr.write(f"orca environment: {problem}\n")
        return BAD
    return GOOD


def doctor(arguments: argparse.Namespace) -> int:
    """Start the cluster, look at it, print the findings, and stop it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of libraries about each other
        diagnosis = Diagnosis(without_secrets(_findings(arguments), arguments.conf))
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    _say(diagnosis.json() if arguments.json else diagnosis.text(colours))
    status = GOOD if diagnosis.ok else BAD
    try:
        limited(stop_orca_context, STOP_WITHIN)
    except Exception:  # a thread that hangs now would hang at the end of the process too
        os._exit(status)
    return status


def _findings(arguments: argparse.Namespace) -> list[Finding]:
    """Return the findings about the cluster, or why it did not start."""
    mode, findings = arguments.cluster_mode, []
    if mode in _FROM_HERE:
        findings.append(ok("context", f"{mode} is looked at as {_FROM_HERE[mode]}: the same workers, the driver here"))
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always", UserWarning)
        try:
            _start(arguments)
        except Exception as problem:
            trace = "init_orca_context(...) in a program shows the whole trace"  # of an error of Spark's or Ray's own
            fix = advice(problem) if isinstance(problem, OrcaError) else trace
            return [*findings, error("context", "the cluster did not start", summary(problem), fix)]
    texts = [str(item.message) for item in records if issubclass(item.category, UserWarning)]
    findings += [warn("context", text) for text in dict.fromkeys(texts)]
    diagnosis = examine(
        arguments.backend, arguments.workers_per_node, arguments.data, arguments.model_dir, arguments.limit
    )
    return [*findings, *diagnosis.findings]


def _start(arguments: argparse.Namespace) -> None:
    """Start or join the cluster that the backend runs on."""
    engine = backend_of(arguments.backend).engine
    if engine == "ray":
        address = {"address": arguments.address} if arguments.address else {}
        init_orca_context(runtime="ray", cores=arguments.cores, **address)
    elif engine == "spark":
        mode = arguments.cluster_mode
        options: dict[str, Any] = {name: getattr(arguments, name) for name in _AS_GIVEN}
        if arguments.no_ship_environment:
            options["ship_environment"] = False
        init_orca_context(
            cluster_mode=_FROM_HERE.get(mode, mode),
            cores=arguments.cores,
            memory=arguments.memory,
            num_nodes=arguments.num_nodes,
            start_timeout=arguments.limit,  # a program waits on; a doctor tells
            **{name: value for name, value in options.items() if value not in (None, {})},
        )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# Arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="orca", description="Distributed deep learning on Spark, Ray or processes.")
    parser.add_argument("--version", action="version", version=_VERSION, help="print which Orca this is, and exit")
    commands = parser.add_subparsers(required=True, metavar="command")
    commands.add_parser("version", help="say which Orca this is").set_defaults(command=version)
    examination = commands.add_parser(
        "doctor",
        parents=[cluster_options(list(KINDS), CORES_OR_ALL)],
        help="say whether training would start, and what to set where not",
        description="Start (or join) a cluster, look at it as training would, and say what to set. Exit status: 0 when "
        "training would start, 1 when not, 2 for wrong arguments.",
    )
    _doctor_arguments(examination)
    examination.set_defaults(command=doctor)
    environment = commands.add_parser(
        "environment",
        help="list or remove what was packed for clusters",
        description="List what Orca packed for clusters (environments, modules, jars of Spark), in the cache of this "
        "machine and on the HDFS of Hadoop's settings, or remove it: programs that run now may still need it.",
    )
    environment.add_argument("action", choices=("list", "purge"))
    environment.add_argument("--hadoop_conf", "--hadoop-conf", help="the folder with Hadoop's configuration")
    environment.add_argument("--older_than", "--older-than", type=float, default=0.0, help="days; younger ones stay")
    environment.set_defaults(command=environments)
    commands.add_parser("submit", help="run a program on a cluster; see `orca submit --help`", add_help=False)
    return parser


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    add = partial(add_option, parser)
    add("workers_per_node", type=COUNT, default=1, help="as for the Estimator")
    add("backend", choices=backend_names(), default="spark", help="as for the Estimator")
    add("data", help="where the data lies: its size is compared with disks and memory")
    add("model_dir", help="where checkpoints would go")
    add("address", help="the address of a running Ray")
    limit = f"seconds for the workers to start, look around and join ({SURVEY_WITHIN:g})"
    add("limit", type=SECONDS, default=SURVEY_WITHIN, help=limit)
    add("json", action="store_true", help="print the findings as JSON")
