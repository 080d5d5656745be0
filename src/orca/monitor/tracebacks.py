"""Tracebacks: what an error shows of them. Owns which frames are the user's, and how the others are summed up.

Tracebacks of workers are texts, and they stay texts: nothing that a worker sends is imported or evaluated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from types import CodeType, TracebackType
from typing import NamedTuple

import orca
from orca.monitor.verbosity import DEBUG_VARIABLE, is_debug

USER_FRAMES = 6  # frames of the user's code that are shown
REASON_LINES = 14  # lines of an error's own text that are shown
LINE_WIDTH = 2000  # characters of such a line that are shown
# The code of these is never the reason of a mistake in a program.
LIBRARIES = set(
    "torch keras tf_keras tensorflow mxnet openvino numpy pandas pyarrow scipy sklearn pyspark py4j ray cloudpickle "
    "fsspec torchmetrics tqdm horovod joblib multiprocess".split()
)
_homes = [os.path.dirname(os.path.abspath(orca.__file__))]  # of packages whose frames are not the user's code
# faulthandler writes no comma before "in", and the innermost frame first.
_FRAME = re.compile(
    r'^ *File "(?P<file>[^"\n]*)", line (?P<line>\d+),? in (?P<name>.*)(?:\n {4,}(?P<code>\S.*))?', re.M
)
_GROUP_MARGIN = re.compile(r"^ +[|+] ?", re.M)  # of the tracebacks in an ExceptionGroup's
_LAYER = re.compile(r"[/\\]torch[/\\]nn[/\\](modules|functional)")
# In the text of an error that torch brings from a process of a DataLoader; the frames are in the traceback as well.
_INNER_TRACEBACK = re.compile(r"\nOriginal Traceback \(most recent call last\):\n(?: .*\n)*")
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
    for block in _GROUP_MARGIN.sub("", text).split(_DURING)[-1].split(_CAUSE):
        found = [
            Frame(match["file"], int(match["line"]), match["name"], (match["code"] or "").strip(), owner(match["file"]))
            for match in _FRAME.finditer(block)
        ]
        frames += found if "(most recent call first)" in block else reversed(found)
    return frames


def add_home(folder: str) -> None:
    """Count the frames of a package that builds on this one as ours, not as the user's."""
    if folder not in _homes:
        _homes.append(folder)


def owner(file: str) -> str:
    """Return the library that a file belongs to; "" where it is the user's."""
    if any(file.startswith(home + os.sep) for home in _homes) or re.search(r"[/\\]orca[^/\\]*\.zip[/\\]", file):
        return "orca"
    if packages := _PACKAGE.findall(file):
        name = next(filter(None, packages[-1]))
        if name in map(os.path.basename, _homes):
            return "orca"
        return name if name in LIBRARIES else ""
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
    is_error = text.lstrip(" +").startswith(("Traceback", "Exception Group"))  # else a stack: nothing to correct
    if is_error and users and not (own and frames[0].owner):
        lines += _remedy(users[0])
    return "\n".join(lines)


def _remedy(frame: Frame) -> list[str]:
    """Return what to do about the error that a frame raised."""
    if not frame.owner:
        place = f"{os.path.basename(frame.file)}:{frame.line}"
        return [f"Correct the code at {place}."]
    if _LAYER.search(frame.file):
        return ["It was called with your data: check that the shapes and types of features and labels fit the model."]
    return []


def shortened(reason: str) -> str:
    """Return the text of an error, without its middle where it is long: TensorFlow writes pages."""
    if is_debug():
        return reason
    half, all_of_it = REASON_LINES // 2, f"{DEBUG_VARIABLE}=1 shows all"
    lines = _INNER_TRACEBACK.sub("\n", reason).splitlines()
    if len(lines) > REASON_LINES:
        lines = [*lines[:half], f"... ({len(lines) - 2 * half} more lines; {all_of_it})", *lines[-half:]]
    cut = (f"{line[:LINE_WIDTH]}... ({len(line) - LINE_WIDTH} more characters; {all_of_it})" for line in lines)
    return "\n".join(line if len(line) <= LINE_WIDTH else short for line, short in zip(lines, cut, strict=True))


def _listed(owners: Iterable[str]) -> str:
    names = sorted(set(owners), key=lambda name: (name in ("orca", "Python"), name))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def cut_below(error: BaseException, code: CodeType) -> None:
    """Cut the traceback of an error behind the first frame of this code, unless every detail is shown."""
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code is not code:
        entry = entry.tb_next
    if entry is not None and not is_debug():
        _link([entry])


def cut_between(error: BaseException, code: CodeType) -> None:
    """Leave in the traceback of an error only the user's frames below the first frame of this code.

    Without one, all stays: the mistake may be ours. All stays as well if every detail is shown.
    """
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code is not code:
        entry = entry.tb_next
    if entry is None or is_debug():
        return
    users, below = [], entry.tb_next
    while below is not None:
        if not owner(below.tb_frame.f_code.co_filename):
            users.append(below)
        below = below.tb_next
    if users:
        _link([entry, *users])


def shows_cause(error: BaseException) -> bool:
    """Return whether an error of ours is shown with the error behind it.

    One with a frame of the user's code is where the mistake is; of a library's, ours says all. At "debug" each is.
    """
    cause = error.__cause__ or error.__context__
    entry = None if cause is None else cause.__traceback__
    while entry is not None:
        if not owner(entry.tb_frame.f_code.co_filename):
            return True
        entry = entry.tb_next
    return is_debug()


def _link(entries: Sequence[TracebackType]) -> None:
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        entry.tb_next = following
