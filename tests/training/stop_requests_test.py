"""A first signal is remembered; a second SIGINT does what it would have done."""

from __future__ import annotations

import signal
import threading

import pytest

from lingvo_pipe.training.stop_requests import StopRequests


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_once(number: signal.Signals) -> None:
    came: list[int] = []
    before = signal.signal(number, lambda *_: came.append(number))
    try:
        with StopRequests() as stops:
            signal.raise_signal(number)
            assert stops.asked_by == number.name
            assert came == []
            signal.raise_signal(number)
            # A scheduler's second SIGTERM must not lose what is being saved.
            assert came == ([number] if number == signal.SIGINT else [])
        assert stops.asked_by == number.name
    finally:
        signal.signal(number, before)


def test_afterwards_signals_do_what_they_did() -> None:
    before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
    with StopRequests():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)] == before


def test_other_threads_have_no_signals() -> None:
    found: list[str | None] = []

    def use() -> None:
        with StopRequests() as stops:
            found.append(stops.asked_by)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert found == [None]
