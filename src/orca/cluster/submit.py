"""Submit: programs handed to Spark's own launcher. Owns the command, and the watch over an application on YARN.

`submit_this_program` serves cluster_mode="yarn-cluster"; `main` is the command `orca submit`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from orca.cluster import environment, yarn
from orca.cluster.hadoop import Application, Hadoop, configuration_folder, manager_pages, settings_of
from orca.cluster.java import ensure_java
from orca.cluster.news import say, wait_until
from orca.cluster.options import COUNT, MEMORY, add_option, cluster_options
from orca.cluster.spark import (
    LAUNCH_DEFAULTS,
    Request,
    SessionOptions,
    comma_list,
    ensure_jvm,
    settings_file,
    spark_home,
    spark_values,
)
from orca.errors import ArgumentError, OrcaError

log = logging.getLogger(__name__)

POLL = 1.0  # seconds between two looks at an application
LAST_WORDS = 10.0  # seconds in which the end of a driver's log must have come
PIECE = 1 << 20  # bytes of a log that are fetched at once
LAST_BYTES = 4000  # of Spark's own log, shown where a program failed


@dataclass(frozen=True)
class Program:
    """A program to be submitted: its file, its arguments and the modules that go along."""

    file: str
    args: Sequence[str] = ()
    modules: Sequence[str] = field(default_factory=list)


def submit_this_program(request: Request) -> int:
    """Submit the program that is running, with its arguments, to YARN; return its status there."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if not file or not os.path.isfile(file):
        raise ArgumentError(
            "cluster_mode='yarn-cluster' runs the program's file again inside the cluster, and this program has none "
            "(a notebook, a shell or `python -c`). Write it to a file, or use cluster_mode='yarn-client'.",
            code="program-without-file",
        )
    if main.__spec__ is not None:
        raise ArgumentError(
            f"cluster_mode='yarn-cluster' runs a file inside the cluster, and this program was started as a module "
            f"(python -m {main.__spec__.name}). Start it by its file: python {file}.",
            code="program-is-module",
        )
    libraries = [*comma_list(request.options.extra_python_lib), *comma_list(request.options.py_files)]
    modules = [*libraries, *map(str, environment.own_modules())]
    return run_on_yarn(Program(file, sys.argv[1:], modules), request)


def run_on_yarn(program: Program, request: Request) -> int:
    """Run a program in the application master of an application on YARN; return its status."""
    with ExitStack() as life:
        yarn.reach(request.options, life)
        needs = yarn.needs(request)
        hadoop, shipment, python = yarn.shipped(ensure_jvm({}, False, life), request.options, life)
        settings = {
            **LAUNCH_DEFAULTS,
            "spark.app.name": Path(program.file).stem,
            **needs,
            **shipment,
            "spark.driver.memoryOverhead": f"{yarn.BESIDE_HEAP_MB}m",
            "spark.yarn.maxAppAttempts": "1",
            "spark.yarn.submit.waitAppCompletion": "false",
            **_of_the_master(python),
            # Not --py-files: pyspark would look for them where YARN does not put them, and complain.
            "spark.yarn.dist.pyFiles": ",".join(program.modules),
            **_listed_settings(request.options),
            **spark_values(request.options.conf),
        }
        command = _command("yarn", program, settings, life, deploy="cluster")
        cluster = settings_of(configuration_folder(request.options.hadoop_conf))
        watch = ApplicationWatch(hadoop, needs["spark.yarn.tags"], cluster, request.options.start_timeout)
        with watch.ending_on_interrupt():
            _hand_in(command)
            return watch.until_the_end()


def _of_the_master(python: str) -> dict[str, str]:
    ours = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, yarn.INSIDE: "1", "PYTHONUNBUFFERED": "1"}
    return {f"spark.yarn.appMasterEnv.{name}": value for name, value in ours.items()}


def _listed_settings(options: SessionOptions) -> dict[str, str]:
    return {"spark.jars": ",".join(comma_list(options.jars))} if options.jars else {}


def _command(
    master: str, program: Program, settings: Mapping[str, str], life: ExitStack, deploy: str | None = None
) -> list[str]:
    """Return the command line of spark-submit; settings go in a file, as others can read a command line."""
    where = ["--master", master, *(["--deploy-mode", deploy] if deploy else [])]
    script = str(Path(spark_home(), "bin", "spark-submit"))
    return [script, *where, "--properties-file", settings_file(settings, life), program.file, *program.args]


def _environment() -> dict[str, str]:
    # An empty PYSPARK_PYTHON would be taken for an interpreter.
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    return {**others, "SPARK_HOME": spark_home()}


def _hand_in(command: Sequence[str]) -> None:
    """Submit an application to YARN; show the launcher's output where it fails."""
    launch = subprocess.run(
        command,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    if launch.returncode:
        lines = [line for line in launch.stdout.splitlines() if not line.startswith(("\tat ", "    at "))]
        raise OrcaError(
            "spark-submit could not give the program to YARN. Its last words:\n" + "\n".join(lines[-15:]),
            code="submission-failed",
        )


class ApplicationWatch:
    """An application on YARN as this program follows it: its states, and its driver's output.

    Args:
        hadoop: The cluster.
        tag: The tag by which the application is found.
        settings: The cluster's settings.
        patience: Seconds that YARN may take to give a first container; None waits on.
    """

    def __init__(self, hadoop: Hadoop, tag: str, settings: Mapping[str, str], patience: float | None) -> None:
        self.hadoop, self.tag, self.settings, self.patience = hadoop, tag, settings, patience
        self._offset = 0
        self._logs = ""

    @contextlib.contextmanager
    def ending_on_interrupt(self) -> Any:
        """End the application when this program is interrupted or told to end."""
        before = signal.getsignal(signal.SIGTERM)
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            yield
        except KeyboardInterrupt:
            app = self.hadoop.tagged(self.tag)
            if app is not None and not app.ended:
                self.hadoop.kill(app.id)
                say(f"{app.id} was ended: this program was interrupted")
            raise
        finally:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGTERM, before)

    def until_the_end(self) -> int:
        """Show states and log until the application ends; return the status of its program."""
        state, wait = "", yarn.Wait(self.hadoop, self.patience)
        while True:
            app = self.hadoop.tagged(self.tag)
            if app is None:
                raise OrcaError(
                    "YARN does not know the application that it was given. Look at the ResourceManager.",
                    code="application-unknown",
                )
            if app.state != state:
                state = app.state
                at = f", see {app.tracking}" if app.state == "RUNNING" and app.tracking else ""
                say(f"{app.id} is {app.state}{at}")
            self._show_log(app)
            if app.ended:
                return self._end(app)
            if app.state == "RUNNING" or self.hadoop.has_container(app.id):
                wait = yarn.Wait(self.hadoop, self.patience)
            elif why := wait.go_on(app):
                raise OrcaError(why, code="application-failed")
            time.sleep(POLL)

    def _end(self, app: Application) -> int:
        wait_until(lambda: not self._show_log(app), LAST_WORDS, every=0.2)
        status = status_of(app)
        if status == 0:
            say(f"{app.id} ended {app.final}")
            return 0
        with contextlib.suppress(OSError, ValueError):
            if self._logs and "User application exited" not in app.diagnostics:  # Spark failed: its own log says why
                _write(sys.stderr, _contents(_fetch(f"{self._logs}/stderr?size={-LAST_BYTES}"), LAST_BYTES) + b"\n")
        say(f"{app.id} ended {app.final}: {app.diagnostics or 'it says nothing'}")
        return status

    def _show_log(self, app: Application) -> bool:
        """Show the driver's new output; tell whether there was any.

        Its standard output and its standard error come as one, the way Spark writes them.
        """
        try:
            self._logs = self._logs or self._log_address(app)
            if not self._logs:
                return False
            size = self._offset + PIECE
            piece = _contents(_fetch(f"{self._logs}/stdout?size={size}"), size)[self._offset :]
        except (OSError, ValueError) as error:  # it starts, or its node does not answer now
            log.debug("the log of %s: %s", app.id, error)
            return False
        self._offset += len(piece)
        _write(sys.stdout, piece)
        return bool(piece)

    def _log_address(self, app: Application) -> str:
        """Return the address of the log at the application master's node; '' before it runs."""
        pages = manager_pages(self.settings)
        if not pages:
            raise ValueError("yarn-site.xml does not tell the ResourceManager's web address")
        report = _fetch(f"http://{pages[0]}/ws/v1/cluster/apps/{app.id}")
        page = json.loads(report)["app"].get("amContainerLogs", "")
        parts = re.fullmatch(r"(https?://[^/]+)/node/containerlogs/([^/]+)/.*", page)
        return f"{parts.group(1)}/ws/v1/node/containers/{parts.group(2)}/logs" if parts else ""


def status_of(app: Application) -> int:
    """Return the status that a program would have ended with here."""
    if app.final == "SUCCEEDED":
        return 0
    status = re.search(r"(?:exited with status |[Ee]xit ?[Cc]ode:? ?)(\d+)", app.diagnostics)
    return int(status[1]) if status else 1


def _contents(page: bytes, size: int) -> bytes:
    """Return the contents of a log without the node's frame around them."""
    head, _, rest = page.partition(b"LogContents:\n")
    length = re.search(rb"LogLength:(\d+)", head)
    if length is None:
        raise ValueError("this is no page of a log")
    return rest[: min(int(length[1]), size)]


def _fetch(address: str) -> bytes:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a cluster is not behind the proxy
    request = urllib.request.Request(address, headers={"Accept": "application/json, text/plain, */*"})
    with direct.open(request, timeout=10) as answer:
        return bytes(answer.read())


def _write(stream: TextIO, piece: bytes) -> None:
    if piece:
        stream.write(piece.decode(errors="replace"))
        stream.flush()


# The command `orca submit`.


def main(argv: Sequence[str]) -> int:
    """Hand a program to Spark's launcher, as the command line says; return its status."""
    options = _parser().parse_args(argv)
    if not options.program:
        raise ArgumentError(
            "orca submit needs a program: orca submit [options] program.py [arguments].", code="missing-program"
        )
    file, *args = options.program
    if not os.path.isfile(file):
        raise ArgumentError(f"orca submit: there is no program {file}.", code="missing-program")
    keywords = {name: getattr(options, name) for name in OPTIONS if getattr(options, name) is not None}
    if options.no_ship_environment:
        keywords["ship_environment"] = False
    request = Request(options.cores, options.memory, options.num_nodes, SessionOptions(conf=options.conf, **keywords))
    modules = comma_list(options.py_files)
    if options.cluster_mode != "local":
        sys.path.insert(0, os.path.dirname(os.path.abspath(file)))  # where Python looks when it runs the file
        modules = [*modules, *map(str, environment.own_modules())]
    run = run_on_yarn if options.cluster_mode == "yarn-cluster" else partial(_run_here, options.cluster_mode)
    try:
        return run(Program(file, args, modules), request)
    except OrcaError:
        raise
    except Exception as error:  # of the JVM, or of its way there
        raise OrcaError(f"{file} was not started: {yarn.reason(error)}", code="program-not-started") from error


OPTIONS = (
    *("master", "queue", "driver_memory", "driver_cores", "hadoop_conf", "penv_archive", "python_location", "jars"),
    "start_timeout",
)


def _parser() -> argparse.ArgumentParser:
    modes = ["local", "standalone", "yarn-client", "yarn-cluster"]
    parser = argparse.ArgumentParser(
        prog="orca submit",
        parents=[cluster_options(modes, COUNT)],
        description="Start a program on a cluster with Spark's launcher. The program calls "
        "init_orca_context(cluster_mode='spark-submit'), or leaves cluster_mode out.",
    )
    parser.set_defaults(cluster_mode="local", cores=2)
    add_option(parser, "py_files", help="modules that go along, with commas between them")
    add_option(parser, "driver_memory", type=MEMORY, help="memory of the driver")
    add_option(parser, "driver_cores", type=COUNT, help="cores of the driver, on YARN")
    add_option(parser, "penv_archive", help="a packed environment for the nodes")
    add_option(parser, "jars", help="jars that go along, with commas between them")
    add_option(parser, "start_timeout", type=float, help="seconds that executors may take to start")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program's file and its arguments")
    return parser


def _run_here(mode: str, program: Program, request: Request) -> int:
    from orca.cluster.kinds import KINDS

    with ExitStack() as life:
        ensure_java()
        kind = KINDS[mode]
        settings = {**LAUNCH_DEFAULTS, **kind.settings(request, life)}
        python = request.options.python_location or sys.executable
        if mode == "yarn-client":
            with ExitStack() as upload:
                _, shipment, python = yarn.shipped(ensure_jvm({}, False, upload), request.options, upload)
                settings |= shipment
        if program.modules:
            settings["spark.submit.pyFiles"] = ",".join(program.modules)
        settings |= _listed_settings(request.options) | spark_values(request.options.conf)
        command = _command(settings.pop("spark.master"), program, settings, life)
        env = {**_environment(), "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
        if mode == "yarn-client":
            env[yarn.SUBMITTED] = f"{settings['spark.yarn.tags']} {request.options.start_timeout or ''}".strip()
        with subprocess.Popen(command, env=env) as process:
            while True:
                try:
                    return process.wait()
                except KeyboardInterrupt:  # it has got it too, and ends in its own way
                    continue
