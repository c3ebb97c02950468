"""Batches that a run leaves out, because with them its loss went wrong.

    batch     0  1  2  3  4  5  6  7  8        3 batches left out after step 4:
    step      1  2  3  4           5  6        step 5 has batch 7

They are kept in a file of the run, so that it goes on with the same batches from
whichever of its checkpoints it is resumed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from lingvo_pipe.training.atomic_file import write_atomically

_Batch = TypeVar("_Batch")


class SkippedBatches:
    """How many batches are left out after which steps.

    Args:
        path: the file; there may be none yet.

    Raises:
        ValueError: if it is damaged.
    """

    def __init__(self, path: Path):
        self._path = path
        self._entries: list[tuple[int, int]] = []
        if path.exists():
            self._entries = _read(path)

    def leave_out(self, after_step: int, last_step: int) -> None:
        """Leaves out the batches of the steps after one, up to `last_step`'s.

        What was left out later is forgotten. It is on file when this returns.
        """
        num = self.position(last_step - 1) + 1 - self.position(after_step)
        kept = [entry for entry in self._entries if entry[0] <= after_step]
        self._entries = [*kept, (after_step, num)]
        records = [{"after_step": s, "num_batches": n} for s, n in self._entries]
        write_atomically(self._path, json.dumps(records) + "\n")

    @property
    def total(self) -> int:
        """How many batches were left out."""
        return sum(num for _, num in self._entries)

    def num_after(self, step: int) -> int:
        """How often batches were left out after this very step."""
        return sum(after == step for after, _ in self._entries)

    def position(self, step: int) -> int:
        """The number of the batch, from 0, that comes after a step."""
        return step + sum(n for after, n in self._entries if after <= step)

    def batches(
        self, read_from: Callable[[int], Iterable[_Batch]], step: int
    ) -> Iterator[_Batch]:
        """The batches of the steps after `step`, one after another.

        Args:
            read_from: gives all batches from that of a number on, counted from 0.
            step: the number of steps made.
        """
        for end in [*sorted({s for s, _ in self._entries if s > step}), None]:
            length = None if end is None else end - step
            yield from itertools.islice(read_from(self.position(step)), length)
            if end is not None:
                step = end


def _read(path: Path) -> list[tuple[int, int]]:
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
        return [(int(r["after_step"]), int(r["num_batches"])) for r in records]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            "Batches left out must be a JSON list of after_step and num_batches; got "
            f"another at {path}. Put back a copy, or use another --logdir."
        ) from error
