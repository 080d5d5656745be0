"""Spans: which bytes of which files each task reads. Owns the sizes of tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orca.data.pandas.paths import DataFile

MOST_BYTES, OPENING_BYTES = 128 << 20, 4 << 20  # as in Spark: the most bytes of a task, the cost of opening a file


@dataclass(frozen=True)
class FileRange:
    """The lines of a file that begin in a range of bytes.

    Attributes:
        file: The file.
        start: The first byte.
        length: The number of bytes; None for the whole file.
    """

    file: DataFile
    start: int
    length: int | None


def cut(
    files: Sequence[DataFile],
    is_cuttable: Callable[[DataFile], bool],
    tasks: int,
    most: int = MOST_BYTES,
    opening: int = OPENING_BYTES,
) -> list[list[FileRange]]:
    """Return the spans that each task reads, in the order of the files; sizes are chosen as Spark does.

    Files of more than one round of tasks are read in rounds of one size, so that no core waits in the last one.

    Args:
        files: The files.
        is_cuttable: Returns whether a file may be read by several tasks.
        tasks: How many run at a time.
        most: The most bytes of a task.
        opening: The cost of opening a file, in bytes.

    Example:
        >>> groups = cut([DataFile("a", 5), DataFile("b", 2), DataFile("c", 1)], lambda file: True, 2, 100, 0)
        >>> [[(span.file.path, span.start, span.length) for span in group] for group in groups]
        [[('a', 0, 4)], [('a', 4, 1), ('b', 0, 2), ('c', 0, 1)]]
    """
    total = sum(file.size for file in files)
    rounds = max(1, -(-total // (tasks * most)))
    task_bytes = min(most, max(opening, -(-(total + opening * len(files)) // (tasks * rounds)), 1))
    groups: list[list[FileRange]] = [[]]
    group_bytes = 0
    for file in files:
        step = task_bytes if is_cuttable(file) else max(file.size, 1)
        for start in range(0, max(file.size, 1), step):
            length = min(step, file.size - start)
            if group_bytes and group_bytes + length > task_bytes:
                groups.append([])
                group_bytes = 0
            groups[-1].append(FileRange(file, start, length if is_cuttable(file) else None))
            group_bytes += length + opening
    return groups
