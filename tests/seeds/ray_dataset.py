"""A program for BigDL Orca: a Ray Dataset trains a network and is predicted. argv: the file to write."""

import sys

import numpy as np
import ray
import torch
from torch import nn

from bigdl.orca import OrcaContext, init_orca_context, stop_orca_context
from bigdl.orca.learn.pytorch import Estimator
from seeds.quarters import answers, classifier, quarters


def model_creator(config):
    return classifier()


def optimizer_creator(model, config):
    return torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.1))


init_orca_context(cluster_mode="local", cores=4)
ray_ctx = OrcaContext.get_ray_context()
print("nodes", ray_ctx.num_ray_nodes, ray_ctx.ray_node_cpu_cores, bool(ray_ctx.address_info))

images, labels = quarters()
dataset = ray.data.from_items([{"image": image, "label": label} for image, label in zip(images, labels, strict=True)])
est = Estimator.from_torch(
    model=model_creator,
    optimizer=optimizer_creator,
    loss=nn.NLLLoss(),
    config={"lr": 0.1},
    backend="ray",
    workers_per_node=2,
)
stats = est.fit(data=dataset, epochs=2, batch_size=len(labels), feature_cols=["image"], label_cols=["label"])
scores = est.evaluate(data=dataset, batch_size=64, feature_cols=["image"], label_cols=["label"])
print("rows", [line["num_samples"] for line in stats], scores["num_samples"])
predicted = est.predict(data=dataset, batch_size=64, feature_cols=["image"])
outputs = np.stack([row["prediction"] for row in predicted.take_all()])
print("predictions", np.allclose(outputs, answers(est.get_model()), atol=1e-5))
torch.save(est.get_model().state_dict(), sys.argv[1])
est.shutdown()
stop_orca_context()
