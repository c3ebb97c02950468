"""An input that knows its place is told it when a run goes on, and others are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.training.toy_run import Input, batch, make_task, run, saved_bytes


class Placed(Input):
    """Says where it was, and notes where it was told to begin."""

    def __init__(self, num_batches: int = 6) -> None:
        super().__init__(*map(batch, range(num_batches)))
        self.begun: list[tuple[int, str]] = []

    def TrainBatches(self, start_step: int = 0, place: str = "") -> tf.data.Dataset:
        self.begun.append((start_step, place))
        return super().TrainBatches(start_step)

    def Place(self, step: int) -> str:
        return f"before {step}"


def _train(data: Any, logdir: Path, max_steps: int, **params: Any) -> None:
    run(make_task(max_steps=max_steps, **params), data, logdir)


def test_a_run_that_goes_on_tells_the_place(tmp_path: Path) -> None:
    first, second = Placed(), Placed()
    _train(first, tmp_path, 3)
    assert set(first.begun) == {(0, "")}
    assert saved_bytes(tmp_path, 2)["input_place"] == b"before 2"
    _train(second, tmp_path, 5)
    assert set(second.begun) == {(3, "before 3")}


def test_it_changes_nothing_else(tmp_path: Path) -> None:
    plain = Input(*map(batch, range(6)))
    _train(Placed(), tmp_path / "placed", 3)
    _train(plain, tmp_path / "plain", 3)
    placed, other = (saved_bytes(tmp_path / name, 3) for name in ("placed", "plain"))
    assert placed.pop("input_place") == b"before 3"
    assert other.pop("input_place").strip(b"\0") == b""
    assert placed == other


def test_a_run_may_get_an_input_with_a_place_and_one_without(tmp_path: Path) -> None:
    """Once a checkpoint of the one was refused by the other."""
    plain = Input(*map(batch, range(6)))
    _train(plain, tmp_path, 2)
    _train(Placed(), tmp_path, 4)
    _train(plain, tmp_path, 6)
    assert saved_bytes(tmp_path, 6)["input_place"].strip(b"\0") == b""


def test_the_place_is_that_of_the_batch_where_some_were_left_out(
    tmp_path: Path,
) -> None:
    (tmp_path / "params.txt").write_text("# model: toy.Toy\n")
    file = tmp_path / "skipped_batches.json"
    file.write_text('[{"after_step": 1, "num_batches": 2}]\n')
    data = Placed()
    _train(data, tmp_path, 3)
    assert (3, "before 3") in data.begun
    assert saved_bytes(tmp_path, 3)["input_place"] == b"before 5"
