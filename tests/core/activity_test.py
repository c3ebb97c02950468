"""Activities: a spinner on a terminal, few lines in a file, nothing if it is short."""

from __future__ import annotations

import io
import re
import time

import pytest

from lingvo_pipe.core.activity import activity, set_detail


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _until(stream: io.StringIO, text: str) -> None:
    end = time.monotonic() + 20
    while text not in stream.getvalue() and time.monotonic() < end:
        time.sleep(0.01)


def test_a_terminal_gets_a_spinner_that_vanishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    with activity("tracing", stream):
        _until(stream, "/ tracing ...")
        set_detail("layer 3 of 8")
        _until(stream, "tracing, layer 3 of 8 ...")
    frames = stream.getvalue().split("\r")
    shown = [frame for frame in frames if frame.strip()]
    assert re.fullmatch(r"\| tracing \.\.\. \d+ s *", shown[0])
    assert re.fullmatch(r". tracing, layer 3 of 8 \.\.\. \d+ s *", shown[-1])
    assert "\n" not in stream.getvalue()
    assert not frames[-2].strip()  # Erased, and the cursor is back at the start.
    assert frames[-1] == ""


def test_a_file_gets_few_lines() -> None:
    stream = io.StringIO()
    with activity("tracing", stream, file_delay=0.01):
        _until(stream, "\n")
        set_detail("layer 3 of 8")
        time.sleep(0.5)
    assert re.fullmatch(r"tracing \.\.\. 0 s\n", stream.getvalue())


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_short_activity_shows_nothing(stream: io.StringIO) -> None:
    with activity("tracing", stream):
        pass
    assert stream.getvalue() == ""


def test_a_detail_belongs_to_the_innermost_activity() -> None:
    outer, inner = io.StringIO(), io.StringIO()
    set_detail("nobody's")
    with activity("outer", outer, file_delay=0.5):
        with activity("inner", inner, file_delay=0.01):
            set_detail("1 of 2")
            _until(inner, "\n")
        _until(outer, "\n")
    assert inner.getvalue().startswith("inner, 1 of 2 ...")
    assert outer.getvalue().startswith("outer ...")


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_the_work_goes_on_if_nobody_reads() -> None:
    with activity("tracing", Closed(), file_delay=0.0):
        time.sleep(0.05)


def test_an_error_ends_it() -> None:
    with pytest.raises(KeyError), activity("tracing", io.StringIO()):
        raise KeyError
