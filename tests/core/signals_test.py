"""Termination signals are remembered; a second SIGINT does what it did before."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from lingvo_pipe.core.signals import FirstSignal, TerminationSignals, announcing_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_first_signal_is_remembered(number: signal.Signals) -> None:
    came: list[int] = []
    before = signal.signal(number, lambda *_: came.append(number))
    try:
        with TerminationSignals() as stops:
            signal.raise_signal(number)
            assert stops.last_signal_name == number.name
            assert came == []
            signal.raise_signal(number)
            # A scheduler's second SIGTERM must not lose what is being saved.
            assert came == ([number] if number == signal.SIGINT else [])
        assert stops.last_signal_name == number.name
    finally:
        signal.signal(number, before)


def test_afterwards_signals_do_what_they_did_before() -> None:
    before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
    with TerminationSignals():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)] == before


def test_other_threads_receive_no_signals() -> None:
    found: list[str | None] = []

    def use() -> None:
        with TerminationSignals() as stops:
            found.append(stops.last_signal_name)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert found == [None]


def test_a_listener_receives_every_signal() -> None:
    received: list[signal.Signals] = []
    with TerminationSignals([signal.SIGINT, signal.SIGUSR1], received.append):
        for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGINT):
            signal.raise_signal(number)
    assert received == [signal.SIGUSR1, signal.SIGINT, signal.SIGINT]


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with TerminationSignals() as stops:
            signal.raise_signal(signal.SIGHUP)
        assert stops.last_signal_name is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_signal_is_known() -> None:
    with TerminationSignals():
        first = FirstSignal()
        try:
            assert first.get() is None
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            assert first.get() == first.get() == signal.SIGINT
        finally:
            first.close()
        assert first.get() == signal.SIGINT


def test_a_signal_is_announced_once_and_reaches_an_earlier_reader() -> None:
    announced: list[str] = []
    with TerminationSignals():
        first = FirstSignal()
        try:
            with announcing_signals(announced.append):
                assert announced == []
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)
            assert announced == ["SIGTERM"]
            assert first.get() == signal.SIGTERM
            signal.raise_signal(signal.SIGTERM)
            assert announced == ["SIGTERM"]
        finally:
            first.close()


def test_a_signal_is_announced_while_the_main_thread_waits() -> None:
    waiting, names = threading.Semaphore(0), []

    def announce(name: str) -> None:
        names.append(name)
        waiting.release()

    with TerminationSignals(), announcing_signals(announce):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert waiting.acquire(timeout=300.0)
    assert names == ["SIGTERM"]
