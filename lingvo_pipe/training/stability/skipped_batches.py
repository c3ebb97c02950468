"""Batches that a run skips after a loss spike, recorded in a file.

batch     0  1  2  3  4  5  6  7  8        3 batches skipped after step 4:
step      1  2  3  4           5  6        step 5 has batch 7
"""

import itertools
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.core.regular_file import damaged, read_json

_Batch = TypeVar("_Batch")


class SkippedBatches:
    """The batches that a run has skipped so far, as recorded in the file `path`.

    `entries` has pairs of a step and the number of batches skipped after that step.

    Raises:
        ValueError: if the file is damaged.
    """

    def __init__(self, path: Path):
        self._path = path
        self.entries = _read(path)

    def check_recorded(
        self, recorded: Sequence[tuple[int, int]], steps: Collection[int], hint: str
    ) -> None:
        """Raises ValueError if entries were lost or changed since a checkpoint.

        `recorded` are the entries at the checkpoint. Later roll-backs to checkpoints of
        `steps` may have added entries.
        """
        num_same = len(os.path.commonprefix([self.entries, list(recorded)]))
        added, dropped = self.entries[num_same:], recorded[num_same:]
        if any(after not in steps for after, _ in added) or (dropped and not added):
            raise UserDamageError(
                path=str(self._path),
                expected=f"{list(recorded)}, as at the last checkpoint",
                got=self.entries,
                hint=f"The run's batches follow from these. {hint}",
            )

    def skip(self, after_step: int, last_step: int) -> None:
        """Skips the batches of steps after_step + 1 to last_step. Writes the file."""
        num = self.position(last_step - 1) + 1 - self.position(after_step)
        earlier = [entry for entry in self.entries if entry[0] <= after_step]
        self.entries = [*earlier, (after_step, num)]
        records = [{"after_step": s, "num_batches": n} for s, n in self.entries]
        write_atomically(self._path, json.dumps(records) + "\n")

    def clear(self) -> None:
        """Drops all entries, and removes the file."""
        self.entries = []
        self._path.unlink(missing_ok=True)

    @property
    def total(self) -> int:
        """The number of all skipped batches."""
        return sum(num for _, num in self.entries)

    def num_after(self, step: int) -> int:
        """Returns how often batches were skipped after exactly this step."""
        return sum(after == step for after, _ in self.entries)

    def position(self, step: int) -> int:
        """Returns the index of the batch that follows a step."""
        return step + sum(n for after, n in self.entries if after <= step)

    def batches(
        self, read_from: Callable[[int], Iterable[_Batch]], step: int
    ) -> Iterator[_Batch]:
        """Yields the batches after `step` that are not skipped."""
        for end in sorted({s for s, _ in self.entries if s > step}):
            yield from itertools.islice(read_from(self.position(step)), end - step)
            step = end
        yield from read_from(self.position(step))


def _read(path: Path) -> list[tuple[int, int]]:
    records = read_json(path)
    if records is None:
        return []
    try:
        entries = [(r["after_step"], r["num_batches"]) for r in records]
    except (TypeError, LookupError):
        entries = [(-1, 0)]
    is_possible = all(
        is_count(s, 0) and is_count(n) and s + n < 2**62 for s, n in entries
    )
    if not is_possible or entries != sorted(entries, key=lambda entry: entry[0]):
        expected = "a list of after_step, ascending, and num_batches, at least 1"
        raise damaged(path, expected, records)
    return entries
