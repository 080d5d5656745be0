"""Options: the options of a cluster on the command line, which `orca doctor` and `orca submit` share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any


def cluster_options(modes: list[str], cores: Callable[[str], Any]) -> argparse.ArgumentParser:
    """Return the parser of the shared options, one of the `parents` of a command's own.

    Args:
        modes: The cluster modes that the command knows.
        cores: The type of `--cores`.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add_option(parser, "cluster_mode", choices=modes, help="as for init_orca_context")
    add_option(parser, "cores", type=cores, help="cores per node")
    add_option(parser, "memory", type=MEMORY, default="2g", help="memory per node, as 2g")
    add_option(parser, "num_nodes", type=COUNT, default=1, help="nodes")
    setting = "a setting of Spark; may be repeated"
    add_option(parser, "conf", action=_Conf, default={}, metavar="NAME=VALUE", help=setting)
    add_option(parser, "master", help="Spark's master, for standalone: spark://host:7077")
    add_option(parser, "hadoop_conf", help="the folder with Hadoop's configuration")
    add_option(parser, "queue", help="YARN's queue")
    add_option(parser, "python_location", help="the Python that the nodes have already")
    add_option(parser, "no_ship_environment", action="store_true", help="the nodes have this environment")
    return parser


def add_option(parser: argparse.ArgumentParser, name: str, **how: Any) -> None:
    """Add an option that is written with "_" or "-" between its words."""
    parser.add_argument(*dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")), **how)


class _Conf(argparse.Action):
    """A dict of the given NAME=VALUE."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        name, sign, value = values.partition("=")
        if not (name and sign):
            # Not the value itself: it may be a secret.
            parser.error("--conf takes NAME=VALUE, as spark.task.cpus=1; got one without a name or a '='.")
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), name: value})


def matching(pattern: str, legal: str, kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the type of an argument whose text matches a pattern."""

    def parse(text: str) -> Any:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"must be {legal}; got {text!r}")
        return kind(text)

    return parse


COUNT = matching(r"0*[1-9]\d*", "1, 2, 3, ...", int)
CORES_OR_ALL = matching(r"0*[1-9]\d*|\*", "1, 2, 3, ... or '*'", lambda text: text if text == "*" else int(text))
MEMORY = matching(r"(?i)[1-9]\d*\s*[kmgt]b?", "a number with a unit k, m, g or t, as 2g", str)
SECONDS = matching(r"(?=.*[1-9])\d+\.?\d*", "a number of seconds, as 60", float)
