"""Batches that a run skips after a loss spike.

    batch     0  1  2  3  4  5  6  7  8        3 batches skipped after step 4:
    step      1  2  3  4           5  6        step 5 has batch 7

A file of the run records them, so the run has the same batches whichever checkpoint it
resumes from.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.errors import UserValueError

_Batch = TypeVar("_Batch")


class SkippedBatches:
    """Numbers of skipped batches, by the step after which they are skipped.

    Raises ValueError if the file is damaged; it may be missing.
    """

    def __init__(self, path: Path):
        self._path = path
        self._entries = _read(path) if path.exists() else []

    def skip(self, after_step: int, last_step: int) -> None:
        """Skips the batches of the steps after `after_step`, up to `last_step`.

        Drops entries for later steps. The file is written when this returns.
        """
        num = self.position(last_step - 1) + 1 - self.position(after_step)
        earlier = [entry for entry in self._entries if entry[0] <= after_step]
        self._entries = [*earlier, (after_step, num)]
        records = [{"after_step": s, "num_batches": n} for s, n in self._entries]
        write_atomically(self._path, json.dumps(records) + "\n")

    @property
    def total(self) -> int:
        """The number of all skipped batches."""
        return sum(num for _, num in self._entries)

    def num_after(self, step: int) -> int:
        """Returns how often batches were skipped after exactly this step."""
        return sum(after == step for after, _ in self._entries)

    def position(self, step: int) -> int:
        """Returns the index of the batch that follows a step."""
        return step + sum(n for after, n in self._entries if after <= step)

    def batches(
        self, read_from: Callable[[int], Iterable[_Batch]], step: int
    ) -> Iterator[_Batch]:
        """Yields the batches of the steps after `step`.

        `read_from` returns all batches from an index on.
        """
        for end in sorted({s for s, _ in self._entries if s > step}):
            yield from itertools.islice(read_from(self.position(step)), end - step)
            step = end
        yield from read_from(self.position(step))


def _read(path: Path) -> list[tuple[int, int]]:
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
        return [(int(r["after_step"]), int(r["num_batches"])) for r in records]
    except (ValueError, TypeError, KeyError) as error:
        raise UserValueError(
            "Skipped batches: expected a JSON list of after_step and num_batches in "
            f"{path}. Put back a copy, or use another --logdir."
        ) from error
