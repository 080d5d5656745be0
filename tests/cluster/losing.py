"""Losing: a program whose executor dies in the midst of training, on any cluster of Spark."""

from __future__ import annotations

from pathlib import Path


def losing(context: str, mark: Path, per_node: int = 1, how: str = "SIGKILL") -> str:
    """Return the program.

    `context` are the arguments of init_orca_context, `mark` a file that says it may die, `per_node` the ranks of each
    executor, two in all, and `how` the signal that it gets.

    It prints three words: whether the mark is still there, whether the weights are those of a run that lost nothing,
    and whether the losses are.
    """
    return f"""
import os, signal, time, psutil, numpy as np, torch
from torch import nn
from orca import Estimator, init_orca_context, stop_orca_context
from orca.callbacks import Callback
from orca.triggers import SeveralIteration

class Trouble(Callback):
    def after_train_iter(self, runner):
        if runner.rank == 1 and runner.global_step == 7 and os.path.exists({str(mark)!r}):
            os.unlink({str(mark)!r})
            executor = next(each for each in psutil.Process().parents() if each.name() == "java")
            executor.send_signal(signal.{how})
            time.sleep(3)

def train(backend, **more):
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    made = Estimator.from_torch(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), loss=nn.MSELoss(),
        backend=backend, workers_per_node={per_node} if backend == "spark" else 2, seed=1, use_tqdm=False,
        model_dir={str(mark.parent / "models")!r} if backend == "spark" else None,
    )
    x = np.random.default_rng(0).random((41, 3))
    lines = made.fit((x, x.sum(1, keepdims=True)), 3, 8, **more)
    return lines, made.get_model().weight.detach().numpy()

init_orca_context({context})
lines, weight = train("spark", max_failures=1, checkpoint_trigger=SeveralIteration(3), callbacks=[Trouble()])
stop_orca_context()
plain, expected = train("local", callbacks=[Callback()])
print(os.path.exists({str(mark)!r}), abs(weight - expected).max() < 1e-12,
      max(abs(a["train_loss"] - b["train_loss"]) for a, b in zip(lines, plain)) < 1e-12)
"""
