"""Sets of images and texts that BigDL's programs hold, and the readers of datasets."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca.errors import ArgumentError, DataError
from orca_classic.bigdl import datasets
from orca_classic.bigdl.feature.image import ImageMatToTensor, ImageResize, ImageSetToSample
from orca_classic.bigdl.feature.preprocessing import ChainedPreprocessing
from orca_classic.bigdl.featuresets import FeatureSet, ImageSet, LocalImageSet, LocalTextSet, Relations, TextSet
from orca_classic.zoo.sample import Sample


def test_images_of_folders_have_their_labels(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for at, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        image.fromarray(np.full((4, 6, 3), at * 100, np.uint8)).save(tmp_path / name / "a.png")
    (tmp_path / "cat" / ".hidden.png").write_bytes(b"no image")
    images = ImageSet.read(str(tmp_path), with_label=True)
    assert images.is_local() and images.label_map == {"cat": 1, "dog": 2} and images.get_label() == [1, 2]
    pytest.importorskip("torch")
    steps = ChainedPreprocessing([ImageResize(2, 3), ImageMatToTensor(), ImageSetToSample()])
    samples = images.transform(steps).to_samples()
    assert [sample.feature.to_ndarray().shape for sample in samples] == [(3, 2, 3)] * 2
    assert [mat.shape for mat in images.get_image()] == [(3, 4, 6)] * 2  # a step leaves its images alone
    assert [sample.label.to_ndarray().tolist() for sample in samples] == [[1], [2]]
    assert FeatureSet.image_set(images, shuffle=False).shuffle is False
    with pytest.raises(ArgumentError, match="there are no files"):
        ImageSet.read(str(tmp_path / "none"))
    image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / "loose.png")
    with pytest.raises(DataError, match=r"loose\.png lies beside the folders whose names are the labels"):
        ImageSet.read(str(tmp_path), with_label=True)
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
    assert texts.word2idx().get_word_index() == {"the": 1, "a": 2}  # as it was made
    with pytest.raises(ArgumentError, match="these texts have a word index already"):
        texts.word2idx(min_freq=2)
    with pytest.raises(ArgumentError, match="these texts have no word index yet"):
        LocalTextSet(["x"]).save_word_index(str(tmp_path / "none"))
    assert [sample.labels for sample in LocalTextSet(["a"]).tokenize().word2idx().generate_sample().get_samples()] == [
        []
    ]
    with pytest.raises(DataError, match="a text has no tokens yet. Call tokenize"):
        LocalTextSet(["x"]).word2idx()
    with pytest.raises(ArgumentError, match="trunc_mode must be 'pre' or 'post'"):
        numbered.shape_sequence(3, "middle")


def corpora(folder: Path, context: Any = None) -> tuple[Any, list[TextSet]]:
    """Return relations of questions and answers, and the texts of both, here or in RDDs."""
    (folder / "relations.csv").write_text("q1,a1,1\nq1,a2,0\nq2,a2,1\r\nq2,a1,0\n\nq2,a3,0\n")
    (folder / "q.csv").write_text("q1,who is it\nq2,who, then\u2028 is no\n")
    (folder / "a.csv").write_text("a1,it is me\na2,no\na3,yes no yes\n")
    texts: list[TextSet] = []
    for name, length in (("q", 3), ("a", 2)):
        known = texts[0].get_word_index() if texts else None
        read = TextSet.read_csv(str(folder / f"{name}.csv"), context, 3).tokenize().normalize()
        texts.append(read.word2idx(existing_map=known).shape_sequence(length, "post"))
    return Relations.read(str(folder / "relations.csv"), context, 2), texts


def related(folder: Path, context: Any = None) -> list[Any]:
    """Return the pairs and the lists of relations as plain values, in the order of the first texts."""
    relations, texts = corpora(folder, context)

    def plain(row: Any) -> tuple[Any, ...]:
        sample = row.get_sample()
        return row.get_uri(), sample.feature.to_ndarray().tolist(), sample.label.to_ndarray().tolist()

    makes = (TextSet.from_relation_pairs, TextSet.from_relation_lists)
    return [sorted(map(plain, make(relations, *texts).to_local().rows)) for make in makes]


def test_relations_pair_texts(tmp_path: Path) -> None:
    pairs, lists = related(tmp_path)
    assert [(uri, labels) for uri, _, labels in pairs] == [("q1", [[1], [0]]), ("q2", [[1], [0]]), ("q2", [[1], [0]])]
    assert [(uri, np.shape(texts), labels) for uri, texts, labels in lists] == [
        ("q1", (2, 5), [[1], [0]]), ("q2", (3, 5), [[0], [1], [0]]),
    ]  # fmt: skip
    assert pairs[0][1] == [lists[0][1][0], lists[0][1][1]]  # a1 goes with q1, a2 does not
    relations, texts = corpora(tmp_path)
    with pytest.raises(DataError, match="the second corpus has no text 'q1'|the second corpus has no text 'a1'"):
        TextSet.from_relation_pairs(relations, texts[1], texts[0])
    (tmp_path / "bad.csv").write_text("q1;a1;1\n")
    with pytest.raises(DataError, match="each line must have 3 cells with commas between them; got 'q1;a1;1'"):
        Relations.read(str(tmp_path / "bad.csv"))


@pytest.mark.full
def test_texts_are_the_same_on_any_number_of_partitions(spark: Any, tmp_path: Path) -> None:
    texts, labels = ["The cat, the cat!", "a Dog 7 and", "", "dog dog dog cat"], [0, 1, 0, 1]
    truth = None
    for partitions in (0, 6):  # most of them are empty
        given = LocalTextSet(texts, labels)
        given = given.to_distributed(spark.sparkContext, partitions) if partitions else given
        numbered = given.tokenize().normalize().word2idx(remove_topN=1, max_words_num=4)
        samples = numbered.shape_sequence(4).generate_sample().to_local().to_samples()
        truth = truth or (numbered.get_word_index(), samples)
        assert (numbered.get_word_index(), samples) == truth
    assert related(tmp_path, spark.sparkContext) == related(tmp_path)
    frame = spark.createDataFrame([("u", "the cat")], "id string, text string")
    frame.write.parquet(str(tmp_path / "texts"))
    for context in (None, spark.sparkContext):
        assert TextSet.read_parquet(str(tmp_path / "texts"), context).to_local().rows[0].parts == {
            "text": "the cat",
            "uri": "u",
        }


@pytest.mark.full
@pytest.mark.slow
def test_images_and_texts_of_workers_train_and_are_answered_for(spark: Any, tmp_path: Path) -> None:
    torch, image = pytest.importorskip("torch"), pytest.importorskip("PIL.Image")
    from orca_classic.bigdl.keras.engine import Sequential
    from orca_classic.bigdl.keras.layers import KERAS

    draw = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(4):
            pixels = draw.integers(0, 255, (5, 5 + number, 3)).astype(np.uint8)
            image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    steps = ChainedPreprocessing([ImageResize(4, 4), ImageMatToTensor(), ImageSetToSample()])
    here, there = (
        ImageSet.read(str(tmp_path), context, 12, with_label=True, one_based_label=False)  # 4 partitions are empty
        for context in (None, spark.sparkContext)
    )
    assert there.is_distributed() and there.get_label().collect() == here.get_label() == [0] * 4 + [1] * 4
    trained = []
    for images in (here, there):
        torch.manual_seed(0)
        model = Sequential().add(KERAS["Flatten"](input_shape=(3, 4, 4))).add(KERAS["Dense"](2, activation="softmax"))
        model.workers_per_node = 3 if images is there else 1
        model.compile("sgd", "sparse_categorical_crossentropy", ["accuracy"])
        model.fit(
            images, batch_size=8, nb_epoch=2, transform=steps, validation_data=images, distributed=images is there
        )
        answers = model.predict(images, transform=steps).get_predict()
        trained.append((model.get_weights(), answers.collect() if images is there else answers))
    for mine, truth in zip(trained[1][0], trained[0][0], strict=True):
        np.testing.assert_allclose(mine, truth, rtol=1e-4, atol=1e-5)
    for (uri, mine), (other, truth) in zip(trained[1][1], trained[0][1], strict=True):
        assert uri == other
        np.testing.assert_allclose(mine, truth, rtol=1e-3, atol=1e-5)
    (tmp_path / "cat" / "bad.png").write_bytes(b"no image")
    bad = ImageSet.read(str(tmp_path), spark.sparkContext, 3, with_label=True)
    with pytest.raises(DataError, match=r"cat/bad\.png is no image, or a damaged one"):
        model.fit(bad, nb_epoch=1, transform=steps)
    with pytest.raises(Exception, match=r"cat/bad\.png is no image, or a damaged one"):
        model.predict(bad, transform=steps).get_predict().collect()

    texts = LocalTextSet(["a cat", "a dog", "dog dog dog", ""], [0, 1, 1, 0]).to_distributed(spark.sparkContext, 3)
    samples = texts.tokenize().word2idx().shape_sequence(3).generate_sample()
    reader = Sequential().add(KERAS["Embedding"](4, 3, input_shape=(3,))).add(KERAS["Flatten"]())
    reader.add(KERAS["Dense"](2, activation="softmax"))
    reader.compile("adam", "sparse_categorical_crossentropy")
    reader.fit(samples, batch_size=2, nb_epoch=1)
    assert reader.evaluate(samples)[0].total_num == 4
    rows = np.stack([sample.feature.to_ndarray() for sample in samples.to_samples().collect()])
    answers = [answer for _, answer in reader.predict(samples).get_predicts().collect()]
    np.testing.assert_allclose(answers, reader.predict(rows, distributed=False), rtol=1e-5)


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


def test_parts_of_a_text_have_their_names() -> None:
    (text,) = LocalTextSet(["The cat"], [0]).tokenize().word2idx().shape_sequence(2).generate_sample().rows
    assert text.keys() == ["text", "label", "tokens", "indexedTokens", "sample"]


def test_labels_of_images_in_an_rdd_are_set_in_their_order(spark: Any) -> None:
    mats = [np.full((1, 1, 3), at, np.uint8) for at in range(5)]
    context = spark.sparkContext
    for labels in ([5, 6, 7, 8, 9], context.parallelize([5, 6, 7, 8, 9], 2)):
        images = ImageSet.from_rdds(context.parallelize(mats, 3)).set_label(labels)
        assert images.get_label().collect() == [5, 6, 7, 8, 9]
        assert [int(mat[0, 0, 0]) for mat in images.get_image(to_chw=False).collect()] == [0, 1, 2, 3, 4]
    with pytest.raises(DataError, match="a label for each image; got 1 for 5 images"):
        ImageSet.from_rdds(context.parallelize(mats, 3)).set_label([1])


def test_images_go_through_parquet(spark: Any, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for folder in ("a", "b"):
        (tmp_path / "images" / folder).mkdir(parents=True)
        image.fromarray(np.full((4, 6, 3), ord(folder), np.uint8)).save(tmp_path / "images" / folder / "x.png")
    from bigdl.transform.vision.image import BytesToMat, ImageFrame

    ImageFrame.write_parquet(str(tmp_path / "images" / "*"), str(tmp_path / "parquet"), spark.sparkContext, 2)
    frame = ImageFrame.read_parquet(str(tmp_path / "parquet"), spark.sparkContext)
    images = sorted(frame.transform(BytesToMat()).get_image().collect(), key=np.max)
    assert frame.is_distributed() and [(mat.shape, mat.max()) for mat in images] == [((3, 4, 6), 97), ((3, 4, 6), 98)]
    assert sorted(uri.rsplit("/", 2)[1] for uri in frame.get_uri().collect()) == ["a", "b"]
