"""A follower sees the last checkpoint, and waits for no checkpoint in vain."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lingvo_pipe.training.checkpoint.checkpoint_files import stem_of, steps_in
from lingvo_pipe.training.eval.run_weights import new_checkpoints


class Trainer:
    """A trainer that saves at given times, with a clock that sleeping advances."""

    def __init__(self, directory: Path, saves: dict[float, int]):
        self.now = 0.0
        self._directory, self._saves = directory, saves

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment, step in self._saves.items():
            if moment <= self.now:
                (self._directory / f"{stem_of(step)}.index").touch()


def follow(
    trainer: Trainer, directory: Path, work: float = 0.0, last: int | None = 40
) -> list[int]:
    found = []
    for step in new_checkpoints(
        lambda: steps_in(directory), lambda: last, 10, trainer.clock, trainer.sleep
    ):
        found.append(step)
        trainer.sleep(work)
    return found


def test_each_checkpoint_is_seen(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, {2: 10, 4: 20, 11: 30, 20: 40})
    assert follow(trainer, tmp_path) == [10, 20, 30, 40]
    assert trainer.now == 20


def test_long_work_skips_checkpoints(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, {2: 10, 4: 20, 5: 30, 6: 40})
    assert follow(trainer, tmp_path, work=7) == [10, 40]


@pytest.mark.parametrize(("work", "end"), [(0, 13), (100, 113)])
def test_a_stopped_trainer_is_given_up(tmp_path: Path, work: float, end: float) -> None:
    trainer = Trainer(tmp_path, {2: 10})
    assert follow(trainer, tmp_path, work) == [10]
    assert trainer.now == pytest.approx(end, abs=1)


def test_a_complete_run_ends_at_once(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, {0: 40})
    trainer.sleep(0)
    assert follow(trainer, tmp_path) == [40]
    assert trainer.now == 0


def test_the_newest_is_seen_without_patience(tmp_path: Path) -> None:
    """Once it was not, because a clock moves between two looks at it."""
    (tmp_path / f"{stem_of(10)}.index").touch()
    steps, ticks = steps_in(tmp_path), itertools.count()
    seen = new_checkpoints(lambda: steps, lambda: 40, 0, lambda: next(ticks) * 1e-9)
    assert [*seen] == [10]


def test_a_run_that_never_starts_is_given_up(tmp_path: Path) -> None:
    assert follow(Trainer(tmp_path, {}), tmp_path / "later", last=None) == []
