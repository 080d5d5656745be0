"""Tracebacks: which frames are the user's, and what an error shows of the rest."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from orca.monitor import tracebacks, verbosity
from orca.monitor.tracebacks import digest, frames_of, owner, shortened

TORCH = "/env/lib/python3.11/site-packages/torch/nn/modules/module.py"
TRACE = f"""Traceback (most recent call last):
  File "{tracebacks._homes[0]}/core/engine.py", line 146, in run_rank
    result = work(peer)
             ^^^^^^^^^^
  File "/home/me/train.py", line 9, in forward
    return self.block(x)
  File "{TORCH}", line 1787, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
  File "/home/me/blocks.py", line 21, in forward
    return self.second(h)
           ^^^^^^^^^^^^^^
  File "{TORCH}", line 1798, in _call_impl
    return forward_call(*args, **kwargs)
RuntimeError: mat1 and mat2 shapes cannot be multiplied
"""


@pytest.fixture(autouse=True)
def default_verbosity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbosity, "_requested", None)
    monkeypatch.delenv(verbosity.DEBUG_VARIABLE, raising=False)


def test_the_users_frames_come_first_the_innermost_at_the_top_and_what_to_do_at_the_end() -> None:
    assert digest(TRACE).splitlines() == [
        '  File "/home/me/blocks.py", line 21, in forward',
        "    return self.second(h)",
        '  File "/home/me/train.py", line 9, in forward',
        "    return self.block(x)",
        "  ... 3 frames of torch and orca (ORCA_DEBUG=1 shows all)",
        "Correct the code at blocks.py:21.",
    ]


def test_without_a_frame_of_the_users_an_error_that_says_what_to_do_shows_none() -> None:
    file = f"{tracebacks._homes[0]}/rows/arrow.py"
    ours = f'Traceback\n  File "{file}", line 66, in to_numpy\n    raise missing(name)\nE: x\n'
    assert digest(ours, own=True) == ""
    assert (
        digest(TRACE.replace("/home/me/", "/usr/lib/python3.12/")).splitlines()[0]
        == f'  File "{TORCH}", line 1798, in _call_impl'
    )


def test_of_a_chain_the_first_cause_comes_first_and_what_it_was_handled_by_is_last() -> None:
    def inner() -> None:
        raise KeyError("x")

    try:
        try:
            inner()
        except KeyError as error:
            raise ValueError("no x") from error
    except ValueError:
        text = traceback.format_exc()
    assert frames_of(text)[0].name == "inner"
    while_handling = text.replace(
        "The above exception was the direct cause of", "During handling of the above exception, another"
    )
    while_handling = while_handling.replace("another the following exception:", "another exception occurred:")
    assert frames_of(while_handling)[0].name.startswith("test_of_a_chain")


@pytest.mark.parametrize(
    ("file", "library"),
    [
        (TORCH, "torch"),
        ("/env/lib/python3.11/site-packages/mymodels/net.py", ""),
        ("/env/lib/python3.11/site-packages/orca/job.py", "orca"),
        (tracebacks.__file__, "orca"),
        ("/env/lib/python3.12/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", "pyspark"),
        ("/spark/python/lib/py4j-0.10.9-src.zip/py4j/protocol.py", "py4j"),
        ("/usr/lib/python3.11/contextlib.py", "Python"),
        (traceback.__file__, "Python"),
        ("<frozen importlib._bootstrap>", "Python"),
        ("/home/me/orca/train.py", ""),
        ("/home/me/lib/net.py", ""),
        ("/opt/python3.11/app/train.py", ""),
        ("/tmp/ipykernel_77/123.py", ""),
        ("<stdin>", ""),
    ],
)
def test_a_file_belongs_to_a_library_or_to_the_user(file: str, library: str) -> None:
    assert owner(file) == library


def test_a_stack_shows_frames_but_has_no_line_to_correct() -> None:
    stack = TRACE.partition("\n")[2]
    assert digest(stack).startswith('  File "/home/me/blocks.py"') and "Correct" not in digest(stack)
    libraries = digest(stack.replace("/home/me/", "/usr/lib/python3.12/"))
    assert libraries.startswith(f'  File "{TORCH}"') and "... 4 frames of torch, Python and orca" in libraries


def test_many_frames_and_pages_of_text_are_cut() -> None:
    frames = "Traceback\n" + "".join(f'  File "/home/me/a.py", line {i}, in f{i}\n    f{i}()\n' for i in range(100))
    assert len(digest(frames).splitlines()) == 2 * tracebacks.USER_FRAMES + 2
    text = "\n".join(f"line {i}" for i in range(100))
    assert len(shortened(text).splitlines()) == tracebacks.REASON_LINES + 1
    assert shortened(text).endswith("line 99") and shortened("short") == "short"


def test_a_long_line_is_cut() -> None:
    text = shortened("ValueError: " + "x" * 5_000_000)
    assert len(text) < tracebacks.LINE_WIDTH + 100 and text.endswith("more characters; ORCA_DEBUG=1 shows all)")


def test_the_traceback_in_the_text_of_a_data_loaders_error_is_left_out() -> None:
    text = "RuntimeError: Caught RuntimeError in DataLoader worker process 0.\nOriginal " + TRACE
    assert shortened(text).splitlines() == [
        "RuntimeError: Caught RuntimeError in DataLoader worker process 0.",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    ]


def test_a_layer_that_was_called_with_the_users_data_has_a_remedy_and_other_libraries_have_none() -> None:
    layer = TRACE.replace("/home/me/", "/usr/lib/python3.12/").replace("module.py", "linear.py")
    assert digest(layer).splitlines()[-1].startswith("It was called with your data: check that the shapes and types of")
    other = layer.replace("/torch/nn/modules/", "/torch/distributed/")
    assert digest(other).splitlines()[-1].startswith("  ... ")


def test_of_an_error_that_says_what_to_do_only_the_users_own_code_is_to_be_corrected() -> None:
    assert digest(TRACE, own=True).splitlines()[-1].startswith("  ... ")  # torch raised it
    callback = '  File "/home/me/notify.py", line 3, in on_epoch_end\n    send()\nE: x\n'
    assert digest(TRACE.partition("RuntimeError")[0] + callback, own=True).endswith("Correct the code at notify.py:3.")


def test_the_frames_of_a_group_of_exceptions_are_shown() -> None:
    group = "  + Exception " + TRACE.replace("Traceback", "Group Traceback").replace("\n", "\n  | ")
    assert digest(group).splitlines()[0] == '  File "/home/me/blocks.py", line 21, in forward'
    assert digest(group).endswith("Correct the code at blocks.py:21.")


def test_the_stack_of_a_crash_begins_with_its_innermost_frame() -> None:
    stack = f"""Current thread 0x00007f0000000000 (most recent call first):
  File "{TORCH}", line 3 in call_native_code
  File "/home/me/net.py", line 9 in forward
  File "/home/me/net.py", line 5 in outer"""
    assert digest(stack).splitlines() == [
        '  File "/home/me/net.py", line 9, in forward',
        '  File "/home/me/net.py", line 5, in outer',
        "  ... 1 frames of torch (ORCA_DEBUG=1 shows all)",
    ]


def test_at_debug_all_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(verbosity.DEBUG_VARIABLE, "1")
    text = "\n".join(map(str, range(100)))
    assert digest(TRACE) == TRACE.rstrip() and shortened(text) == text


def test_a_traceback_is_cut_below_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def below() -> None:
        raise ValueError

    def verb() -> None:
        below()

    def names() -> list[str]:
        try:
            verb()
        except ValueError as error:
            tracebacks.cut_below(error, verb.__code__)
            return [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        raise AssertionError

    assert names() == ["names", "verb"]
    monkeypatch.setenv(verbosity.DEBUG_VARIABLE, "1")
    assert names() == ["names", "verb", "below"]
    assert sys.exc_info() == (None, None, None)


def test_of_an_error_of_the_users_code_only_the_users_frames_stay_below_a_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours: dict[str, Any] = {}
    code = "def through(work):\n    return work()\n\ndef fails():\n    raise ValueError\n"
    exec(compile(code, f"{tracebacks._homes[0]}/job.py", "exec"), ours)

    def forward() -> None:
        ours["fails"]()

    def names(work: Callable[[], None]) -> list[str]:
        def verb() -> None:
            ours["through"](lambda: ours["through"](work))

        try:
            verb()
        except ValueError as error:
            tracebacks.cut_between(error, verb.__code__)
            return [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        raise AssertionError

    assert names(forward) == ["names", "verb", "<lambda>", "forward"]
    monkeypatch.setattr(tracebacks, "owner", lambda file: "orca")  # without a frame of the user's it may be our mistake
    assert names(forward) == ["names", "verb", "through", "<lambda>", "through", "forward", "fails"]


def test_the_error_behind_one_of_ours_is_shown_only_where_the_users_code_raised_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours: dict[str, Any] = {}
    code = "def call(work):\n try:\n  work()\n except Exception as error:\n  raise LookupError from error\n"
    exec(compile(code, f"{tracebacks._homes[0]}/job.py", "exec"), ours)

    def users() -> None:
        raise ValueError

    def shown(work: Callable[[], Any]) -> bool:
        with pytest.raises(LookupError) as error:
            ours["call"](work)
        return tracebacks.shows_cause(error.value)

    in_a_library = partial(int, "x")
    assert not shown(in_a_library) and shown(users)
    monkeypatch.setenv(verbosity.DEBUG_VARIABLE, "1")
    assert shown(in_a_library)
