"""Habits that the code is leaving behind do not come back: no file has more of them than `guards.json` lists."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).resolve().parent.parent / "tools" / "guards.py"


@pytest.fixture(scope="module")
def guards() -> Any:
    spec = importlib.util.spec_from_file_location("guards", TOOL)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_old_habits_only_become_fewer(guards: Any) -> None:
    present, listed = guards.counts(), guards.allowed()
    assert guards.raised(present, listed) == [], "python tools/guards.py --show RULE FILE lists the lines"
    assert present == listed, "fewer than listed: run python tools/guards.py, so that they do not come back"


def test_each_rule_sees_what_it_forbids(guards: Any, tmp_path: Path) -> None:
    file = tmp_path / "sample.py"
    file.write_text(
        "class Learner:\n"
        "    def __init__(self):\n"
        "        self.model = None\n"
        "    def join(self, world):\n"
        "        self.model = self.optimizer = 1\n"
        "        world.rank = 2\n"
        "        del self.model\n"
        "        return hasattr(world, 'size'), getattr(world, self.name)\n"
        "    def is_ready(self):\n"
        "        'Say whether it is ready.'\n"
    )
    found = {rule: [what for _, what in hits(file)] for rule, (hits, _) in guards.RULES.items()}
    assert found["late attributes"] == ["Learner.optimizer", "del self.model"]
    assert found["writes from outside"] == ["world.rank"]
    assert found["literal getattr"] == ["hasattr(world, 'size')"]
    assert [what.split(":")[0] for what in found["phrases"]] == ["'Say whether'"]
    assert found["long files"] == []
