"""Batches left out: the others come in order, from whichever step one goes on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from lingvo_pipe.training.skipped_batches import SkippedBatches


def _first(skipped: SkippedBatches, step: int, num: int) -> list[int]:
    """The numbers of the batches of the next steps."""
    return list(itertools.islice(skipped.batches(itertools.count, step), num))


def test_without_any_the_batches_are_all(tmp_path: Path) -> None:
    skipped = SkippedBatches(tmp_path / "skipped.json")
    assert _first(skipped, 0, 4) == [0, 1, 2, 3]
    assert _first(skipped, 7, 2) == [7, 8]
    assert list(tmp_path.iterdir()) == []


def test_those_left_out_do_not_come(tmp_path: Path) -> None:
    skipped = SkippedBatches(tmp_path / "skipped.json")
    skipped.leave_out(4, 7)
    assert _first(skipped, 0, 7) == [0, 1, 2, 3, 7, 8, 9]
    skipped.leave_out(4, 6)  # The run went back to step 4 again.
    skipped.leave_out(6, 7)
    want = [0, 1, 2, 3, 9, 10, 12, 13]
    assert _first(skipped, 0, 8) == want
    assert [skipped.num_after(step) for step in (3, 4, 6)] == [0, 2, 1]
    # Of a run that is resumed, whichever of its checkpoints was the last.
    for step in range(8):
        resumed = SkippedBatches(tmp_path / "skipped.json")
        assert _first(resumed, step, 8 - step) == want[step:]


def test_what_was_left_out_later_stays_so_where_a_run_goes_back_further(
    tmp_path: Path,
) -> None:
    """Once the batches of the spike came again: steps were taken for batches."""
    skipped = SkippedBatches(tmp_path / "skipped.json")
    skipped.leave_out(6, 8)  # Batches 6 and 7.
    skipped.leave_out(3, 9)  # The checkpoint of step 6 is damaged; 9 had batch 10.
    assert _first(skipped, 0, 6) == [0, 1, 2, 11, 12, 13]
    assert [skipped.num_after(step) for step in (3, 6)] == [1, 0]


def test_batches_end_where_the_data_end(tmp_path: Path) -> None:
    skipped = SkippedBatches(tmp_path / "skipped.json")
    skipped.leave_out(2, 4)

    def read(start: int) -> Iterator[int]:
        return iter(range(start, 6))

    assert list(skipped.batches(read, 0)) == [0, 1, 4, 5]


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "skipped.json"
    path.write_text('[{"after_step": 3}]\n')
    with pytest.raises(ValueError, match=f"after_step.*num_batches.*{path}"):
        SkippedBatches(path)
