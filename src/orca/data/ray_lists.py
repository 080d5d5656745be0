"""Lists in Ray: partitions in the object store that have the methods of an RDD which verbs ask for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any


class RayLists:
    """Partitions of elements, each a list in Ray. Results of its methods are computed in the background.

    Args:
        refs: References to the lists.
    """

    def __init__(self, refs: Sequence[Any]) -> None:
        self.refs = list(refs)
        self.ctx = self  # whose runJob it is

    def getNumPartitions(self) -> int:
        """Return how many partitions there are."""
        return len(self.refs)

    def map(self, function: Callable[[Any], Any]) -> RayLists:
        """Apply a function to every element."""
        return self.mapPartitionsWithIndex(partial(_mapped, function=function))

    def mapPartitions(self, function: Callable[[Iterator[Any]], Iterable[Any]]) -> RayLists:
        """Apply a function to the elements of every partition."""
        return self.mapPartitionsWithIndex(partial(_unnumbered, function=function))

    def mapPartitionsWithIndex(self, function: Callable[[int, Iterator[Any]], Iterable[Any]]) -> RayLists:
        """Apply a function to the number of every partition and its elements."""
        import ray

        work, function_ref = ray.remote(_listed), ray.put(function)
        return RayLists([work.remote(function_ref, number, ref) for number, ref in enumerate(self.refs)])

    def union(self, other: RayLists) -> RayLists:
        """Return the partitions of both."""
        return RayLists([*self.refs, *other.refs])

    def zip(self, other: RayLists) -> RayLists:
        """Return pairs of elements; partitions have the same lengths."""
        import ray

        pairs = ray.remote(_pairs)
        return RayLists([pairs.remote(*both) for both in zip(self.refs, other.refs, strict=True)])

    def partitionBy(self, parts: int, number_of: Callable[[Any], int]) -> RayLists:
        """Bring every (key, value) to the partition whose number is told of its key."""
        import ray

        deal, chain = ray.remote(_dealt).options(num_returns=parts), ray.remote(_chained)
        pieces: list[Any] = [deal.remote(ref, parts, number_of) for ref in self.refs]
        rows = [[piece] for piece in pieces] if parts == 1 else pieces
        return RayLists([chain.remote(*(row[number] for row in rows)) for number in range(parts)])

    def repartition(self, parts: int) -> RayLists:
        """Deal the elements out to partitions."""
        pairs = self.mapPartitionsWithIndex(partial(_numbered, parts=parts)).partitionBy(parts, int)
        return pairs.map(itemgetter(1))

    def collect(self) -> list[Any]:
        """Return all elements."""
        import ray

        return list(itertools.chain.from_iterable(ray.get(self.refs)))

    def toLocalIterator(self) -> Iterator[Any]:
        """Yield all elements, a partition at a time."""
        import ray

        for ref in self.refs:
            yield from ray.get(ref)

    def take(self, count: int) -> list[Any]:
        """Return the first elements."""
        return list(itertools.islice(self.toLocalIterator(), count))

    def first(self) -> Any:
        """Return the first element.

        Raises:
            ValueError: There is none, as of an RDD.
        """
        for element in self.toLocalIterator():
            return element
        raise ValueError("there are no shards.")

    def collectAsMap(self) -> dict[Any, Any]:
        """Return pairs as a dict."""
        return dict(self.collect())

    def sum(self) -> Any:
        """Return the sum of all elements."""
        return sum(self.collect())

    def runJob(self, lists: RayLists, function: Callable[[Iterator[Any]], Iterable[Any]], numbers: list[int]) -> Any:
        """Return a function's results for some of the partitions."""
        return RayLists([lists.refs[number] for number in numbers]).mapPartitions(function).collect()


# On workers


def _listed(function: Callable[[int, Iterator[Any]], Iterable[Any]], number: int, elements: list[Any]) -> list[Any]:
    return list(function(number, iter(elements)))


def _mapped(_: int, elements: Iterator[Any], function: Callable[[Any], Any]) -> Iterator[Any]:
    return map(function, elements)


def _unnumbered(_: int, elements: Iterator[Any], function: Callable[[Iterator[Any]], Iterable[Any]]) -> Iterable[Any]:
    return function(elements)


def _pairs(one: list[Any], other: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(one, other, strict=True))


def _dealt(pairs: list[tuple[Any, Any]], parts: int, number_of: Callable[[Any], int]) -> Any:
    lists: list[list[Any]] = [[] for _ in range(parts)]
    for pair in pairs:
        lists[number_of(pair[0]) % parts].append(pair)
    return lists if parts > 1 else lists[0]


def _chained(*lists: list[Any]) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


def _numbered(partition: int, elements: Iterator[Any], parts: int) -> Iterator[tuple[int, Any]]:
    return (((partition + place) % parts, element) for place, element in enumerate(elements))
