"""News: what takes long is said line by line."""

from __future__ import annotations

import time

import pytest

from orca.cluster import news


def test_what_is_done_is_said_at_once_and_again_while_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(news, "EVERY", 0.05)
    with news.telling("packing 3 MB", lambda: "1 MB written"):
        time.sleep(0.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "[orca] packing 3 MB" and lines[1] == "[orca] packing 3 MB: 0 s, 1 MB written"


@pytest.mark.parametrize(("size", "words"), [(5, "5 B"), (1234, "1 kB"), (5e6, "5 MB"), (8.94e9, "8.9 GB")])
def test_sizes_are_in_words(size: float, words: str) -> None:
    assert news.human(size) == words
