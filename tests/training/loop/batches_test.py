"""Batches come in groups, and a resumed run passes its position to its input."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.loop.batches import BatchGroups, InputPosition, max_group
from tests.training.toy_run import Input, batch, make_task, run, saved_bytes


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_batches_of_equal_shapes_in_their_order(seed: int) -> None:
    draw = random.Random(seed)
    sizes = draw.choices([1, 2], [3, 1], k=12)
    batches = [NestedMap(x=tf.fill([n], i)) for i, n in enumerate(sizes)]
    groups, begin = BatchGroups(batches), 0
    while begin < len(sizes):
        max_size = draw.randint(1, 4)
        end = begin + 1
        while end < min(begin + max_size, len(sizes)) and sizes[end] == sizes[begin]:
            end += 1
        assert [int(b.x[0]) for b in groups.next(max_size)] == [*range(begin, end)]
        begin = end
    assert groups.next(1) == []


@pytest.mark.parametrize("seed", range(20))
def test_calls_are_as_long_as_nothing_is_due(seed: int) -> None:
    draw = random.Random(seed)
    p = make_task().params.Copy()
    p.train.max_steps, p.train.steps_per_loop = draw.randint(1, 30), draw.randint(1, 9)
    intervals = [draw.randint(1, 9), draw.choice([None, 4, 7]), draw.choice([0, 3])]
    p.train.save_interval_steps, p.train.histogram_interval_steps, _ = intervals
    p.eval.interval_steps = intervals[-1]
    for step in range(p.train.max_steps):
        end = step + 1
        while end < min(step + p.train.steps_per_loop, p.train.max_steps) and all(
            end % interval for interval in intervals if interval
        ):
            end += 1
        assert max_group(p, step) == end - step


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


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps with positions."""
    logdir, data = tmp_path_factory.mktemp("runs") / "placed", PositionedInput()
    _train(data, logdir, 3)
    assert set(data.starts) == {(0, "")}
    return logdir


def test_a_resumed_run_starts_at_its_input_position(
    placed: Path, tmp_path: Path
) -> None:
    assert saved_bytes(placed, 2)["input_place"] == b"before 2"
    logdir, data = shutil.copytree(placed, tmp_path / "resumed"), PositionedInput()
    _train(data, logdir, 5)
    assert set(data.starts) == {(3, "before 3")}


def test_a_resumed_run_tells_of_other_test_data(
    placed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logdir = shutil.copytree(placed, tmp_path / "resumed")
    counts = []
    for steps, text in ((4, "a"), (5, "b")):
        fingerprint, lines = SimpleNamespace(text=text), list[str]()
        monkeypatch.setattr(Input, "data_fingerprint", fingerprint, raising=False)
        run(make_task(max_steps=steps), PositionedInput(), logdir, lines.append)
        counts.append(sum("the test data" in line for line in lines))
    assert counts == [0, 1]


@pytest.mark.exhaustive
def test_a_position_changes_nothing_else_and_may_come_and_go(
    placed: Path, tmp_path: Path
) -> None:
    """Once a run with positions rejected checkpoints of one without, and vice versa."""
    plain = Input(*map(batch, range(6)))
    _train(plain, tmp_path / "plain", 3)
    with_place, without = (saved_bytes(x, 3) for x in (placed, tmp_path / "plain"))
    assert with_place.pop("input_place") == b"before 3"
    assert without.pop("input_place").strip(b"\0") == b""
    assert with_place == without
    _train(PositionedInput(), tmp_path / "plain", 4)
    _train(plain, tmp_path / "plain", 6)
    assert saved_bytes(tmp_path / "plain", 6)["input_place"].strip(b"\0") == b""


def test_skipped_batches_count_for_the_position(placed: Path, tmp_path: Path) -> None:
    logdir, data = shutil.copytree(placed, tmp_path / "run"), PositionedInput(7)
    file = logdir / "skipped_batches.json"
    file.write_text('[{"after_step": 4, "num_batches": 2}]\n')
    (logdir / "checkpoints" / "record.json").unlink()
    _train(data, logdir, 5)
    assert (6, "before 6") in data.starts
    assert saved_bytes(logdir, 5)["input_place"] == b"before 7"


def test_an_input_may_inherit_a_place_and_have_batches_of_its_own() -> None:
    class Own(Input):
        def Place(self, step: int) -> str:
            raise AssertionError("nobody asks for it")

    position = InputPosition(Own(batch(0)))
    position.set_batch(1)
    assert len([*position.batches(0).take(1)]) == 1
