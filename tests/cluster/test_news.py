"""News: what takes long is said line by line."""

from __future__ import annotations

import socket
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


def test_the_first_service_that_answers_is_taken() -> None:
    with socket.socket() as dead, socket.create_server(("127.0.0.1", 0)) as door:
        dead.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (dead, door)]
        here, refusals = news.knock(addresses)
        assert here == "127.0.0.1" and refusals[0].startswith(f"{addresses[0]} (") and "refused" in refusals[0]
        assert news.knock(addresses[:1]) == ("", refusals)


def test_a_wait_ends_with_the_answer_with_an_error_or_with_its_time() -> None:
    answers = iter([0, "", "there", "not asked"])
    assert news.wait_until(lambda: next(answers), None, every=0.0) == "there"
    assert news.wait_until(lambda: None, 0.0) is None
    with pytest.raises(ZeroDivisionError):
        news.wait_until(lambda: 1 // 0, None)
