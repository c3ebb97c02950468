"""Activities: a spinner on a terminal, few lines in a file, nothing if it is short."""

from __future__ import annotations

import io
import re
import threading
import time
from types import SimpleNamespace

import pytest

from lingvo_pipe.core import activity as module
from lingvo_pipe.core.activity import activity, set_detail

PATIENCE = 300.0  # Seconds, on a busy machine.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _until(stream: io.StringIO, text: str) -> None:
    end = time.monotonic() + PATIENCE
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


class FourWaits:
    """An event that is set after the fourth wait. Waits only move the clock `now`."""

    def __init__(self) -> None:
        self.now, self._left = 0.0, 4

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self._left -= 1
        return self._left == 0


def test_a_file_gets_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, stream = FourWaits(), io.StringIO()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: ended.now))
    shown = module._Shown("tracing", stream, 5.0)
    monkeypatch.setattr(shown, "ended", ended)
    shown.run()
    assert stream.getvalue() == "tracing ... 5 s\ntracing ... 15 s\ntracing ... 30 s\n"


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_short_activity_shows_nothing(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TERMINAL_DELAY", PATIENCE)
    with activity("tracing", stream, file_delay=PATIENCE):
        pass
    assert stream.getvalue() == ""


def test_a_detail_belongs_to_the_innermost_activity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outer, inner = io.StringIO(), Terminal()
    set_detail("nobody's")
    with activity("outer", outer, file_delay=0.5):
        with activity("inner", inner):
            set_detail("1 of 2")
            _until(inner, "inner, 1 of 2 ...")
        _until(outer, "\n")
    assert "inner, 1 of 2 ..." in inner.getvalue()
    assert outer.getvalue().startswith("outer ...")


class Closed(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.was_tried = threading.Event()

    def write(self, text: str) -> int:
        self.was_tried.set()
        raise BrokenPipeError


def test_the_work_goes_on_if_nobody_reads() -> None:
    stream = Closed()
    with activity("tracing", stream, file_delay=0.0):
        assert stream.was_tried.wait(PATIENCE)


def test_an_error_ends_it() -> None:
    with pytest.raises(KeyError), activity("tracing", io.StringIO()):
        raise KeyError
