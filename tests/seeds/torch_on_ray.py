"""A program for BigDL Orca: data creators train a network on Ray, which starts by itself. argv: the file to write."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bigdl.orca import init_orca_context, stop_orca_context
from bigdl.orca.learn.metrics import Accuracy
from bigdl.orca.learn.pytorch import Estimator
from seeds.quarters import classifier, quarters


def model_creator(config):
    model = classifier()
    model.train()
    return model


def optimizer_creator(model, config):
    return torch.optim.Adam(model.parameters(), lr=config["lr"])


def train_loader_creator(config, batch_size):
    images, labels = quarters()
    return DataLoader(TensorDataset(torch.from_numpy(images), torch.from_numpy(labels)), batch_size=batch_size)


def test_loader_creator(config):
    return train_loader_creator(config, config["test_size"])


init_orca_context(cluster_mode="local", cores=8, memory="1g")
est = Estimator.from_torch(
    model=model_creator,
    optimizer=optimizer_creator,
    loss=nn.NLLLoss(),
    metrics=[Accuracy()],
    backend="ray",
    config={"lr": 0.01, "test_size": 50},
    workers_per_node=2,
)
stats = est.fit(data=train_loader_creator, epochs=2, batch_size=20, validation_data=test_loader_creator)
scores = est.evaluate(data=test_loader_creator, batch_size=50)
print("workers", est.num_workers, len(est.remote_workers))
print("epochs", [line["epoch"] for line in stats], "rows", [line["num_samples"] for line in stats])
print("scores", sorted(scores), float(scores["Accuracy"]) == stats[-1]["val_accuracy"])
torch.save(est.get_model().state_dict(), sys.argv[1])
est.shutdown()
stop_orca_context()
