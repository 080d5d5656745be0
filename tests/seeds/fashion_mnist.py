"""The steps of seed 003 as one program: creators of torchvision's images, a network, a context, an Estimator."""

import argparse
import json
import os

import torch
import torch.nn as nn
import torch.optim as optim
import torchvision
import torchvision.transforms as transforms

from bigdl.orca import init_orca_context, stop_orca_context
from bigdl.orca.learn.metrics import Accuracy
from bigdl.orca.learn.pytorch import Estimator

parser = argparse.ArgumentParser()
parser.add_argument("--cluster_mode", default="local")
parser.add_argument("--data_dir", default="./data")
args = parser.parse_args()


# 1. The data: Orca passes config and batch_size, the rest are the program's own.
def train_data_creator(config={}, batch_size=16, download=True, data_dir=args.data_dir):  # noqa: B006
    return images_of(True, batch_size, download, data_dir)


def validation_data_creator(config={}, batch_size=16, download=True, data_dir=args.data_dir):  # noqa: B006
    return images_of(False, batch_size, download, data_dir)


def images_of(train, batch_size, download, data_dir):
    lighten = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.3, 0.35)])
    dataset = torchvision.datasets.FashionMNIST(root=data_dir, train=train, download=download, transform=lighten)
    return torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=train, num_workers=0)


# 2. The network.
def model_creator(config):
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(196, 48), nn.GELU(), nn.Linear(48, 10))


# 3. The loss and the optimizer.
criterion = nn.CrossEntropyLoss()


def optimizer_creator(model, config):
    return optim.SGD(model.parameters(), lr=0.02, momentum=0.8)


# 4. The context.
init_orca_context(cluster_mode=args.cluster_mode)

# 5. The Estimator.
est = Estimator.from_torch(
    model=model_creator,
    optimizer=optimizer_creator,
    loss=criterion,
    metrics=[Accuracy()],
    model_dir=os.getcwd(),
    backend="spark",
)

# 6. Training and testing.
lines = est.fit(train_data_creator, epochs=2, batch_size=32)
scores = est.evaluate(validation_data_creator, batch_size=32)
print("RESULT", json.dumps({"lines": lines, "scores": scores}))
stop_orca_context()
