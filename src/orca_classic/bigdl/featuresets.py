"""Featuresets: images, texts and other data that BigDL's programs hold. Owns sets here and in RDDs, with one set of verbs.

A set has `to_samples()`, which returns an RDD or a list of Samples: it can be passed in place of data.
"""

from __future__ import annotations

import copy
import inspect
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from orca.errors import ArgumentError, DataError, NotSupported
from orca.storage.files import filesystem
from orca_classic.bigdl.feature.files import (
    FileReader,
    classes_of,
    content_of,
    files_at,
    is_rdd,
    lines_of,
    mapped,
    records_of,
)
from orca_classic.bigdl.feature.image import ImageFeature, decoded, resized
from orca_classic.bigdl.feature.preprocessing import ChainedPreprocessing, Preprocessing
from orca_classic.zoo.sample import Sample

Row = TypeVar("Row")
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")


def _labelled(kind: Callable[..., Any], values: Any, labels: Any) -> Any:
    """Return rows of values and labels (None for no labels): a list of lists, or an RDD of RDDs."""
    if is_rdd(values):
        pairs = values.map(lambda value: (value, None)) if labels is None else values.zip(labels)
    else:
        pairs = zip(values, [None] * len(values) if labels is None else labels, strict=True)
    return mapped(pairs, lambda pair: kind(*pair))


def _getter(words: str, value: Callable[..., Any]) -> Any:
    """Return a method of a set that returns `value(row, ...)` of each row, with the arguments of `value`."""
    _, *own = inspect.signature(value).parameters.values()

    def get(self: RowSet, *args: Any, **kwargs: Any) -> Any:
        binding = inspect.Signature(own).bind(*args, **kwargs)
        return mapped(self.rows, lambda row: value(row, *binding.args, **binding.kwargs))

    get.__doc__ = words
    return get


def _image(content: bytes, label: int | None, path: str, height: int, width: int, codec: int) -> ImageFeature:
    mat = decoded(content, codec, path)
    mat = resized(mat, height, width) if height > 0 and width > 0 else mat
    return ImageFeature(mat, None if label is None else np.float32(label), path)


def _file_row(content: bytes, label: int | None, path: str) -> tuple[str, bytearray]:
    return path, bytearray(content)


def _of_file(row: Sequence[Any]) -> ImageFeature:
    """Return the image of a row with the path and the bytes of its file."""
    feature = ImageFeature(path=row[0])
    feature["bytes"] = bytes(row[1])
    return feature


def _whole_text(content: bytes, label: int | None, path: str) -> TextFeature:
    return TextFeature(content.decode("utf-8", "replace"), label, path)


# Sets.


class RowSet:
    """Rows of one kind here (a list) or in an RDD, with the verbs that images and texts share.

    `index` maps the names of folders to labels, or words to their numbers.
    """

    kinds: ClassVar[tuple[type[RowSet], type[RowSet]]]  # the class of rows here, and of rows in an RDD
    _sample: ClassVar[Any]  # a function that returns the Sample of a row

    def __init__(self, rows: Any, index: dict[str, int] | None = None) -> None:
        self.rows, self.index = rows, index

    @classmethod
    def of(cls, rows: Any, index: dict[str, int] | None = None) -> Self:
        """Return the set of rows, here or in an RDD."""
        instance: Any = object.__new__(cls.kinds[is_rdd(rows)])
        RowSet.__init__(instance, rows, index)
        return instance  # type: ignore[no-any-return]

    def is_local(self) -> bool:
        """Say whether the rows are here."""
        return not is_rdd(self.rows)

    def is_distributed(self) -> bool:
        """Say whether the rows are in an RDD."""
        return is_rdd(self.rows)

    def transform(self, transformer: Preprocessing) -> Self:
        """Return the rows after a preprocessing; those of this set do not change."""
        return self.of(mapped(self.rows, _Step(transformer)), self.index)

    def random_split(self, weights: Sequence[float]) -> list[Self]:
        """Return the rows split at random, in these shares."""
        if self.is_distributed():
            return [self.of(part, self.index) for part in self.rows.randomSplit(list(weights))]
        places = random.choices(range(len(weights)), weights, k=len(self.rows))
        parts: list[list[Any]] = [[] for _ in weights]
        for place, row in zip(places, self.rows, strict=True):
            parts[place].append(row)
        return [self.of(part, self.index) for part in parts]

    def to_samples(self) -> Any:
        """Return the Samples of all rows, as a list or an RDD."""
        return mapped(self.rows, self._sample)

    def predicted_by(self, net: Any, size: int = 32) -> Self:
        """Return the rows with the predictions of a model, which gets `size` rows at a time."""
        from orca_classic.bigdl.training import answered

        return self.of(answered(net, self.rows, size, self._sample, partial(_with, "predict")), self.index)


def _paired(rows: Any, values: Any) -> Any:
    """Return pairs of rows and values, lists or RDDs in any partitions, in the order of the rows."""
    if not is_rdd(rows):
        return list(zip(rows, values.collect() if is_rdd(values) else values, strict=True))
    others = values if is_rdd(values) else rows.context.parallelize(list(values))
    if rows.count() != others.count():
        raise DataError(f"there must be a label for each image; got {others.count()} for {rows.count()} images.")
    first, second = (each.zipWithIndex().map(lambda pair: pair[::-1]) for each in (rows, others))
    return first.join(second).sortByKey(numPartitions=rows.getNumPartitions()).values()


def _with(key: str, row: Row, value: Any) -> Row:
    """Return a copy of an image or a text with one more part."""
    twin: Any = copy.copy(row)
    twin.parts = {**twin.parts, key: value}
    return twin  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Step:
    """A preprocessing of a copy of one row."""

    step: Preprocessing

    def __call__(self, row: Any) -> Any:
        twin = copy.copy(row)
        if hasattr(row, "parts"):
            twin.parts = dict(row.parts)
        (result,) = self.step.apply([twin])
        return result


# Images.


class ImageSet(RowSet):
    """Images with labels, here or in an RDD. Make one with `read`, LocalImageSet or DistributedImageSet."""

    @classmethod
    def read(cls, path: str, sc: Any = None, min_partitions: int = 1, resize_height: int = -1, resize_width: int = -1,
             image_codec: int = -1, with_label: bool = False, one_based_label: bool = True) -> ImageSet:  # fmt: skip
        """Return the images of a folder, a pattern or a file, at any fsspec path.

        Args:
            path: The path.
            sc: The SparkContext for an RDD, whose workers read the images; without it they are read here.
            min_partitions: Partitions of the RDD.
            resize_height: The height to resize to.
            resize_width: The width to resize to.
            image_codec: -1 as the file is, 0 gray, 1 in colours.
            with_label: Whether the names of the folders of images are their labels.
            one_based_label: Whether labels count from 1, else from 0.
        """
        paths = files_at(path, IMAGES)
        labels = classes_of(path, paths, int(one_based_label)) if with_label else {}
        row = partial(_image, height=resize_height, width=resize_width, codec=image_codec)
        return cls.of(FileReader(row, labels).all(paths, sc, min_partitions), labels or None)

    @staticmethod
    def from_rdds(image_rdd: Any, label_rdd: Any = None) -> DistributedImageSet:
        """Return the set of an RDD of arrays, and perhaps one of labels."""
        return DistributedImageSet(image_rdd, label_rdd)

    @staticmethod
    def from_image_frame(image_frame: ImageSet) -> ImageSet:
        """Return the images of a frame, which is a set of images itself."""
        return image_frame

    @classmethod
    def write_parquet(cls, path: str, output: str, sc: Any, partition_num: int = 1) -> None:
        """Write the image files of a folder or a pattern as Parquet with the columns uri and image.

        Args:
            path: The path of the images.
            output: The folder of the Parquet files, which Spark writes.
            sc: The SparkContext.
            partition_num: How many files to write.
        """
        from pyspark.sql import SparkSession

        rows = FileReader(_file_row).all(files_at(path, IMAGES), sc, partition_num)
        SparkSession(sc).createDataFrame(rows, "uri string, image binary").write.parquet(output)

    @classmethod
    def read_parquet(cls, path: str, sc: Any) -> ImageSet:
        """Return the images of Parquet files with the columns uri and image, in an RDD."""
        return cls.of(records_of(path, sc, ("uri", "image")).map(_of_file))

    def to_image_frame(self) -> ImageSet:
        """Return the images as a frame, which has the same verbs."""
        return self

    @property
    def label_map(self) -> dict[str, int] | None:
        """The label of each folder's name, if `read` found labels."""
        return self.index

    get_image = _getter(
        "Return the images as arrays, (channels, height, width) unless to_chw is False.",
        lambda row, key="floats", to_chw=True: row.get_image(key, to_chw),
    )
    get_label = _getter("Return the labels.", ImageFeature.get_label)
    get_predict = _getter(
        "Return (uri, prediction) of each image.", lambda row, key="predict": (row.get("uri"), row.get(key))
    )
    get_uri = _getter("Return the URIs of the images.", lambda row, key="uri": row.get(key))

    def get_sample(self, key: str = "sample") -> Any:
        """Return the Samples that ImageSetToSample made, or those of tensors and labels."""
        return self.to_samples()

    def set_label(self, label: Any) -> ImageSet:
        """Set the labels: a list, or an RDD in the order of the images."""
        self.rows = mapped(_paired(self.rows, label), lambda pair: _with("label", *pair))
        return self

    @staticmethod
    def _sample(row: ImageFeature) -> Sample:
        sample, label = row.get("sample"), row.get_label()
        if isinstance(sample, Sample):
            return sample
        inputs, targets = sample or ([row.tensor], [] if label is None else [label])  # as ImageSetToSample makes them
        labels = Sample.from_ndarray(0, list(targets)).labels if targets else []
        return Sample(Sample.from_ndarray(list(inputs), 0).features, labels)


class LocalImageSet(ImageSet):
    """Images here: arrays (height, width, BGR), and perhaps labels."""

    def __init__(self, image_list: Any = None, label_list: Any = None, jvalue: Any = None) -> None:
        super().__init__(_labelled(ImageFeature, image_list, label_list))


class DistributedImageSet(ImageSet):
    """Images in an RDD of arrays (height, width, BGR), and perhaps one of labels."""

    def __init__(self, image_rdd: Any = None, label_rdd: Any = None, jvalue: Any = None) -> None:
        super().__init__(_labelled(ImageFeature, image_rdd, label_rdd))


ImageSet.kinds = LocalImageSet, DistributedImageSet


# Texts.


def _part(key: str, words: str, default: Any = None) -> Any:
    """Return a method of a text that returns a part of it."""

    def get(self: TextFeature) -> Any:
        return self.parts.get(key, default)

    get.__doc__ = words
    return get


class TextFeature:
    """A text with its parts: label, uri, tokens, indexedTokens and Sample."""

    def __init__(self, text: str | None = None, label: Any = None, uri: str | None = None, jvalue: Any = None) -> None:
        values = {"text": text, "label": label, "uri": uri}
        self.parts: dict[str, Any] = {key: value for key, value in values.items() if value is not None}

    get_text = _part("text", "Return the text.")
    get_label = _part("label", "Return the label, -1 where there is none.", -1)
    get_uri = _part("uri", "Return the URI of the text.")
    get_tokens = _part("tokens", "Return the words, after a Tokenizer.")
    get_sample = _part("sample", "Return the Sample, after a TextFeatureToSample.")

    def has_label(self) -> bool:
        """Say whether there is a label."""
        return "label" in self.parts

    def set_label(self, label: Any) -> TextFeature:
        """Set the label."""
        self.parts["label"] = label
        return self

    def keys(self) -> list[str]:
        """Return the names of its parts."""
        return list(self.parts)

    def need(self, key: str, step: str) -> Any:
        """Return a part that a step must have made."""
        if key not in self.parts:
            raise DataError(f"a text has no {key} yet. Call {step} first; it has {', '.join(self.parts)}.")
        return self.parts[key]


@dataclass(frozen=True)
class TextTransformer(Preprocessing):
    """A step on texts, which computes one part of a text from another."""

    makes: ClassVar[str] = "text"
    needs: ClassVar[tuple[str, str]] = ("text", "TextSet.read")  # the part that it needs, and the step that makes it

    def apply(self, rows: Any) -> Any:
        """Return the texts with the new part."""
        return [self.transform(row) for row in rows]

    def transform(self, text_feature: TextFeature) -> TextFeature:
        """Return one text with the new part."""
        return _with(self.makes, text_feature, self._made(text_feature.need(*self.needs)))

    def _made(self, part: Any) -> Any:
        return part


class Tokenizer(TextTransformer):
    """A text split into words at blanks."""

    makes, needs = "tokens", ("text", "TextSet.read")

    def _made(self, part: str) -> list[str]:
        return part.split()


class Normalizer(TextTransformer):
    """Words in lower case, letters alone; words without letters are dropped."""

    makes, needs = "tokens", ("tokens", "tokenize()")

    def _made(self, part: list[str]) -> list[str]:
        words = (re.sub("[^a-zA-Z]", "", word).lower() for word in part)
        return [word for word in words if word]


@dataclass(frozen=True)
class WordIndexer(TextTransformer):
    """Words as their numbers; words without one are dropped."""

    map: dict[str, int]
    makes, needs = "indexedTokens", ("tokens", "tokenize()")

    def _made(self, part: list[str]) -> list[int]:
        return [self.map[word] for word in part if word in self.map]


@dataclass(frozen=True)
class SequenceShaper(TextTransformer):
    """Sequences of one length: longer ones lose their first ("pre") or last ("post") numbers, shorter ones are padded."""

    len: int
    trunc_mode: str = "pre"
    pad_element: int = 0
    makes, needs = "indexedTokens", ("indexedTokens", "word2idx()")

    def __post_init__(self) -> None:
        if self.trunc_mode not in ("pre", "post"):
            raise ArgumentError(f"trunc_mode must be 'pre' or 'post'; got {self.trunc_mode!r}.")
        if isinstance(self.len, bool) or not isinstance(self.len, int) or self.len < 1:
            raise ArgumentError(f"the length of a sequence must be a positive whole number; got {self.len!r}.")

    def _made(self, part: list[int]) -> list[int]:
        numbers = part[-self.len :] if self.trunc_mode == "pre" else part[: self.len]
        return numbers + [self.pad_element] * (self.len - len(numbers))


class TextFeatureToSample(TextTransformer):
    """A text as a Sample of its numbers, and of its label if it has one."""

    makes, needs = "sample", ("indexedTokens", "word2idx() and shape_sequence()")

    def transform(self, text_feature: TextFeature) -> TextFeature:
        """Return the text with its Sample."""
        whole = Sample.from_ndarray(np.array(text_feature.need(*self.needs), np.float32), text_feature.get_label())
        return _with("sample", text_feature, whole if text_feature.has_label() else Sample(whole.features, []))


class TextSet(RowSet):
    """Texts with labels, here or in an RDD."""

    def __init__(self, texts: Any = None, labels: Any = None, jvalue: Any = None) -> None:
        super().__init__(_labelled(TextFeature, texts, labels))

    @classmethod
    def read(cls, path: str, sc: Any = None, min_partitions: int = 1) -> TextSet:
        """Return the text files of a folder whose folders are the classes, which count from 0."""
        paths = files_at(path)
        return cls.of(FileReader(_whole_text, classes_of(path, paths, 0)).all(paths, sc, min_partitions))

    @classmethod
    def read_csv(cls, path: str, sc: Any = None, min_partitions: int = 1) -> TextSet:
        """Return the texts of files with lines `id,text`."""
        return cls.of(mapped(lines_of(path, sc, min_partitions), lambda line: _text(*_cells(line, 2))))

    @classmethod
    def read_parquet(cls, path: str, sc: Any = None) -> TextSet:
        """Return the texts of Parquet files with the columns id and text."""
        return cls.of(mapped(records_of(path, sc, ("id", "text")), lambda row: _text(*row)))

    @classmethod
    def from_relation_pairs(cls, relations: Any, corpus1: TextSet, corpus2: TextSet) -> TextSet:
        """Return Samples of (2, length): for each first text, a related second text above an unrelated one."""
        return cls._related(relations, corpus1, corpus2, _pairs)

    @classmethod
    def from_relation_lists(cls, relations: Any, corpus1: TextSet, corpus2: TextSet) -> TextSet:
        """Return a Sample of (count, length) for each first text, with all second texts of its relations."""
        return cls._related(relations, corpus1, corpus2, lambda group: [group])

    @classmethod
    def _related(cls, relations: Any, corpus1: TextSet, corpus2: TextSet, cut: Callable[[Any], Any]) -> TextSet:
        first, second = (mapped(corpus.rows, _numbered) for corpus in (corpus1, corpus2))
        kinds = [is_rdd(each) for each in (relations, first, second)]
        if len(set(kinds)) > 1:
            raise ArgumentError("relations and both corpora must be all here, or all in RDDs. Use to_local().")
        if kinds[0]:
            others = relations.map(lambda each: (each.id2, each)).leftOuterJoin(second).map(_other)
            groups = others.groupByKey().leftOuterJoin(first)
            rows = groups.flatMap(lambda group: _related_rows(group[0], group[1][1], group[1][0], cut))
        else:
            first_texts, second_texts = dict(first), dict(second)
            others = {}
            for each in relations:
                others.setdefault(each.id1, []).append(_other((each.id2, (each, second_texts.get(each.id2))))[1])
            rows = [row for id1, mine in others.items() for row in _related_rows(id1, first_texts.get(id1), mine, cut)]
        return cls.of(rows)

    def to_distributed(self, sc: Any = None, partition_num: int = 4) -> TextSet:
        """Return the texts in an RDD."""
        if self.is_distributed():
            return self
        from pyspark import SparkContext

        return self.of((sc or SparkContext.getOrCreate()).parallelize(self.rows, partition_num), self.index)

    def to_local(self) -> TextSet:
        """Return the texts here."""
        return self.of(self.rows.collect() if self.is_distributed() else self.rows, self.index)

    def tokenize(self) -> TextSet:
        """Return the texts with their words."""
        return self.transform(Tokenizer())

    def normalize(self) -> TextSet:
        """Return the texts with words in lower case."""
        return self.transform(Normalizer())

    def generate_word_index_map(self, remove_topN: int = 0, max_words_num: int = -1, min_freq: int = 1,
                                existing_map: dict[str, int] | None = None) -> dict[str, int]:  # fmt: skip
        """Return the number of each word, from 1 on, the most frequent first; `get_word_index` returns it afterwards.

        Args:
            remove_topN: How many of the most frequent words to leave out.
            max_words_num: How many words at most; -1 for all.
            min_freq: How often a word must occur.
            existing_map: Numbers that words have already; new words follow.
        """
        words = mapped(self.rows, lambda row: row.need("tokens", "tokenize()"))
        if is_rdd(words):
            counts = words.flatMap(lambda some: Counter(some).items()).reduceByKey(lambda a, b: a + b).collectAsMap()
        else:
            counts = Counter(word for some in words for word in some)
        order = sorted((word for word, count in counts.items() if count >= min_freq), key=lambda w: (-counts[w], w))
        self.index = dict(existing_map or {})
        new = [word for word in order[remove_topN:] if word not in self.index]
        limit = None if max_words_num < 0 else max_words_num
        self.index |= {word: number for number, word in enumerate(new[:limit], max(self.index.values(), default=0) + 1)}
        return self.index

    def word2idx(self, remove_topN: int = 0, max_words_num: int = -1, min_freq: int = 1,
                 existing_map: dict[str, int] | None = None) -> TextSet:  # fmt: skip
        """Return the texts with the numbers of their words, by the set's word index or by a new one."""
        index = self.index
        if index is None or existing_map is not None:
            index = self.of(self.rows).generate_word_index_map(remove_topN, max_words_num, min_freq, existing_map)
        elif (remove_topN, max_words_num, min_freq) != (0, -1, 1):
            raise ArgumentError(
                "these texts have a word index already, and word2idx would ignore remove_topN, max_words_num and "
                "min_freq. Leave them out, or start with texts without an index."
            )
        return self.transform(WordIndexer(index)).set_word_index(index)

    def shape_sequence(self, len: int, trunc_mode: str = "pre", pad_element: int = 0) -> TextSet:
        """Return the texts with `len` numbers each."""
        return self.transform(SequenceShaper(len, trunc_mode, pad_element))

    def generate_sample(self) -> TextSet:
        """Return the texts with Samples."""
        return self.transform(TextFeatureToSample())

    def get_word_index(self) -> dict[str, int] | None:
        """Return the number of each word."""
        return self.index

    def set_word_index(self, vocab: dict[str, int]) -> TextSet:
        """Set the number of each word."""
        self.index = dict(vocab)
        return self

    def save_word_index(self, path: str) -> None:
        """Write the number of each word as JSON."""
        if self.index is None:
            raise ArgumentError("these texts have no word index yet. Call word2idx(), and save that of its result.")
        fs, place = filesystem(path)
        fs.pipe_file(place, json.dumps(self.index).encode())

    def load_word_index(self, path: str) -> TextSet:
        """Read the number of each word."""
        return self.set_word_index(json.loads(content_of(path)))

    get_texts = _getter("Return the texts.", TextFeature.get_text)
    get_uris = _getter("Return the URIs of the texts.", TextFeature.get_uri)
    get_labels = _getter("Return the labels, -1 where there is none.", TextFeature.get_label)
    get_samples = _getter("Return the Samples.", TextFeature.get_sample)
    get_predicts = _getter(
        "Return (uri, prediction) of each text.", lambda row: (row.get_uri(), row.parts.get("predict"))
    )

    @staticmethod
    def _sample(row: TextFeature) -> Sample:
        sample: Sample = row.need("sample", "generate_sample()")
        return sample


class LocalTextSet(TextSet):
    """Texts here, and perhaps labels."""


class DistributedTextSet(TextSet):
    """Texts in an RDD, and perhaps an RDD of labels."""


TextSet.kinds = LocalTextSet, DistributedTextSet


# Relations.


@dataclass(frozen=True)
class Relation:
    """Whether two texts are related: 1, or 0."""

    id1: str
    id2: str
    label: int

    def to_tuple(self) -> tuple[str, str, int]:
        """Return its parts."""
        return self.id1, self.id2, self.label


class Relations:
    """Relations in files."""

    @staticmethod
    def read(path: str, sc: Any = None, min_partitions: int = 1) -> Any:
        """Return the relations of files with lines `id1,id2,label`: a list, or an RDD with sc."""
        return mapped(lines_of(path, sc, min_partitions), lambda line: _relation(*_cells(line, 3)))

    @staticmethod
    def read_parquet(path: str, sc: Any = None) -> Any:
        """Return the relations of Parquet files with the columns id1, id2 and label."""
        return mapped(records_of(path, sc, ("id1", "id2", "label")), lambda row: _relation(*row))


def _relation(id1: str, id2: str, label: Any) -> Relation:
    return Relation(str(id1), str(id2), int(label))


def _text(uri: Any, text: str) -> TextFeature:
    return TextFeature(text, uri=str(uri))


def _cells(line: str, count: int) -> list[str]:
    """Return the cells of a line; the last one may have commas."""
    cells = line.split(",", count - 1)
    if len(cells) < count:
        raise DataError(f"each line must have {count} cells with commas between them; got {line!r:.80}.")
    return cells


def _numbered(row: TextFeature) -> tuple[str, list[int]]:
    return row.get_uri(), row.need("indexedTokens", "word2idx() and shape_sequence()")


def _other(item: tuple[str, tuple[Relation, list[int] | None]]) -> tuple[str, tuple[str, int, list[int]]]:
    """Return the first text's id with the second's, the label, and the second's numbers."""
    _, (each, indices) = item
    if indices is None:
        raise DataError(f"the second corpus has no text {each.id2!r}, which {each} names.")
    return each.id1, (each.id2, each.label, indices)


def _pairs(group: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield each related text of a group together with each unrelated one."""
    for good in (each for each in group if each[1] > 0):
        yield from ((good, bad) for bad in group if bad[1] <= 0)


def _related_rows(id1: str, indices: list[int] | None, others: Iterable[Any], cut: Callable[[Any], Any]) -> list[Any]:
    if indices is None:
        raise DataError(f"the first corpus has no text {id1!r}, which relations name.")
    rows = []
    for group in cut(sorted(others, key=lambda other: other[0])):  # the same on any number of partitions
        texts = np.array([[*indices, *numbers] for _, _, numbers in group], np.float32)
        labels = np.array([[int(label > 0) if cut is _pairs else label] for _, label, _ in group], np.float32)
        rows.append(_with("sample", TextFeature(uri=id1), Sample.from_ndarray(texts, labels)))
    return rows


# Any data.


class FeatureSet:
    """Data for training, and whether each epoch reads it in a new order. Make one with its class methods."""

    def __init__(self, data: Any = None, shuffle: bool = True, memory_type: str = "DRAM") -> None:
        if not re.fullmatch(r"DRAM|PMEM|DIRECT|DISK_\d+", memory_type.upper()):
            raise ArgumentError(f"memory_type must be DRAM, PMEM, DIRECT or DISK_n; got {memory_type!r}.")
        self.data, self.shuffle = data, shuffle

    @classmethod
    def image_set(cls, imageset: Any, memory_type: str = "DRAM", sequential_order: bool = False, shuffle: bool = True) -> FeatureSet:  # fmt: skip
        """Return the set of an ImageSet."""
        return cls(imageset, shuffle and not sequential_order, memory_type)

    @classmethod
    def sample_rdd(cls, rdd: Any, memory_type: str = "DRAM", sequential_order: bool = False, shuffle: bool = True) -> FeatureSet:  # fmt: skip
        """Return the set of an RDD of Samples."""
        return cls(rdd, shuffle and not sequential_order, memory_type)

    image_frame = image_set
    rdd = sample_rdd

    @classmethod
    def tf_dataset(cls, func: Callable[[], Any], total_size: int) -> FeatureSet:
        """Return the set of a function that makes, on each worker, a tf.data.Dataset of batches (x, y)."""
        return cls(lambda config, batch_size: func())

    @classmethod
    def pytorch_dataloader(cls, dataloader: Any, features: str = "_data[0]", labels: str = "_data[1]") -> FeatureSet:
        """Return the set of a DataLoader, or of a function that makes one on each worker."""
        if (features, labels) != ("_data[0]", "_data[1]"):
            raise NotSupported(
                "features and labels are the first and second of a batch: let the DataLoader collate them so."
            )
        return cls(dataloader)

    def transform(self, transformer: Preprocessing) -> FeatureSet:
        """Return the set after a preprocessing of its images, texts or rows."""
        data, step = self.data, _Step(transformer)
        return FeatureSet(
            data.transform(transformer) if hasattr(data, "transform") else mapped(data, step), self.shuffle
        )

    def to_dataset(self) -> FeatureSet:
        """Return the set itself."""
        return self

    def get_image_frame(self) -> Any:
        """Return the images."""
        return self.data

    def to_samples(self) -> Any:
        """Return the data."""
        return self.data


def Pipeline(transformers: Sequence[Preprocessing]) -> ChainedPreprocessing:
    """Return several steps as one, as bigdl.transform.vision.image names it."""
    return ChainedPreprocessing(list(transformers))
