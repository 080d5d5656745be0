"""Featuresets: images, texts and other data that BigDL's programs hold. Owns sets here and in RDDs, with one set of verbs.

A set has `to_samples()`, an RDD or a list of Samples, and so may stand wherever data does.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.classic.sample import Sample
from orca.errors import ArgumentError, DataError, NotSupported
from orca.feature.image import ImageFeature, decoded, resized
from orca.feature.preprocessing import ChainedPreprocessing, Preprocessing

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")


def _is_rdd(rows: Any) -> bool:
    return hasattr(rows, "mapPartitions")


def _mapped(rows: Any, function: Callable[[Any], Any]) -> Any:
    return rows.map(function) if _is_rdd(rows) else [function(row) for row in rows]


def _files(path: str, endings: Sequence[str] = ()) -> list[str]:
    from orca.storage.files import filesystem

    fs, place = filesystem(path)
    names = sorted(fs.find(place)) if fs.isdir(place) else [place] if fs.exists(place) else sorted(fs.glob(place))
    found = [fs.unstrip_protocol(name) for name in names if not endings or name.lower().endswith(tuple(endings))]
    if not found:
        raise ArgumentError(f"there are no files{f' that end in {endings}' if endings else ''} at {path}.")
    return found


def _read_bytes(path: str) -> bytes:
    from orca.storage.files import filesystem

    fs, place = filesystem(path)
    content: bytes = fs.cat_file(place)
    return content


# Images.


@dataclass(frozen=True)
class _ReadImage:
    """Reading one image file."""

    height: int
    width: int
    codec: int
    labels: dict[str, int]

    def __call__(self, path: str) -> ImageFeature:
        mat = decoded(_read_bytes(path), self.codec, path)
        if self.height > 0 and self.width > 0:
            mat = resized(mat, self.height, self.width)
        label = self.labels.get(os.path.basename(os.path.dirname(path)))
        return ImageFeature(mat, None if label is None else np.float32(label), path)


class ImageSet:
    """Images with labels, here or in an RDD. Make one with `read`, LocalImageSet or DistributedImageSet."""

    def __init__(self, rows: Any, label_map: dict[str, int] | None = None) -> None:
        self.rows, self._labels = rows, label_map

    @classmethod
    def read(cls, path: str, sc: Any = None, min_partitions: int = 1, resize_height: int = -1, resize_width: int = -1,
             image_codec: int = -1, with_label: bool = False, one_based_label: bool = True) -> ImageSet:  # fmt: skip
        """Return the images of a folder.

        Args:
            path: A file, a folder or a pattern, at any fsspec path.
            sc: The SparkContext for an RDD; without it the images are read here.
            min_partitions: Partitions of the RDD, at least.
            resize_height: The height to resize to.
            resize_width: The width to resize to.
            image_codec: -1 as the file is, 0 gray, 1 in colours.
            with_label: Whether the names of the folders of images are their labels.
            one_based_label: Whether labels count from 1, else from 0.
        """
        paths = _files(path, IMAGES)
        labels: dict[str, int] = {}
        if with_label:
            names = sorted({os.path.basename(os.path.dirname(name)) for name in paths})
            labels = {name: number + int(one_based_label) for number, name in enumerate(names)}
        reads = _ReadImage(resize_height, resize_width, image_codec, labels)
        if sc is None:
            return LocalImageSet._of(list(map(reads, paths)), labels or None)
        return DistributedImageSet._of(sc.parallelize(paths, max(min_partitions, 1)).map(reads), labels or None)

    @classmethod
    def _of(cls, rows: Any, label_map: dict[str, int] | None = None) -> Any:
        made = cls.__new__(cls)
        ImageSet.__init__(made, rows, label_map)
        return made

    @staticmethod
    def from_rdds(image_rdd: Any, label_rdd: Any = None) -> DistributedImageSet:
        """Return the set of an RDD of arrays, and perhaps one of labels."""
        return DistributedImageSet(image_rdd, label_rdd)

    @staticmethod
    def from_image_frame(image_frame: ImageSet) -> ImageSet:
        """Return the images of a frame."""
        return (DistributedImageSet if _is_rdd(image_frame.rows) else LocalImageSet)._of(image_frame.rows)

    def to_image_frame(self) -> ImageSet:
        """Return the images as a frame, which has the same verbs."""
        return self

    def is_local(self) -> bool:
        """Say whether the images are here."""
        return not _is_rdd(self.rows)

    def is_distributed(self) -> bool:
        """Say whether the images are in an RDD."""
        return _is_rdd(self.rows)

    @property
    def label_map(self) -> dict[str, int] | None:
        """The label of each folder's name, where `read` found them."""
        return self._labels

    def transform(self, transformer: Preprocessing) -> ImageSet:
        """Return the images after a preprocessing."""
        return type(self)._of(_mapped(self.rows, _Step(transformer)), self._labels)

    def get_image(self, key: str = "floats", to_chw: bool = True) -> Any:
        """Return the images as arrays, (channels, height, width) unless to_chw is False."""
        return _mapped(self.rows, lambda row: row.get_image(key, to_chw))

    def get_label(self) -> Any:
        """Return the labels."""
        return _mapped(self.rows, ImageFeature.get_label)

    def get_predict(self, key: str = "predict") -> Any:
        """Return (uri, prediction) of each image."""
        return _mapped(self.rows, lambda row: (row.get("uri"), row.get(key)))

    def get_sample(self, key: str = "sample") -> Any:
        """Return the Samples that ImageSetToSample made, or those of tensors and labels."""
        return self.to_samples()

    def get_uri(self, key: str = "uri") -> Any:
        """Return where the images came from."""
        return _mapped(self.rows, lambda row: row.get(key))

    def set_label(self, label: Any) -> ImageSet:
        """Set the labels: a list, or an RDD in the order of the images."""
        pairs = self.rows.zip(label) if _is_rdd(self.rows) else list(zip(self.rows, label, strict=True))
        self.rows = _mapped(pairs, _labelled)
        return self

    def random_split(self, weights: Sequence[float]) -> list[ImageSet]:
        """Return the images dealt out by chance, in these shares."""
        return [type(self)._of(part, self._labels) for part in _random_split(self.rows, weights)]

    def to_samples(self) -> Any:
        """Return Samples: those that a step made, or of tensors and labels."""
        return _mapped(self.rows, _sample_of)

    def predicted_by(self, net: Any, transform: Any = None) -> ImageSet:
        """Return the images with a model's predictions, which `get_predict` tells."""
        from orca.bigdl.training import predicted

        rows = self if transform is None else self.transform(transform)
        answers = predicted(net, rows.to_samples())
        pairs = rows.rows.zip(answers) if _is_rdd(rows.rows) else list(zip(rows.rows, answers, strict=True))
        return type(self)._of(_mapped(pairs, _answered), self._labels)


def _labelled(pair: tuple[ImageFeature, Any]) -> ImageFeature:
    pair[0]["label"] = pair[1]
    return pair[0]


def _answered(pair: tuple[ImageFeature, Any]) -> ImageFeature:
    pair[0]["predict"] = pair[1]
    return pair[0]


def _sample_of(row: ImageFeature) -> Sample:
    made = row.get("sample")
    if isinstance(made, Sample):
        return made
    if made is not None:  # of ImageSetToSample: inputs and targets
        inputs, targets = made
        return Sample(
            Sample.from_ndarray(inputs, 0).features, Sample.from_ndarray(0, targets).labels if targets else []
        )
    label = row.get_label()
    whole = Sample.from_ndarray(row.tensor, 0 if label is None else label)
    return whole if label is not None else Sample(whole.features, [])


@dataclass(frozen=True)
class _Step:
    """A preprocessing of one row."""

    step: Preprocessing

    def __call__(self, row: Any) -> Any:
        (made,) = self.step.apply([row])
        return made


def _random_split(rows: Any, weights: Sequence[float]) -> list[Any]:
    if _is_rdd(rows):
        return list(rows.randomSplit(list(weights)))
    draw, total = random.Random(), sum(weights)
    parts: list[list[Any]] = [[] for _ in weights]
    ends = np.cumsum(weights) / total
    for row in rows:
        parts[min(int(np.searchsorted(ends, draw.random(), side="right")), len(parts) - 1)].append(row)
    return parts


class LocalImageSet(ImageSet):
    """Images here: arrays (height, width, BGR), and perhaps labels."""

    def __init__(self, image_list: Any = None, label_list: Any = None, jvalue: Any = None) -> None:
        labels = [None] * len(image_list) if label_list is None else list(label_list)
        super().__init__([ImageFeature(image, label) for image, label in zip(image_list, labels, strict=True)])


class DistributedImageSet(ImageSet):
    """Images in an RDD of arrays (height, width, BGR), and perhaps one of labels."""

    def __init__(self, image_rdd: Any = None, label_rdd: Any = None, jvalue: Any = None) -> None:
        pairs = image_rdd.map(lambda image: (image, None)) if label_rdd is None else image_rdd.zip(label_rdd)
        super().__init__(pairs.map(lambda pair: ImageFeature(*pair)))


# Texts.


class TextFeature:
    """A text with all that is known of it: its label, uri, tokens, indices and Sample."""

    def __init__(self, text: str | None = None, label: Any = None, uri: str | None = None, jvalue: Any = None) -> None:
        given = {"text": text, "label": label, "uri": uri}
        self.parts: dict[str, Any] = {key: value for key, value in given.items() if value is not None}

    def get_text(self) -> Any:
        """Return the text."""
        return self.parts.get("text")

    def get_label(self) -> Any:
        """Return the label, -1 where there is none."""
        return self.parts.get("label", -1)

    def get_uri(self) -> Any:
        """Return where the text came from."""
        return self.parts.get("uri")

    def has_label(self) -> bool:
        """Say whether there is a label."""
        return "label" in self.parts

    def set_label(self, label: Any) -> TextFeature:
        """Set the label."""
        self.parts["label"] = label
        return self

    def get_tokens(self) -> Any:
        """Return the words, once there was a Tokenizer."""
        return self.parts.get("tokens")

    def get_sample(self) -> Any:
        """Return the Sample, once there was a TextFeatureToSample."""
        return self.parts.get("sample")

    def keys(self) -> list[str]:
        """Return the keys of what is known."""
        return list(self.parts)

    def with_part(self, key: str, value: Any) -> TextFeature:
        """Return a copy with one more part."""
        made = TextFeature()
        made.parts = {**self.parts, key: value}
        return made

    def need(self, key: str, step: str) -> Any:
        """Return a part that a step must have made."""
        if key not in self.parts:
            raise DataError(f"a text has no {key} yet. Call {step} first; it has {', '.join(self.parts)}.")
        return self.parts[key]


@dataclass(frozen=True)
class TextTransformer(Preprocessing):
    """A step on texts."""

    def apply(self, rows: Any) -> Any:
        """Return what becomes of texts."""
        return [self.transform(row) for row in rows]

    def transform(self, text_feature: TextFeature) -> TextFeature:
        """Return what becomes of one text."""
        return text_feature


class Tokenizer(TextTransformer):
    """A text as its words, which blanks part."""

    def transform(self, text_feature: TextFeature) -> TextFeature:
        """Return the text with its words."""
        return text_feature.with_part("tokens", text_feature.need("text", "TextSet.read").split())


class Normalizer(TextTransformer):
    """Words in small letters, without anything else; those without letters go."""

    def transform(self, text_feature: TextFeature) -> TextFeature:
        """Return the text with such words."""
        words = (re.sub("[^a-zA-Z]", "", word).lower() for word in text_feature.need("tokens", "tokenize()"))
        return text_feature.with_part("tokens", [word for word in words if word])


@dataclass(frozen=True)
class WordIndexer(TextTransformer):
    """Words as their numbers; words without one go."""

    map: dict[str, int]

    def transform(self, text_feature: TextFeature) -> TextFeature:
        """Return the text with its numbers."""
        words = text_feature.need("tokens", "tokenize()")
        return text_feature.with_part("indices", [self.map[word] for word in words if word in self.map])


@dataclass(frozen=True)
class SequenceShaper(TextTransformer):
    """Numbers of one length: the first ("pre") or last ("post") go where there are more, an element fills up."""

    len: int
    trunc_mode: str = "pre"
    pad_element: int = 0

    def __post_init__(self) -> None:
        if self.trunc_mode not in ("pre", "post"):
            raise ArgumentError(f"trunc_mode must be 'pre' or 'post'; got {self.trunc_mode!r}.")

    def transform(self, text_feature: TextFeature) -> TextFeature:
        """Return the text with so many numbers."""
        given = text_feature.need("indices", "word2idx()")
        kept = given[-self.len :] if self.trunc_mode == "pre" else given[: self.len]
        return text_feature.with_part("indices", kept + [self.pad_element] * (self.len - len(kept)))


class TextFeatureToSample(TextTransformer):
    """A text as a Sample of its numbers and its label."""

    def transform(self, text_feature: TextFeature) -> TextFeature:
        """Return the text with its Sample."""
        indices = np.array(text_feature.need("indices", "word2idx() and shape_sequence()"), np.float32)
        label = text_feature.get_label() if text_feature.has_label() else -1
        return text_feature.with_part("sample", Sample.from_ndarray(indices, label))


class TextSet:
    """Texts with labels, here or in an RDD."""

    def __init__(self, rows: Any, word_index: dict[str, int] | None = None) -> None:
        self.rows, self.vocab = rows, word_index

    @classmethod
    def _of(cls, rows: Any, vocab: dict[str, int] | None = None) -> TextSet:
        made = (DistributedTextSet if _is_rdd(rows) else LocalTextSet).__new__(
            DistributedTextSet if _is_rdd(rows) else LocalTextSet
        )
        TextSet.__init__(made, rows, vocab)
        return made

    @classmethod
    def read(cls, path: str, sc: Any = None, min_partitions: int = 1) -> TextSet:
        """Return the text files of a folder whose folders are the classes, which count from 0."""
        paths = _files(path)
        names = sorted({os.path.basename(os.path.dirname(name)) for name in paths})
        labels = {name: number for number, name in enumerate(names)}

        def text(name: str) -> TextFeature:
            label = labels[os.path.basename(os.path.dirname(name))]
            return TextFeature(_read_bytes(name).decode("utf-8", "replace"), label, name)

        return cls._of(
            sc.parallelize(paths, max(min_partitions, 1)).map(text) if sc is not None else list(map(text, paths))
        )

    @classmethod
    def read_csv(cls, path: str, sc: Any = None, min_partitions: int = 1) -> TextSet:
        """Return the texts of a file with lines `id,text`."""
        lines = _read_bytes(path).decode().splitlines()
        rows = [TextFeature(text, uri=name) for name, _, text in (line.partition(",") for line in lines if line)]
        return cls._of(rows if sc is None else sc.parallelize(rows, max(min_partitions, 1)))

    @classmethod
    def read_parquet(cls, path: str, sc: Any = None) -> TextSet:
        """Return the texts of Parquet files with the columns id and text."""
        import pyarrow.parquet as parquet

        table = parquet.read_table(path, columns=["id", "text"]).to_pylist()
        rows = [TextFeature(row["text"], uri=row["id"]) for row in table]
        return cls._of(rows if sc is None else sc.parallelize(rows))

    @classmethod
    def from_relation_pairs(cls, relations: Any, corpus1: TextSet, corpus2: TextSet) -> TextSet:
        """Return Samples of (2, length): of each first text, one that goes with it above one that does not."""
        first, second, found = _corpora(relations, corpus1, corpus2)
        rows = []
        for id1 in dict.fromkeys(each.id1 for each in found):
            mine = [each for each in found if each.id1 == id1]
            for good in (each for each in mine if each.label > 0):
                for bad in (each for each in mine if each.label <= 0):
                    pair = [first[id1] + second[each.id2] for each in (good, bad)]
                    rows.append(_paired_text(id1, np.array(pair, np.float32), np.array([[1], [0]], np.float32)))
        return cls._of(_back(rows, corpus1))

    @classmethod
    def from_relation_lists(cls, relations: Any, corpus1: TextSet, corpus2: TextSet) -> TextSet:
        """Return a Sample of (count, length) of each first text, with all texts that it has relations with."""
        first, second, found = _corpora(relations, corpus1, corpus2)
        rows = []
        for id1 in dict.fromkeys(each.id1 for each in found):
            mine = [each for each in found if each.id1 == id1]
            texts = np.array([first[id1] + second[each.id2] for each in mine], np.float32)
            rows.append(_paired_text(id1, texts, np.array([[each.label] for each in mine], np.float32)))
        return cls._of(_back(rows, corpus1))

    def is_local(self) -> bool:
        """Say whether the texts are here."""
        return not _is_rdd(self.rows)

    def is_distributed(self) -> bool:
        """Say whether the texts are in an RDD."""
        return _is_rdd(self.rows)

    def to_distributed(self, sc: Any = None, partition_num: int = 4) -> TextSet:
        """Return the texts in an RDD."""
        if self.is_distributed():
            return self
        from pyspark import SparkContext

        return self._of((sc or SparkContext.getOrCreate()).parallelize(self.rows, partition_num), self.vocab)

    def to_local(self) -> TextSet:
        """Return the texts here."""
        return self._of(self.rows.collect() if self.is_distributed() else self.rows, self.vocab)

    def transform(self, transformer: Preprocessing) -> TextSet:
        """Return the texts after a step."""
        return self._of(_mapped(self.rows, _Step(transformer)), self.vocab)

    def tokenize(self) -> TextSet:
        """Return the texts with their words."""
        return self.transform(Tokenizer())

    def normalize(self) -> TextSet:
        """Return the texts with words in small letters."""
        return self.transform(Normalizer())

    def generate_word_index_map(self, remove_topN: int = 0, max_words_num: int = -1, min_freq: int = 1,
                                existing_map: dict[str, int] | None = None) -> dict[str, int]:  # fmt: skip
        """Return the number of each word, from 1 on, the most frequent first.

        Args:
            remove_topN: How many of the most frequent words to leave out.
            max_words_num: How many words at most; -1 for all.
            min_freq: How often a word must be there.
            existing_map: Numbers that words have already; new ones come behind.
        """
        words = _mapped(self.rows, lambda row: row.need("tokens", "tokenize()"))
        if _is_rdd(words):
            counts = words.flatMap(lambda some: Counter(some).items()).reduceByKey(lambda a, b: a + b).collectAsMap()
        else:
            counts = Counter(word for some in words for word in some)
        order = sorted((word for word, count in counts.items() if count >= min_freq), key=lambda w: (-counts[w], w))
        order = order[remove_topN:]
        vocab = dict(existing_map or {})
        new = [word for word in order if word not in vocab]
        start = max(vocab.values(), default=0) + 1
        vocab.update({word: start + at for at, word in enumerate(new[: None if max_words_num < 0 else max_words_num])})
        self.vocab = vocab
        return vocab

    def word2idx(self, remove_topN: int = 0, max_words_num: int = -1, min_freq: int = 1,
                 existing_map: dict[str, int] | None = None) -> TextSet:  # fmt: skip
        """Return the texts with the numbers of their words; see generate_word_index_map."""
        if self.vocab is None or existing_map is not None:
            self.generate_word_index_map(remove_topN, max_words_num, min_freq, existing_map)
        made = self.transform(WordIndexer(self.vocab or {}))
        made.vocab = self.vocab
        return made

    def shape_sequence(self, len: int, trunc_mode: str = "pre", pad_element: int = 0) -> TextSet:
        """Return the texts with so many numbers each."""
        return self.transform(SequenceShaper(len, trunc_mode, pad_element))

    def generate_sample(self) -> TextSet:
        """Return the texts with Samples."""
        return self.transform(TextFeatureToSample())

    def random_split(self, weights: Sequence[float]) -> list[TextSet]:
        """Return the texts dealt out by chance, in these shares."""
        return [self._of(part, self.vocab) for part in _random_split(self.rows, weights)]

    def get_word_index(self) -> dict[str, int] | None:
        """Return the number of each word."""
        return self.vocab

    def set_word_index(self, vocab: dict[str, int]) -> TextSet:
        """Set the number of each word."""
        self.vocab = dict(vocab)
        return self

    def save_word_index(self, path: str) -> None:
        """Write the number of each word as JSON."""
        from orca.storage.files import filesystem

        fs, place = filesystem(path)
        fs.pipe_file(place, json.dumps(self.vocab or {}).encode())

    def load_word_index(self, path: str) -> TextSet:
        """Read the number of each word."""
        return self.set_word_index(json.loads(_read_bytes(path)))

    def get_texts(self) -> Any:
        """Return the texts."""
        return _mapped(self.rows, TextFeature.get_text)

    def get_uris(self) -> Any:
        """Return where the texts came from."""
        return _mapped(self.rows, TextFeature.get_uri)

    def get_labels(self) -> Any:
        """Return the labels, -1 where there is none."""
        return _mapped(self.rows, TextFeature.get_label)

    def get_samples(self) -> Any:
        """Return the Samples."""
        return _mapped(self.rows, TextFeature.get_sample)

    def get_predicts(self) -> Any:
        """Return (uri, prediction) of each text."""
        return _mapped(self.rows, lambda row: (row.get_uri(), row.parts.get("predict")))

    def to_samples(self) -> Any:
        """Return the Samples."""
        return _mapped(self.rows, lambda row: row.need("sample", "generate_sample()"))

    def predicted_by(self, net: Any, transform: Any = None) -> TextSet:
        """Return the texts with a model's predictions, which `get_predicts` tells."""
        from orca.bigdl.training import predicted

        answers = predicted(net, self.to_samples())
        pairs = self.rows.zip(answers) if self.is_distributed() else list(zip(self.rows, answers, strict=True))
        return self._of(_mapped(pairs, lambda pair: pair[0].with_part("predict", pair[1])), self.vocab)


class LocalTextSet(TextSet):
    """Texts here, and perhaps labels."""

    def __init__(self, texts: Any = None, labels: Any = None, jvalue: Any = None) -> None:
        marks = [None] * len(texts) if labels is None else list(labels)
        super().__init__([TextFeature(text, label) for text, label in zip(texts, marks, strict=True)])


class DistributedTextSet(TextSet):
    """Texts in an RDD, and perhaps an RDD of labels."""

    def __init__(self, texts: Any = None, labels: Any = None, jvalue: Any = None) -> None:
        pairs = texts.map(lambda text: (text, None)) if labels is None else texts.zip(labels)
        super().__init__(pairs.map(lambda pair: TextFeature(*pair)))


# Relations.


@dataclass(frozen=True)
class Relation:
    """Whether two texts go together: 1, or 0."""

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
        """Return the relations of a file with lines `id1,id2,label`: a list, or an RDD with sc."""
        lines = _read_bytes(path).decode().splitlines()
        rows = [Relation(a, b, int(label)) for a, b, label in (line.split(",") for line in lines if line.strip())]
        return rows if sc is None else sc.parallelize(rows, max(min_partitions, 1))

    @staticmethod
    def read_parquet(path: str, sc: Any = None) -> Any:
        """Return the relations of Parquet files with the columns id1, id2 and label."""
        import pyarrow.parquet as parquet

        rows = [Relation(row["id1"], row["id2"], int(row["label"])) for row in parquet.read_table(path).to_pylist()]
        return rows if sc is None else sc.parallelize(rows)


def _corpora(
    relations: Any, corpus1: TextSet, corpus2: TextSet
) -> tuple[dict[str, Any], dict[str, Any], list[Relation]]:
    found = relations.collect() if _is_rdd(relations) else list(relations)
    corpora = []
    for corpus in (corpus1, corpus2):
        rows = corpus.to_local().rows
        corpora.append({row.get_uri(): row.need("indices", "word2idx() and shape_sequence()") for row in rows})
    lost = [each for each in found if each.id1 not in corpora[0] or each.id2 not in corpora[1]]
    if lost:
        raise DataError(f"the corpora have no texts for {len(lost)} relations, {lost[0]} for example.")
    return corpora[0], corpora[1], found


def _paired_text(uri: str, texts: Any, labels: Any) -> TextFeature:
    return TextFeature(uri=uri).with_part("sample", Sample.from_ndarray(texts, labels))


def _back(rows: list[Any], like: TextSet) -> Any:
    return like.rows.context.parallelize(rows) if like.is_distributed() else rows


# Any data.


class FeatureSet:
    """Data for training, with how it is kept and in which order it is read.

    Args:
        data: What a verb of the class was given.
        shuffle: Whether each epoch reads in a new order.
    """

    def __init__(self, data: Any = None, shuffle: bool = True, memory_type: str = "DRAM") -> None:
        if not re.fullmatch(r"DRAM|PMEM|DIRECT|DISK_\d+", memory_type.upper()):
            raise ArgumentError(f"memory_type must be DRAM, PMEM, DIRECT or DISK_n; got {memory_type!r}.")
        self.data, self.shuffle = data, shuffle

    @classmethod
    def _made(
        cls, data: Any, memory_type: str = "DRAM", sequential_order: bool = False, shuffle: bool = True
    ) -> FeatureSet:
        return cls(data, shuffle and not sequential_order, memory_type)

    @classmethod
    def image_set(
        cls, imageset: Any, memory_type: str = "DRAM", sequential_order: bool = False, shuffle: bool = True
    ) -> FeatureSet:
        """Return the set of an ImageSet."""
        return cls._made(imageset, memory_type, sequential_order, shuffle)

    @classmethod
    def sample_rdd(
        cls, rdd: Any, memory_type: str = "DRAM", sequential_order: bool = False, shuffle: bool = True
    ) -> FeatureSet:
        """Return the set of an RDD of Samples."""
        return cls._made(rdd, memory_type, sequential_order, shuffle)

    image_frame = image_set
    rdd = sample_rdd

    @classmethod
    def tf_dataset(cls, func: Callable[[], Any], total_size: int) -> FeatureSet:
        """Return the set of a function that makes a tf.data.Dataset of single rows (x, y)."""
        return cls(func())

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
        data = (
            self.data.transform(transformer)
            if hasattr(self.data, "transform")
            else _mapped(self.data, _Step(transformer))
        )
        return FeatureSet(data, self.shuffle)

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
