"""Seed 002, section 3: its two PyTorch programs, on what they take as given (a LeNet, a loader, data to predict)."""

from __future__ import annotations

import json

import pytest

from programs import run_program
from seeds.blocks import IMAGES, code_blocks, document, substitute

DOCUMENT = "002_training_and_inference.txt"
DISTRIBUTED = "**Using `torch.distributed` or *Horovod* backend**"
ROWS = 1000

GIVEN = f"""
import gzip, json, os, sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn

from zoo.orca import OrcaContext, init_orca_context, stop_orca_context
from zoo.orca.data import XShards
from zoo.orca.learn.pytorch import Estimator

def values(name, header):
    with gzip.open({str(IMAGES)!r} + "/" + name) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)

images = (values("train-images-idx3-ubyte.gz", 16).reshape(-1, 784)[:{ROWS}] / 255).astype(np.float32)
labels = values("train-labels-idx1-ubyte.gz", 8)[:{ROWS}].astype(np.int64)
args = Namespace(lr=3e-3, epochs=3)

trainers, driver = Path("trainers").absolute(), os.getpid()
trainers.mkdir()

def trainer():
    ray, pyspark = sys.modules.get("ray"), sys.modules.get("pyspark")
    if os.getpid() == driver:
        return "driver"
    if ray is not None and ray.is_initialized():
        return "ray"
    return "spark" if pyspark is not None and pyspark.TaskContext.get() is not None else "nobody we know"

class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(400, 84), nn.Linear(84, 10)

    def forward(self, image):
        if self.training:
            (trainers / trainer()).touch()
        x = torch.max_pool2d(torch.relu(self.conv1(image.view(-1, 1, 28, 28))), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return torch.log_softmax(self.fc2(torch.relu(self.fc1(x.flatten(1)))), dim=1)

def train_loader_func(config, batch_size):
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    return torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=True)

torch.manual_seed(1)
init_orca_context(cluster_mode="local", cores=2)
"""

# How well the answers fit the labels, how far they are from what the trained model itself says, and who trained it.
ANSWERS = """
with torch.no_grad():
    own = est.get_model().eval()(torch.from_numpy(images)).numpy()
print("RESULT", json.dumps({
    "rows": len(scores), "accuracy": float((scores.argmax(axis=1) == labels).mean()),
    "difference": float(np.abs(scores - own).max()), "trainers": os.listdir(trainers), "sync": est.backend.sync,
}))
stop_orca_context()
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_bigdl_backend_is_the_default_trains_a_loader_and_predicts_xshards() -> None:
    create, train = code_blocks(document(DOCUMENT, "### **3. PyTorch Estimator**", DISTRIBUTED))
    given = 'train_loader = train_loader_func({}, 32)\nxshards = XShards.partition({"x": images})\n'
    answers = 'scores = np.concatenate([shard["prediction"] for shard in predictions.collect()])\n'

    result = result_of(GIVEN + given + create + train + answers + ANSWERS)

    assert (result["trainers"], result["sync"]) == (["spark"], "sharded")
    assert_learned(result)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("backend", "model"),
    [
        ("torch_distributed", "model_creator"),  # as the text beside the code says
        ("spark", "model"),  # as the code says: the model that the program above it made
    ],
)
def test_creators_train_on_workers_and_predict_a_dataframe(backend: str, model: str) -> None:
    create, train = code_blocks(document(DOCUMENT, DISTRIBUTED, "### **4. MXNet Estimator**"))
    create = substitute(create, 'backend="torch_distributed")', f"backend={backend!r})")
    create = substitute(create, "model=model,", f"model={model},")
    given = """
model = LeNet()
columns = [(number, image.tolist()) for number, image in enumerate(images)]
df = OrcaContext.get_spark_session().createDataFrame(columns, "number int, image array<float>").repartition(3)
"""
    if backend == "torch_distributed":  # Ray beside Spark: the first trains, the second holds the DataFrame
        given += 'init_orca_context(runtime="ray", cores=2)\n'
    answers = """
rows = {row.number: np.asarray(row.prediction) for row in predictions.collect()}
scores = np.stack([rows[number] for number in range(len(images))])
"""

    result = result_of(GIVEN + given + create + train + answers + ANSWERS)

    assert result["trainers"] == [{"torch_distributed": "ray", "spark": "spark"}[backend]]
    assert result["sync"] == "replicated"
    assert_learned(result)


def result_of(program: str) -> dict[str, object]:
    said = run_program(program, timeout=180).stdout
    (line,) = [line for line in said.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


def assert_learned(result: dict[str, object]) -> None:
    assert result["rows"] == ROWS
    assert result["accuracy"] >= 0.5  # type: ignore[operator]  # ten classes: chance gives 0.1
    assert result["difference"] < 1e-4  # type: ignore[operator]
