from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from orca.errors import OrcaError
from orca.frameworks.torch.paged import Pages, building_on_disk

WIDTH = 600  # 1.44 MB of weights: large enough for a file


class Net(nn.Module):
    """Draw weights in every way: the layers' own, some of its own, and some anew when all are there."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WIDTH, WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LazyLinear(3))
        self.own = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64))
        self.head = nn.Linear(WIDTH, WIDTH)
        self.head.weight = self.words.weight
        self.brief = nn.Parameter(torch.ones(2 * WIDTH, WIDTH, dtype=torch.bfloat16), requires_grad=False)
        nn.init.xavier_uniform_(self.body[0].weight)


def built(on_disk: bool) -> Net:
    torch.manual_seed(3)
    if not on_disk:
        return Net()
    with building_on_disk():
        return Net()


def mapped(tensor: torch.Tensor) -> bool:
    """Say whether a tensor lies in a shared mapping of a file that has no name."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(edge, 16) for edge in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < end:
            return line.split()[1].endswith("s") and line.endswith("(deleted)")
    return False


def test_a_model_built_on_disk_has_the_weights_it_would_have_in_memory() -> None:
    net, expected = built(True), built(False)
    assert net.head.weight is net.words.weight
    assert [type(param) for param in net.parameters()] == [type(param) for param in expected.parameters()]
    assert not net.brief.requires_grad
    named = {name: param for name, param in expected.named_parameters() if not name.startswith("body.1")}
    for name, param in named.items():
        torch.testing.assert_close(net.get_parameter(name), param, rtol=0, atol=0)
    with torch.no_grad():
        net.own.add_(1)  # as any other
        assert float(net.own.sum() - expected.own.sum()) == pytest.approx(WIDTH**2)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads the mappings of a process from /proc")
def test_only_large_weights_lie_in_files_and_only_those_built_meanwhile() -> None:
    net = built(True)
    large = {name for name, param in net.named_parameters() if not name.startswith("body.1") and mapped(param)}
    assert large == {"words.weight", "body.0.weight", "own", "brief"}
    assert not mapped(built(False).own)
    assert not mapped(copy.deepcopy(net).own)


def test_copies_do_not_follow_their_original() -> None:
    pages = Pages()
    for size in (3, WIDTH**2):
        original = torch.randn(size)
        made = pages.copy(original)
        before = made.clone()
        original.zero_()
        torch.testing.assert_close(made, before, rtol=0, atol=0)
        assert pages.hold(made) == (size > 3)
        assert not pages.hold(original)


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("os.posix_fallocate", full)
    words = rf"cannot put 1440000 bytes of weights into a file in {re.escape(str(tmp_path))}: .*No space.*room.*TMPDIR"
    with pytest.raises(OrcaError, match=words):
        Pages().copy(torch.ones(WIDTH, WIDTH))
    assert list(tmp_path.iterdir()) == []
