"""A REPL: a class is defined, trained, changed and trained again; a console runs each cell as it is typed."""

import code
import contextlib
import sys

CELLS = [
    "import numpy as np, torch",
    "from orca import Estimator",
    "x = np.ones((40, 4), 'float32'); y = np.ones((40, 1), 'float32')",
    """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.layer(x)
""",
    """
def model_creator(config):
    return Net()
""",
    """
def optimizer_creator(model, config):
    return torch.optim.SGD(model.parameters(), lr=0.1)
""",
    """
def make():
    return Estimator.from_torch(
        model=model_creator, optimizer=optimizer_creator, loss=torch.nn.MSELoss(), backend="local"
    )
""",
    "est = make()",
    "est",
    "stats = est.fit((x, y), epochs=2, batch_size=10)",
    "[sorted(epoch) for epoch in stats]",
    "est",
    """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(4, 8)
        self.layer = torch.nn.Linear(8, 1)
    def forward(self, x):
        return self.layer(self.hidden(x))
""",
    "stats = est.fit((x, y), epochs=1, batch_size=10)",
    "est = make()",
    "stats = est.fit((x, y), epochs=1, batch_size=10)",
    "est.predict(x).shape",
]

if __name__ == "__main__":
    with contextlib.redirect_stderr(sys.stdout):
        console = code.InteractiveConsole({"__name__": "__main__"})
        for cell in CELLS:
            lines = cell.strip("\n").splitlines()
            print(">>>", lines[0])
            more = False
            for line in lines:
                more = console.push(line)
            if more:
                console.push("")
