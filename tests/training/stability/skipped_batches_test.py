"""Batches that are not skipped come in order, from any step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.training.stability.skipped_batches import SkippedBatches
from tests.support.errors import fails


def _first(skipped: SkippedBatches, step: int, num: int) -> list[int]:
    """Returns the indices of the next batches."""
    return list(itertools.islice(skipped.batches(itertools.count, step), num))


def test_without_skips_all_batches_come(tmp_path: Path) -> None:
    skipped = SkippedBatches(tmp_path / "skipped.json")
    assert _first(skipped, 0, 4) == [0, 1, 2, 3]
    assert _first(skipped, 7, 2) == [7, 8]
    assert list(tmp_path.iterdir()) == []


def test_skipped_batches_do_not_come(tmp_path: Path) -> None:
    skipped = SkippedBatches(tmp_path / "skipped.json")
    skipped.skip(4, 7)
    assert _first(skipped, 0, 7) == [0, 1, 2, 3, 7, 8, 9]
    skipped.skip(4, 6)  # The run rolled back to step 4 again.
    skipped.skip(6, 7)
    expected = [0, 1, 2, 3, 9, 10, 12, 13]
    assert _first(skipped, 0, 8) == expected
    assert [skipped.num_after(step) for step in (3, 4, 6)] == [0, 2, 1]
    # A resumed run has the same batches, whatever its last checkpoint.
    for step in range(8):
        resumed = SkippedBatches(tmp_path / "skipped.json")
        assert _first(resumed, step, 8 - step) == expected[step:]
    skipped.clear()
    assert _first(skipped, 0, 4) == [0, 1, 2, 3]
    assert list(tmp_path.iterdir()) == []


def test_batches_stay_skipped_if_a_run_rolls_back_further(
    tmp_path: Path,
) -> None:
    """Once the batches of the spike came again: steps were confused with batches."""
    skipped = SkippedBatches(tmp_path / "skipped.json")
    skipped.skip(6, 8)  # Batches 6 and 7.
    skipped.skip(3, 9)  # The checkpoint of step 6 is damaged; 9 had batch 10.
    assert _first(skipped, 0, 6) == [0, 1, 2, 11, 12, 13]
    assert [skipped.num_after(step) for step in (3, 6)] == [1, 0]


def test_batches_end_with_the_data(tmp_path: Path) -> None:
    skipped = SkippedBatches(tmp_path / "skipped.json")
    skipped.skip(2, 4)

    def read(start: int) -> Iterator[int]:
        return iter(range(start, 6))

    assert list(skipped.batches(read, 0)) == [0, 1, 4, 5]


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "skipped.json"
    path.write_text('[{"after_step": 3}]\n')
    with fails(UserDamageError, path=str(path)):
        SkippedBatches(path)
