"""Groups: how pytest-xdist deals out groups of tests. Owns what happens to the tests of a process that died."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class GroupScheduling(LoadGroupScheduling):
    """The scheduler of `--dist loadgroup`, for runs in which a test kills its process.

    That of pytest-xdist 3.8 runs this test again, in the next process, and gives a new process groups that are done, or
    a single test. It runs nothing then, never asks for more, and the run waits for it without end
    (pytest-xdist issues 1323, 1327 and 1378).
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Take a process out of the run; return the test that it was running, which has failed."""
        groups = self.assigned_work.pop(node)
        running = next((name for tests in groups.values() for name, done in tests.items() if not done), None)
        for group, tests in groups.items():
            rest = {name: done for name, done in tests.items() if not done and name != running}
            if rest:
                self.workqueue[group] = rest
        for other in self.nodes:
            self._reschedule(other)
        return running

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process groups until it has two tests, or it runs none; let it end after those if all are given."""
        if node.shutting_down or node not in self.registered_collections:  # it still collects, and asks again then
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """Return the scheduler where groups of tests run in several processes."""
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None
