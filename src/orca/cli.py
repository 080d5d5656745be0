"""Command line: `orca version`, `orca doctor`, `orca submit`. Owns its arguments and exit statuses.

Status 0: all is well (doctor: training would start); 1: it is not; 2: the arguments are wrong.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orca
from orca.cluster.kinds import KINDS
from orca.doctor import Diagnosis, Finding, examine
from orca.doctor.examination import SURVEY_WITHIN, TimeOver, limited
from orca.doctor.finding import error, in_colour, ok, said, warn, without_secrets
from orca.errors import ArgumentError, OrcaError
from orca.registry import BACKENDS, backend_of

GOOD, BAD, WRONG, INTERRUPTED = 0, 1, 2, 130
START_WITHIN = 180  # seconds for a cluster to start; kinds of clusters give up long before, in words of their own
STOP_WITHIN = 30.0

# Where the driver would run elsewhere, the doctor looks at the same executors from here.
_FROM_HERE = {"yarn-cluster": "yarn-client", "k8s-cluster": "k8s-client"}

# Options that init_orca_context gets as they are.
_AS_GIVEN = ("conf", "master", "hadoop_conf", "queue", "python_location")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `orca`.

    Args:
        argv: Its arguments; those of this process unless given.

    Returns:
        The exit status.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["submit"]:  # what follows is the program's and Spark's
        return _submit(given[1:])
    arguments = _parser().parse_args(given)
    status: int = arguments.command(arguments)
    return status


def _submit(given: list[str]) -> int:
    """Run a program on a cluster; what is wrong is said in words, without a trace."""
    from orca.cluster.submit import main as submit

    try:
        return submit(given)
    except OrcaError as problem:
        sys.stderr.write(f"orca submit: {problem}\n")
        return WRONG if isinstance(problem, ArgumentError) else BAD
    except KeyboardInterrupt:
        return INTERRUPTED


def version(arguments: argparse.Namespace) -> int:
    """Say which Orca this is."""
    _say(f"orca {orca.__version__} (Python {platform.python_version()})")
    return GOOD


def doctor(arguments: argparse.Namespace) -> int:
    """Start the cluster, look at it, say what was found, and stop it."""
    before = _before(arguments)
    diagnosis = Diagnosis(tuple(before))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of libraries about each other
        if diagnosis.ok:
            diagnosis = _examined(arguments, before)
    diagnosis = Diagnosis(without_secrets(diagnosis.findings, arguments.conf))
    _say(diagnosis.json() if arguments.json else diagnosis.text(coloured=in_colour()))
    status = GOOD if diagnosis.ok else BAD
    if limited(_stop, STOP_WITHIN, False) is not True:  # what hangs now would hang at the end of the process too
        os._exit(status)
    return status


def _examined(arguments: argparse.Namespace, before: list[Finding]) -> Diagnosis:
    """Return the findings about the cluster, or why it did not start."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        try:
            with _at_most(START_WITHIN):
                _start(arguments)
        except (OrcaError, TimeOver) as problem:
            return Diagnosis((*before, error("context", "the cluster did not start", said(problem), _last(problem))))
        except Exception as problem:  # of Spark's or Ray's own
            fix = "init_orca_context(...) in a program shows the whole trace"
            return Diagnosis((*before, error("context", "the cluster did not start", said(problem), fix)))
    ours = [str(item.message) for item in told if issubclass(item.category, UserWarning)]
    context = [warn("context", text) for text in dict.fromkeys(ours)]
    found = examine(
        arguments.backend,
        arguments.workers_per_node,
        arguments.data,
        arguments.model_dir,
        arguments.limit or SURVEY_WITHIN,
    )
    return Diagnosis(tuple(dict.fromkeys((*before, *context, *found.findings))))


def _before(arguments: argparse.Namespace) -> list[Finding]:
    """Return what can be told before a cluster starts."""
    from orca.doctor.driver import hadoop_configuration

    mode = arguments.cluster_mode or ""
    found: list[Finding] = []
    if mode in _FROM_HERE:
        found.append(ok("context", f"{mode} is looked at as {_FROM_HERE[mode]}: the same workers, the driver here"))
    if mode.startswith("yarn"):
        folder = arguments.hadoop_conf or os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")
        found += hadoop_configuration(folder)
    return found


def _start(arguments: argparse.Namespace) -> None:
    """Start or join the cluster that the backend runs on."""
    engine = backend_of(arguments.backend).engine
    if engine == "local":
        return
    from orca.cluster.context import init_orca_context

    if engine == "ray":
        options = {"address": arguments.address} if arguments.address else {}
        init_orca_context(runtime="ray", cores=arguments.cores, **options)
        return
    mode = arguments.cluster_mode
    told: dict[str, Any] = {name: getattr(arguments, name) for name in _AS_GIVEN}
    told["start_timeout"] = arguments.limit or SURVEY_WITHIN  # a program waits on; a doctor tells
    if arguments.no_ship_environment:
        told["ship_environment"] = False
    init_orca_context(
        cluster_mode=_FROM_HERE.get(mode, mode),
        cores=arguments.cores,
        memory=arguments.memory,
        num_nodes=arguments.num_nodes,
        **{name: value for name, value in told.items() if value not in (None, {})},
    )


def _stop() -> bool:
    from orca.cluster.context import stop_orca_context

    stop_orca_context()
    return True


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raise TimeOver in the midst of what takes longer; where there is no such signal, it may take longer."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise TimeOver(f"it was not up within {seconds} s. Look at what the cluster's own pages and logs say.")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _last(problem: BaseException) -> str:
    """Return the sentence of an error of ours that says what to do."""
    return (str(problem).strip().splitlines() or [""])[0].split(". ")[-1]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# Arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="orca", description="Distributed deep learning on Spark, Ray or processes.")
    commands = parser.add_subparsers(required=True, metavar="command")
    told = commands.add_parser("version", help="say which Orca this is")
    told.set_defaults(command=version)
    looked = commands.add_parser(
        "doctor",
        help="say whether training would start, and what to set where not",
        description="Start (or join) a cluster, look at it as training would, and say what to set. Exit status: 0 when "
        "training would start, 1 when not, 2 for wrong arguments.",
    )
    _doctor_arguments(looked)
    looked.set_defaults(command=doctor)
    commands.add_parser("submit", help="run a program on a cluster; see `orca submit --help`", add_help=False)
    return parser


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster_mode", "--cluster-mode", choices=list(KINDS), help="as for init_orca_context")
    parser.add_argument("--cores", type=_cores, help="cores per node, or '*'")
    parser.add_argument("--num_nodes", "--num-nodes", type=_count, default=1, help="nodes")
    parser.add_argument("--memory", type=_memory, default="2g", help="memory per node, as 2g")
    parser.add_argument("--workers_per_node", "--workers-per-node", type=_count, default=1, help="as for the Estimator")
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="spark", help="as for the Estimator")
    parser.add_argument("--data", help="where the data lies: its size is compared with disks and memory")
    parser.add_argument("--model_dir", "--model-dir", help="where checkpoints would go")
    parser.add_argument(
        "--conf", action=_Conf, nargs="+", default={}, metavar="NAME=VALUE", help="settings of Spark; may be repeated"
    )
    parser.add_argument("--master", help="Spark's master, for standalone: spark://host:7077")
    parser.add_argument("--address", help="the address of a running Ray")
    parser.add_argument("--hadoop_conf", "--hadoop-conf", help="the folder with Hadoop's configuration")
    parser.add_argument("--queue", help="YARN's queue")
    parser.add_argument("--python_location", "--python-location", help="the Python that the nodes have already")
    parser.add_argument(
        "--no_ship_environment", "--no-ship-environment", action="store_true", help="the nodes have this environment"
    )
    parser.add_argument(
        "--limit", type=_seconds, help=f"seconds for the workers to start, look around and join ({SURVEY_WITHIN:g})"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


class _Conf(argparse.Action):
    """Collect NAME=VALUE as a dict."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        told = dict(getattr(namespace, self.dest))
        for value in values:
            name, sign, setting = value.partition("=")
            if not sign or not name:
                # Not the value itself: it may be a secret.
                parser.error("--conf takes NAME=VALUE, as spark.task.cpus=1; got one without a name or a '='.")
            told[name] = setting
        setattr(namespace, self.dest, told)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1, 2, 3, ...; got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, as 60; got {text!r}")
    return seconds


def _cores(text: str) -> int | str:
    return text if text == "*" else _count(text)


def _memory(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*\s*[kmgtKMGT][bB]?", text):
        raise argparse.ArgumentTypeError(f"must be a number with a unit k, m, g or t, as 2g; got {text!r}")
    return text


if __name__ == "__main__":
    sys.exit(main())
