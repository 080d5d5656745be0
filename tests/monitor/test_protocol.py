"""Protocol: a message comes back as it was, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any

import pytest

from orca.monitor.heartbeat import Beat, EpochEnd
from orca.monitor.protocol import Ack, Fail, Gathered, Hello, Log, Malformed, decode, encode


@pytest.mark.parametrize(
    "message",
    [
        Ack(),
        Beat(3, 1, 2, 9, loss=0.5),
        Beat(3),
        Fail("why\n", "where", True, "DataError", "null-values"),
        EpochEnd(3, ["loss=0.25", "val_loss=nan"], 12.5, 1.0),
        Gathered(7, ["ä", "\ud800"], ""),
        Hello("host"),
        Log("50%", "a.logger", 20),
    ],
)
def test_a_message_comes_back_as_it_was(message: tuple[Any, ...]) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert decode(line) == message and type(decode(line)) is type(message)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"7",
        b"[]",
        b'["Ack", 1]',
        b'[["Ack"]]',
        b'["Hello"]',
        b'["Hello", true]',
        b'["Bye", 0]',
        b'["Gather", 0.0, "text"]',
        b'["Gathered", 0, "text", ""]',
        b'["Gathered", 0, [1], ""]',
        b'["Gathered", 0, {"0": "a"}, ""]',
        b'["Log", null, "stdout", 0]',
        b'["Malformed", "x"]',
    ],
)
def test_anything_else_is_malformed(line: bytes) -> None:
    with pytest.raises(Malformed, match="a message is malformed"):
        decode(line)
