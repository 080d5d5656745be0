"""Tell new drawings apart from few examples: a network that learned others becomes a stage of a Spark ML pipeline.

The drawings are made here. First a small network learns to tell discs, squares and crosses apart. Then, without its
last layer and with its weights as they are, it turns drawings of two other kinds into features, from which a
classifier with one layer learns. The pipeline of both is saved, loaded and used.

    python examples/transfer_learning.py
    python examples/transfer_learning.py --images 200 --cores 4
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import functions as F
from torch import nn

from zoo.common.nncontext import init_spark_on_local
from zoo.feature.common import ChainedPreprocessing
from zoo.feature.image import (
    ImageChannelNormalize,
    ImageFeatureToTensor,
    ImageMatToTensor,
    ImageResize,
    RowToImageFeature,
)
from zoo.orca.learn.optimizers import Adam
from zoo.pipeline.nnframes import NNClassifier, NNImageReader, NNModel, with_origin_column

OLD, NEW = ["disc", "square", "cross"], ["ring", "stripes"]


def draw(kind, random):
    """Return a drawing of a kind, of any colour, place and size."""
    size = int(random.integers(48, 80))
    image = Image.new("RGB", (size, size), tuple(int(tone) for tone in random.integers(0, 60, 3)))
    pen, colour = ImageDraw.Draw(image), tuple(int(tone) for tone in random.integers(150, 256, 3))
    half = int(size * random.uniform(0.2, 0.4))
    x, y = (int(random.integers(half, size - half)) for _ in range(2))
    box = [x - half, y - half, x + half, y + half]
    if kind == "disc":
        pen.ellipse(box, fill=colour)
    elif kind == "square":
        pen.rectangle(box, fill=colour)
    elif kind == "ring":
        pen.ellipse(box, outline=colour, width=max(half // 4, 2))
    elif kind == "cross":
        pen.line([x - half, y, x + half, y], fill=colour, width=half // 3)
        pen.line([x, y - half, x, y + half], fill=colour, width=half // 3)
    else:
        for at in range(y - half, y + half, 6):
            pen.line([x - half, at, x + half, at], fill=colour, width=3)
    return image


def write_drawings(folder, kinds, images, random):
    """Write so many drawings of each kind, in a folder of its name."""
    for kind in kinds:
        (folder / kind).mkdir(parents=True)
        for number in range(images):
            draw(kind, random).save(folder / kind / f"{number}.png")


def read_drawings(folder, kinds):
    """Return a DataFrame of images and labels: the number of the folder that an image is in."""
    images = with_origin_column(NNImageReader.readImages(str(folder), minPartitions=4, image_codec=1))
    label = F.array_position(F.array(*map(F.lit, kinds)), F.element_at(F.split("origin", "/"), -2)) - 1
    return images.withColumn("label", label.cast("double")).drop("origin")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=60, help="drawings of each kind")
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    init_spark_on_local(cores=given.cores)
    to_tensor = ChainedPreprocessing(
        [
            RowToImageFeature(),
            ImageResize(32, 32),
            ImageChannelNormalize(100.0, 100.0, 100.0, 80.0, 80.0, 80.0),
            ImageMatToTensor(),
            ImageFeatureToTensor(),
        ]
    )
    backbone = nn.Sequential(
        nn.Conv2d(3, 24, 5, stride=2), nn.ReLU(), nn.Conv2d(24, 48, 3, stride=2), nn.ReLU(),
        nn.Conv2d(48, 64, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        folder, random = Path(place), np.random.default_rng(0)
        write_drawings(folder / "old", OLD, given.images, random)
        write_drawings(folder / "new", NEW, given.images // 2, random)

        learner = NNClassifier(nn.Sequential(backbone, nn.Linear(64, len(OLD))), nn.CrossEntropyLoss(), to_tensor)
        learner = learner.setFeaturesCol("image").setBatchSize(32).setMaxEpoch(20).setOptimMethod(Adam(2e-3))
        trained = learner.fit(read_drawings(folder / "old", OLD)).model

        features = NNModel(trained[0], to_tensor).setFeaturesCol("image").setPredictionCol("embedding")
        head = NNClassifier(nn.Linear(64, len(NEW)), nn.CrossEntropyLoss()).setFeaturesCol("embedding").setBatchSize(8)
        pipeline = Pipeline(stages=[features, head.setMaxEpoch(20).setOptimMethod(Adam(1e-2))])
        train, test = read_drawings(folder / "new", NEW).cache().randomSplit([0.7, 0.3], seed=1)
        pipeline.fit(train).write().overwrite().save(str(folder / "pipeline"))

        answers = PipelineModel.load(str(folder / "pipeline")).transform(test)
        answers.select("image.origin", "label", "prediction").show(5, False)
        score = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(answers)
        print(f"accuracy on new kinds of drawings {score:.3f}")


if __name__ == "__main__":
    main()
