"""Kills a trainer over and over, each time at a moment of some kind.

Each start may train in another way, such as on other devices.
"""

from __future__ import annotations

import enum
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.command_line import CommandLine
from tests.support.forked_process import ForkedProcess

_KILLED = -9
_POLL_SECONDS = 0.002


class Moment(enum.Enum):
    """The activity of a trainer when it is killed."""

    STARTING = 0
    STEPPING = 1
    SAVING = 2
    EVALUATING = 3


# How long after the moment has come, in seconds, a trainer is killed at the latest.
_LATEST = {
    Moment.STARTING: 3.0,
    Moment.STEPPING: 0.3,
    Moment.SAVING: 0.02,
    Moment.EVALUATING: 0.1,
}


@dataclass(frozen=True)
class Kill:
    """A kill.

    Attributes:
        wanted: the moment that was waited for.
        is_hit: whether it lasted until the kill.
    """

    wanted: Moment
    is_hit: bool


class KilledRun:
    """A run that is killed and started again."""

    def __init__(
        self,
        command_line: CommandLine,
        flags: Sequence[str],
        logdir: Path,
        eval_interval: int,
        seed: int,
        ways: Sequence[Sequence[str]] = ((),),
    ):
        """Initializes it.

        Args:
            command_line: starts what is killed.
            flags: all of the trainer's but --logdir; every step is to be reported.
            logdir: of the run.
            eval_interval: every so many steps the run is evaluated.
            seed: of the times between moments and kills, and of the ways.
            ways: lists of more flags, of which each start takes one.
        """
        self._command_line = command_line
        self._output = logdir.with_suffix(".txt")
        self._flags = (*flags, f"--logdir={logdir}")
        self._incomplete = logdir / "checkpoints" / "incomplete"
        self._eval_interval = eval_interval
        self._random = random.Random(seed)
        self._ways = ways

    def train(self, moments: Sequence[Moment]) -> list[Kill]:
        """Trains to the end, with a kill at each of these moments in some order.

        Returns:
            The kills; fewer than asked for if the run ended before the last.
        """
        kills: list[Kill] = []
        for moment in self._random.sample(moments, len(moments)):
            kill = self._killed_at(moment)
            if kill is None:
                return kills
            kills.append(kill)
        assert self._start().wait() == 0, self._said()
        return kills

    def _killed_at(self, moment: Moment) -> Kill | None:
        """Starts a trainer and kills it; None if it has ended before."""
        before = self._scratch()
        trainer = self._start()
        while trainer.poll() is None:
            if self._is(moment, before):
                break
            time.sleep(_POLL_SECONDS)
        time.sleep(self._random.uniform(0.0, _LATEST[moment]))
        trainer.kill()
        code = trainer.wait()
        if code != _KILLED:
            assert code == 0, self._said()
            return None
        return Kill(moment, self._is(moment, before))

    def _start(self) -> ForkedProcess:
        way = self._random.choice(self._ways)
        return self._command_line.start_trainer(*self._flags, *way, output=self._output)

    def _said(self) -> str:
        return self._output.read_text()

    def _is(self, moment: Moment, before: int | None) -> bool:
        """Returns whether a moment is now.

        Args:
            moment: the moment.
            before: what `_scratch` was before the trainer was started.
        """
        if moment is Moment.SAVING:
            return self._scratch() not in (None, before)
        step, is_evaluated = self._last()
        if moment is Moment.EVALUATING:
            return step > 0 and step % self._eval_interval == 0 and not is_evaluated
        return (step == 0) == (moment is Moment.STARTING)

    def _scratch(self) -> int | None:
        """Returns when an incomplete checkpoint was started, or None."""
        try:
            return self._incomplete.stat().st_ctime_ns
        except FileNotFoundError:
            return None

    def _last(self) -> tuple[int, bool]:
        """The last step reported, or 0, and whether its evaluation was too."""
        found = re.findall(r"^step (\d+)([/:])", self._said(), re.M)
        return (int(found[-1][0]), found[-1][1] == ":") if found else (0, False)
