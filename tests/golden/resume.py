"""A fit that is interrupted by Ctrl-C, one that is killed, and the runs that go on after each of them."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import torch

from orca import Estimator
from orca.callbacks import Callback

x = np.random.default_rng(0).normal(size=(400, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)


class Slow(Callback):
    def after_train_iter(self, runner):
        time.sleep(0.02)
        if runner.epochs >= 2:
            open("reached", "w").close()


def train(folder):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    est = Estimator.from_torch(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.05),
        loss=torch.nn.MSELoss(),
        model_dir=folder,
        backend="local",
        workers_per_node=2,
    )
    stats = est.fit((x, y), epochs=4, batch_size=20, callbacks=[Slow()], resume=True)
    print([epoch["epoch"] for epoch in stats], flush=True)
    return est.get_model().state_dict()["weight"]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1])
        sys.exit()
    expected = train("unbroken")
    for how in (signal.SIGINT, signal.SIGKILL):
        if os.path.exists("reached"):
            os.remove("reached")
        with subprocess.Popen(
            [sys.executable, __file__, how.name], start_new_session=True, stderr=subprocess.PIPE
        ) as p:
            while not os.path.exists("reached"):
                time.sleep(0.05)
            os.killpg(p.pid, how) if how == signal.SIGINT else p.kill()
            said = p.stderr.read().decode()
        print(how.name, "ended with status", p.returncode, "and", said.count("Traceback"), "tracebacks")
        print(*said.splitlines()[-1:])
        weights = train(how.name)
        print("as the unbroken run:", torch.allclose(weights, expected, atol=1e-6))
