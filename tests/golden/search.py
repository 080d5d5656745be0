"""A search over learning rates and sizes by a plain loop of Estimators."""

import itertools

import numpy as np
import torch

from orca import Estimator
from orca.callbacks import EarlyStopping
from orca.metrics import Accuracy

rng = np.random.default_rng(0)
x = rng.normal(size=(600, 2)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("float32")
train, valid = (x[:400], y[:400]), (x[400:], y[400:])


def model_creator(config):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(2, config["hidden"]), torch.nn.Tanh(), torch.nn.Linear(config["hidden"], 1), torch.nn.Sigmoid()
    )


best = None
for lr, hidden in itertools.product([0.001, 0.05], [2, 16]):
    est = Estimator.from_torch(
        model=model_creator,
        optimizer=lambda model, config: torch.optim.Adam(model.parameters(), lr=config["lr"]),
        loss=torch.nn.BCELoss(),
        metrics=[Accuracy()],
        config={"lr": lr, "hidden": hidden},
        backend="local",
        workers_per_node=2,
    )
    est.fit(
        train, epochs=8, batch_size=40, validation_data=valid, callbacks=[EarlyStopping(monitor="val_loss", patience=2)]
    )
    scores = est.evaluate(valid)
    print(f"lr={lr} hidden={hidden}: accuracy {scores['Accuracy']:.3f}")
    if best is None or scores["Accuracy"] > best[0]:
        best = (scores["Accuracy"], lr, hidden)
        est.save("best")
print("best", best[1:])
config = {"hidden": best[2]}
again = Estimator.from_torch(
    model=model_creator, loss=torch.nn.BCELoss(), metrics=[Accuracy()], config=config, backend="local"
)
again.load("best")
print("loaded", again.evaluate(valid)["Accuracy"] == best[0])
