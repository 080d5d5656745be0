"""A model that returns a dict, with a loss of its own."""

import numpy as np
import torch
import torch.nn.functional as F

from orca import Estimator


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.ReLU())
        self.kind = torch.nn.Linear(32, 3)
        self.size = torch.nn.Linear(32, 1)

    def forward(self, x):
        x = self.body(x)
        return {"kind": self.kind(x), "size": self.size(x)}


def loss(output, target):
    kind, size = target["kind"], target["size"]
    return F.cross_entropy(output["kind"], kind) + 0.1 * F.mse_loss(output["size"].squeeze(1), size)


def kind_accuracy(output, target):
    return (output["kind"].argmax(1) == target["kind"]).float().mean()


rng = np.random.default_rng(0)
x = rng.normal(size=(500, 6)).astype("float32")
y = {"kind": x[:, :3].argmax(axis=1), "size": x.sum(axis=1)}

torch.manual_seed(0)
model = Net()
est = Estimator.from_torch(
    model=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
    loss=loss,
    metrics=[kind_accuracy],
    backend="local",
    workers_per_node=2,
)
stats = est.fit({"x": x, "y": y}, epochs=5, batch_size=50, validation_data={"x": x, "y": y})
print(stats[-1])
print(est.evaluate({"x": x, "y": y}))
predictions = est.predict(x)
print(type(predictions).__name__, {name: value.shape for name, value in predictions.items()})

alone = est.get_model()
with torch.no_grad():
    output = alone(torch.from_numpy(x))
    expected = loss(output, {name: torch.from_numpy(value) for name, value in y.items()})
print("as torch alone:", np.allclose(est.evaluate({"x": x, "y": y})["val_loss"], expected, atol=1e-5))
print("the same predictions:", np.allclose(predictions["kind"], output["kind"], atol=1e-5))
