"""Twelve wrong usages: each is one short message that names the remedy."""

import numpy as np
import pandas as pd
import torch

from orca import Estimator
from orca.callbacks import EarlyStopping
from orca.metrics import Accuracy

torch.manual_seed(0)
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int64")
table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "ab": list(x), "y": y})


def estimator(model=None, loss=None, **options):
    model = model or torch.nn.Linear(4, 2)
    options = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": loss or torch.nn.CrossEntropyLoss(),
        "backend": "local",
        **options,
    }
    return Estimator.from_torch(model=model, **options)


USAGES = {
    "worker_per_node=": lambda: estimator(worker_per_node=2),
    "backend='sparkk'": lambda: estimator(backend="sparkk"),
    "metrics=['acuracy']": lambda: estimator(metrics=["acuracy"]),
    "fit(x, y)": lambda: estimator().fit(x, y),
    "x and y of other lengths": lambda: estimator().fit((x, y[:-1])),
    "no label_cols": lambda: estimator().fit(table, feature_cols=["ab"]),
    "two columns for one input": lambda: estimator().fit(table, feature_cols=["a", "b"], label_cols=["y"]),
    "a column that is not there": lambda: estimator().fit(table, feature_cols=["a", "c"], label_cols=["y"]),
    "a monitor without validation": lambda: estimator().fit((x, y), callbacks=[EarlyStopping(monitor="val_acc")]),
    "a class that is not there": lambda: estimator().fit((x, y + 1), epochs=1, batch_size=16),
    "features of another size": lambda: estimator().predict(x[:, :3]),
    "logits in Accuracy": lambda: estimator(torch.nn.Linear(4, 1), torch.nn.MSELoss(), metrics=[Accuracy()]).evaluate(
        (100 * x, y)
    ),
}

for number, (title, usage) in enumerate(USAGES.items(), 1):
    try:
        usage()
        print(f"{number}. {title}: no error")
    except Exception as error:
        print(f"{number}. {title}\n   {type(error).__name__}: {error}")
