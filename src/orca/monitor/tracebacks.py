"""Tracebacks: what an error shows of them. Owns which frames are the user's, and how the others are summed up.

Tracebacks of workers are texts, and they stay texts: nothing that a worker sends is imported or evaluated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from types import CodeType
from typing import NamedTuple

import orca
from orca.monitor.verbosity import DEBUG_VARIABLE, is_debug

USER_FRAMES = 6  # frames of the user's code that are shown
REASON_LINES = 14  # lines of an error's own text that are shown
# The code of these is never the reason of a mistake in a program.
LIBRARIES = set(
    "torch keras tf_keras tensorflow mxnet openvino numpy pandas pyarrow scipy sklearn pyspark py4j ray cloudpickle "
    "fsspec torchmetrics tqdm horovod joblib multiprocess".split()
)
_HOME = os.path.dirname(os.path.abspath(orca.__file__))
_FRAME = re.compile(r'^ *File "(?P<file>[^"\n]*)", line (?P<line>\d+), in (?P<name>.*)(?:\n {4,}(?P<code>\S.*))?', re.M)
_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\.]+)|[/\\](pyspark|py4j)[^/\\]*\.zip[/\\]")
_STANDARD = re.compile(r"[/\\]lib(?:64)?[/\\]python3[^/\\]*[/\\]|^<frozen ", re.I)
_DURING = "\nDuring handling of the above exception, another exception occurred:\n"
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n"


class Frame(NamedTuple):
    """A frame of a traceback; `owner` is the library that it belongs to, "" for the user's own code."""

    file: str
    line: int
    name: str
    code: str
    owner: str

    def __str__(self) -> str:
        text = f'  File "{self.file}", line {self.line}, in {self.name}'
        return f"{text}\n    {self.code}" if self.code else text


def frames_of(text: str) -> list[Frame]:
    """Return the frames of a traceback or stack, the innermost first: those of the first cause before the others."""
    frames: list[Frame] = []
    for block in text.split(_DURING)[-1].split(_CAUSE):
        matches = list(_FRAME.finditer(block))
        frames += (
            Frame(match["file"], int(match["line"]), match["name"], (match["code"] or "").strip(), owner(match["file"]))
            for match in reversed(matches)
        )
    return frames


def owner(file: str) -> str:
    """Return the library that a file belongs to; "" where it is the user's."""
    if file.startswith(_HOME + os.sep) or re.search(r"[/\\]orca[^/\\]*\.zip[/\\]", file):
        return "orca"
    if packages := _PACKAGE.findall(file):
        name = next(filter(None, packages[-1]))
        return name if name in LIBRARIES or name == "orca" else ""
    return "Python" if _STANDARD.search(file) else ""


def digest(text: str, own: bool = False) -> str:
    """Return what an error shows of a traceback: the user's frames, the innermost first, and a word about the others.

    Args:
        text: The traceback, or the stack of a thread.
        own: Whether it is of an error of Orca's own, which says what to do: nothing, without a frame of the user's.

    Returns:
        Some lines; the whole text at the verbosity "debug".
    """
    if is_debug() or not text.strip():
        return text.rstrip()
    frames = frames_of(text)
    users = [frame for frame in frames if not frame.owner]
    if own and not users:
        return ""
    if not users:
        users = [frame for frame in frames if frame.owner not in ("orca", "Python")][:1]
    shown = users[:USER_FRAMES]
    lines = [str(frame) for frame in shown]
    rest = [frame.owner or "your code" for frame in frames if frame not in shown]
    if rest:
        lines.append(f"  ... {len(rest)} frames of {_listed(rest)} ({DEBUG_VARIABLE}=1 shows all)")
    if not own and shown and not shown[0].owner and text.startswith("Traceback"):  # a stack has no error to correct
        place = f"{os.path.basename(shown[0].file)}:{shown[0].line}"
        lines.append(f"Correct the code at {place}; what it prints on a worker appears here, with its rank.")
    return "\n".join(lines)


def shortened(reason: str) -> str:
    """Return the text of an error, without its middle where it is long: TensorFlow writes pages."""
    lines = reason.splitlines()
    if len(lines) <= REASON_LINES or is_debug():
        return reason
    half = REASON_LINES // 2
    return "\n".join(
        [*lines[:half], f"... ({len(lines) - 2 * half} more lines; {DEBUG_VARIABLE}=1 shows all)", *lines[-half:]]
    )


def _listed(owners: Iterable[str]) -> str:
    names = sorted(set(owners), key=lambda name: (name in ("orca", "Python"), name))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def cut_below(error: BaseException, code: CodeType) -> None:
    """Cut the traceback of an error behind the first frame of this code, unless every detail is shown."""
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code is not code:
        entry = entry.tb_next
    if entry is not None and not is_debug():
        entry.tb_next = None
