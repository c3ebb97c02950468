"""A resumed run passes its position to inputs that have one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.training.toy_run import Input, batch, make_task, run, saved_bytes


class PositionedInput(Input):
    """An input with a position.

    Attributes:
        starts: arguments of all calls of `TrainBatches`.
    """

    def __init__(self, num_batches: int = 6) -> None:
        super().__init__(*map(batch, range(num_batches)))
        self.starts: list[tuple[int, str]] = []

    def TrainBatches(self, start_step: int = 0, place: str = "") -> tf.data.Dataset:
        self.starts.append((start_step, place))
        return super().TrainBatches(start_step)

    def Place(self, step: int) -> str:
        return f"before {step}"


def _train(data: Any, logdir: Path, max_steps: int) -> None:
    run(make_task(max_steps=max_steps), data, logdir)


def test_a_resumed_run_starts_at_its_input_position(tmp_path: Path) -> None:
    first, second = PositionedInput(), PositionedInput()
    _train(first, tmp_path, 3)
    assert set(first.starts) == {(0, "")}
    assert saved_bytes(tmp_path, 2)["input_place"] == b"before 2"
    _train(second, tmp_path, 5)
    assert set(second.starts) == {(3, "before 3")}


def test_a_position_changes_nothing_else(tmp_path: Path) -> None:
    plain = Input(*map(batch, range(6)))
    _train(PositionedInput(), tmp_path / "placed", 3)
    _train(plain, tmp_path / "plain", 3)
    placed, other = (saved_bytes(tmp_path / name, 3) for name in ("placed", "plain"))
    assert placed.pop("input_place") == b"before 3"
    assert other.pop("input_place").strip(b"\0") == b""
    assert placed == other


def test_a_run_may_change_between_inputs_with_and_without_position(
    tmp_path: Path,
) -> None:
    """Once each rejected checkpoints of the other."""
    plain = Input(*map(batch, range(6)))
    _train(plain, tmp_path, 2)
    _train(PositionedInput(), tmp_path, 4)
    _train(plain, tmp_path, 6)
    assert saved_bytes(tmp_path, 6)["input_place"].strip(b"\0") == b""


def test_skipped_batches_count_for_the_position(tmp_path: Path) -> None:
    (tmp_path / "params.txt").write_text("# model: toy.Toy\n")
    file = tmp_path / "skipped_batches.json"
    file.write_text('[{"after_step": 1, "num_batches": 2}]\n')
    data = PositionedInput()
    _train(data, tmp_path, 3)
    assert (3, "before 3") in data.starts
    assert saved_bytes(tmp_path, 3)["input_place"] == b"before 5"
