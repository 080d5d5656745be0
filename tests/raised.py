"""Raised: errors in tests, told by their code: a text may become better, and the test of it stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orca.errors import OrcaError


@contextmanager
def raises(code: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[OrcaError]]:
    """Check that the block raises an error of Orca's with a code, and a text that matches a pattern if one is given."""
    with pytest.raises(OrcaError, match=match) as caught:
        yield caught
    assert caught.value.code == code, f"the code is {caught.value.code!r}, of: {caught.value}"
