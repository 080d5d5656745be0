"""Images from files to predictions: NNImageReader, chains on the workers, draws of each epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyspark")
Image = pytest.importorskip("PIL.Image")

from torch import nn  # noqa: E402

from orca.errors import ArgumentError  # noqa: E402
from orca.triggers import EveryEpoch, MaxEpoch, MaxScore, TriggerOr  # noqa: E402
from orca_classic.bigdl.feature.image import (  # noqa: E402
    ImageFeatureToTensor,
    ImageMatToTensor,
    ImageRandomCrop,
    ImageResize,
    RowToImageFeature,
    resized,
)
from orca_classic.bigdl.feature.preprocessing import ChainedPreprocessing  # noqa: E402
from orca_classic.bigdl.optimizers import SGD  # noqa: E402
from orca_classic.nnframes import NNClassifier, NNEstimator, NNImageReader, NNModel, with_origin_column  # noqa: E402

COUNT = 7


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[np.ndarray]]:
    """Return a folder of images, in folders, and their pixels in the order BGR."""
    folder, mats = tmp_path_factory.mktemp("pictures"), []
    for number in range(COUNT):
        mat = np.random.default_rng(number).integers(0, 256, (5 + number, 8, 3), np.uint8)
        place = folder / f"kind{number % 2}"
        place.mkdir(exist_ok=True)
        Image.fromarray(mat[:, :, ::-1]).save(place / f"{number}.png")
        mats.append(mat)
    return str(folder), mats


def labelled(frame: Any) -> Any:
    from pyspark.sql import functions as F

    kind = F.regexp_extract("origin", r"kind(\d)", 1).cast("double")
    number = F.regexp_extract("origin", r"(\d+)\.png", 1).cast("int")
    return with_origin_column(frame).withColumn("label", kind).withColumn("number", number)


def chain_of(*steps: Any) -> ChainedPreprocessing:
    return ChainedPreprocessing([RowToImageFeature(), *steps, ImageMatToTensor(), ImageFeatureToTensor()])


def test_reader_gives_the_column_that_spark_gives(spark: Any, pictures: Any) -> None:
    folder, mats = pictures
    rows = labelled(NNImageReader.readImages(folder, minPartitions=3)).orderBy("number").collect()
    own = spark.read.format("image").option("recursiveFileLookup", "true").load(folder)
    fields = "origin height width nChannels mode data".split()
    assert (
        NNImageReader.readImages(folder).schema["image"].dataType.names == own.schema["image"].dataType.names == fields
    )
    theirs = {row.image.origin.rsplit("/", 1)[-1]: row.image for row in own.collect()}
    for row, mat in zip(rows, mats, strict=True):
        assert (row.image.height, row.image.width, row.image.nChannels, row.image.mode) == (*mat.shape, 16)
        assert bytes(row.image.data) == mat.tobytes() == bytes(theirs[row.origin.rsplit("/", 1)[-1]].data)
    small = NNImageReader.readImages(f"{folder}/kind0, {folder}/kind1/1.png", resizeH=4, resizeW=6, image_codec=0)
    assert {(row.image.height, row.image.width, row.image.nChannels, row.image.mode) for row in small.collect()} == {
        (4, 6, 1, 0)
    }
    with pytest.raises(ArgumentError, match="resizeH and resizeW go together; got 3 and -1"):
        NNImageReader.readImages(folder, resizeH=3)


def test_images_are_trained_on_and_answered_for(spark: Any, pictures: Any) -> None:
    folder, mats = pictures
    frame = labelled(NNImageReader.readImages(folder))
    torch.manual_seed(0)
    net, alone = (nn.Sequential(nn.Flatten(), nn.Linear(48, 2)) for _ in range(2))
    alone.load_state_dict(net.state_dict())
    chain = chain_of(ImageResize(4, 4))
    classifier = NNClassifier(net, nn.CrossEntropyLoss(), chain).setFeaturesCol("image").setBatchSize(COUNT)
    model = classifier.setOptimMethod(SGD(1e-4)).setMaxEpoch(3).fit(frame)
    x = torch.stack([torch.from_numpy(resized(mat, 4, 4).transpose(2, 0, 1)).float() for mat in mats])
    y = torch.arange(COUNT) % 2
    optimizer = torch.optim.SGD(alone.parameters(), lr=1e-4)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(alone(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(model.model[1].weight, alone[1].weight, rtol=1e-4, atol=1e-6)
    rows = {row.number: row.prediction for row in model.transform(frame).collect()}
    assert [rows[number] for number in range(COUNT)] == alone(x).argmax(1).double().tolist()


def test_epochs_draw_anew_where_samples_are_not_cached(spark: Any, pictures: Any, tmp_path: Path) -> None:
    folder, _ = pictures
    frame = labelled(NNImageReader.readImages(folder))
    crop = chain_of(ImageRandomCrop(2, 2))
    weights = []
    for caches in (True, False):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(12, 1))
        estimator = NNEstimator(net, nn.MSELoss(), crop).setFeaturesCol("image").setBatchSize(COUNT)
        estimator.setOptimMethod(SGD(1e-5)).setCachingSample(caches).setEndWhen(MaxEpoch(3))
        model = estimator.setCheckpoint(str(tmp_path / str(caches)), EveryEpoch()).fit(frame)
        (run,) = (tmp_path / str(caches)).iterdir()  # one fit, whose newest checkpoint stays
        assert sorted(path.name for path in run.iterdir()) == ["model.3", "optimMethod-SGD.3"]
        assert model.state.epoch == 3 and estimator.isCachingSample() is caches
        weights.append(model.model[1].weight)
    assert not torch.equal(*weights)


def test_score_ends_training_that_draws_anew(spark: Any, pictures: Any) -> None:
    folder, _ = pictures
    frame = labelled(NNImageReader.readImages(folder))
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 1))
    estimator = NNEstimator(net, nn.MSELoss(), chain_of(ImageRandomCrop(2, 2))).setFeaturesCol("image")
    estimator.setBatchSize(COUNT).setOptimMethod(SGD(1e-5)).setCachingSample(False)
    estimator.setValidation(EveryEpoch(), frame, ["mae"], COUNT).setEndWhen(TriggerOr(MaxScore(-1.0), MaxEpoch(3)))
    assert estimator.fit(frame).state.epoch == 1


def test_sizes_that_differ_and_files_that_are_no_images_are_named(spark: Any, pictures: Any, tmp_path: Path) -> None:
    folder, _ = pictures
    whole = NNModel(nn.Flatten(), chain_of()).setFeaturesCol("image")
    with pytest.raises(Exception, match="images differ in size: tensors of"):
        whole.transform(NNImageReader.readImages(folder)).collect()
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(Exception, match=r"notes\.txt is no image, or a damaged one"):
        NNImageReader.readImages(str(tmp_path)).collect()
