"""Programs of the documentation's kind for the Ray backends: a local context, and a Ray that starts by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from programs import run_program
from seeds.quarters import ROWS, assert_same_weights, classifier, quarters, trained

pytest.importorskip("pyspark")
pytest.importorskip("ray")
pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(200)]

ROOTS = {"bigdl": ("bigdl.orca", '"ray"'), "zoo": ("zoo.orca", '"torch_distributed"')}


def run(name: str, root: str, tmp_path: Path) -> tuple[list[str], nn.Module]:
    """Run a program under the names of one of the systems; return its lines and the model it trained."""
    module, backend = ROOTS[root]
    text = Path(__file__).with_name(name).read_text().replace("bigdl.orca", module).replace('"ray"', backend)
    quiet = dict.fromkeys(("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"))
    output = run_program(text, env=quiet, timeout=180, args=[str(tmp_path / "weights.pt")]).stdout
    model = classifier()
    model.load_state_dict(torch.load(tmp_path / "weights.pt"))
    return output.splitlines(), model


@pytest.mark.parametrize("root", ROOTS)
def test_torch_model_on_ray_with_data_creators(root: str, tmp_path: Path) -> None:
    lines, model = run("torch_on_ray.py", root, tmp_path)
    assert lines == [
        "workers 2 2",
        f"epochs [1, 2] rows [{ROWS}, {ROWS}]",
        "scores ['Accuracy', 'num_samples', 'val_loss'] True",
    ]
    assert_same_weights(model, trained(classifier(), lambda m: torch.optim.Adam(m.parameters(), 0.01), epochs=2))


@pytest.mark.parametrize("root", ROOTS)
def test_torch_model_on_a_ray_dataset(root: str, tmp_path: Path) -> None:
    lines, model = run("ray_dataset.py", root, tmp_path)
    assert lines == ["nodes 1 4 True", f"rows [{ROWS}, {ROWS}] {ROWS}", "predictions True"]
    expected = classifier()
    optimizer = torch.optim.SGD(expected.parameters(), 0.1)
    images, labels = map(torch.from_numpy, quarters())
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.nll_loss(expected(images), labels).backward()
        optimizer.step()
    assert_same_weights(model, expected)
