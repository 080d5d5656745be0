"""Sets of images and texts that BigDL's programs hold, and the readers of datasets."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from orca.bigdl import datasets
from orca.bigdl.featuresets import FeatureSet, ImageSet, LocalImageSet, LocalTextSet, Relations, TextSet
from orca.classic.sample import Sample
from orca.errors import ArgumentError, DataError
from orca.feature.image import ImageMatToTensor, ImageResize, ImageSetToSample
from orca.feature.preprocessing import ChainedPreprocessing


def test_images_of_folders_have_their_labels(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for at, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        image.fromarray(np.full((4, 6, 3), at * 100, np.uint8)).save(tmp_path / name / "a.png")
    images = ImageSet.read(str(tmp_path), with_label=True)
    assert images.is_local() and images.label_map == {"cat": 1, "dog": 2} and images.get_label() == [1, 2]
    pytest.importorskip("torch")
    steps = ChainedPreprocessing([ImageResize(2, 3), ImageMatToTensor(), ImageSetToSample()])
    samples = images.transform(steps).to_samples()
    assert [sample.feature.to_ndarray().shape for sample in samples] == [(3, 2, 3)] * 2
    assert [sample.label.to_ndarray().tolist() for sample in samples] == [[1], [2]]
    assert FeatureSet.image_set(images, shuffle=False).shuffle is False
    with pytest.raises(ArgumentError, match="there are no files"):
        ImageSet.read(str(tmp_path / "none"))
    with pytest.raises(ArgumentError, match="memory_type must be DRAM"):
        FeatureSet.image_set(images, memory_type="TAPE")


def test_arrays_are_images_with_or_without_labels() -> None:
    images = LocalImageSet([np.zeros((2, 3, 3))] * 2)
    assert images.get_image()[0].shape == (3, 2, 3) and images.get_label() == [None, None]
    assert [sample.labels for sample in images.to_samples()] == [[], []]
    assert sum(len(part.rows) for part in images.random_split([0.5, 0.5])) == 2


def test_texts_become_samples_of_numbers(tmp_path: Path) -> None:
    texts = LocalTextSet(["The cat, the cat!", "a Dog 7"], [0, 1]).tokenize().normalize()
    assert [row.get_tokens() for row in texts.rows] == [["the", "cat", "the", "cat"], ["a", "dog"]]
    numbered = texts.word2idx()
    assert numbered.get_word_index() == {"cat": 1, "the": 2, "a": 3, "dog": 4}
    shaped = numbered.shape_sequence(3).generate_sample()
    assert [s.feature.to_ndarray().tolist() for s in shaped.get_samples()] == [[1, 2, 1], [3, 4, 0]]
    assert shaped.get_labels() == [0, 1]
    numbered.save_word_index(str(tmp_path / "words"))
    assert LocalTextSet(["x"]).load_word_index(str(tmp_path / "words")).get_word_index() == numbered.get_word_index()
    assert texts.generate_word_index_map(remove_topN=1, max_words_num=2) == {"the": 1, "a": 2}
    with pytest.raises(DataError, match="a text has no tokens yet. Call tokenize"):
        LocalTextSet(["x"]).word2idx()
    with pytest.raises(ArgumentError, match="trunc_mode must be 'pre' or 'post'"):
        numbered.shape_sequence(3, "middle")


def test_relations_pair_texts(tmp_path: Path) -> None:
    (tmp_path / "relations.csv").write_text("q1,a1,1\nq1,a2,0\n")
    (tmp_path / "q.csv").write_text("q1,who is it\n")
    (tmp_path / "a.csv").write_text("a1,it is me\na2,no\n")
    corpora = []
    vocab = None
    for name, length in (("q", 3), ("a", 2)):
        texts = TextSet.read_csv(str(tmp_path / f"{name}.csv")).tokenize().normalize().word2idx(existing_map=vocab)
        vocab = texts.get_word_index()
        corpora.append(texts.shape_sequence(length, "post"))
    relations = Relations.read(str(tmp_path / "relations.csv"))
    (pair,) = TextSet.from_relation_pairs(relations, *corpora).get_samples()
    assert pair.feature.to_ndarray().shape == (2, 5) and pair.label.to_ndarray().tolist() == [[1], [0]]
    (row,) = TextSet.from_relation_lists(relations, *corpora).get_samples()
    assert row.feature.to_ndarray().shape == (2, 5)


def test_mnist_is_read_from_its_files(tmp_path: Path) -> None:
    images, labels = np.arange(2 * 4, dtype=np.uint8).reshape(2, 2, 2), np.array([3, 7], np.uint8)
    for part, names in datasets._FILES.items():
        (tmp_path / f"{names[0]}.gz").write_bytes(gzip.compress(struct.pack(">4i", 2051, 2, 2, 2) + images.tobytes()))
        (tmp_path / names[1]).write_bytes(struct.pack(">2i", 2049, 2) + labels.tobytes())
        found = datasets.read_data_sets(str(tmp_path), part)
        np.testing.assert_array_equal(found[0][..., 0], images)
        np.testing.assert_array_equal(found[1], labels)
    with pytest.raises(ArgumentError, match="Put MNIST's four files there"):
        datasets.read_data_sets(str(tmp_path / "none"))
    sample = datasets.normalizer(Sample.from_ndarray(np.array([3.0]), 1), 1.0, 2.0)
    assert sample.feature.to_ndarray().tolist() == [1]
