"""A record of a run's metrics, skipped batches and test data at its newest checkpoint.

    checkpoints/record.json   {"num_lines": 12, "sha256": "...", "skipped_batches": [],
                               "test_data": "..."}

`num_lines` and `sha256` are about the lines of `metrics.jsonl`. A run's next steps
depend on its metrics and skipped batches. So a run does not resume if any that were
recorded are lost or changed. `test_data` is the fingerprint of the test data. Runs of
old versions have no record, or no `test_data`.
"""

import hashlib
import json
from collections.abc import Collection
from typing import Any

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.checks import is_count, is_sequence
from lingvo_pipe.core.errors import UserDamageError, Words
from lingvo_pipe.core.regular_file import damaged, open_file, read_json, read_text
from lingvo_pipe.training.run.metrics_log import FILE_NAME, lines_until
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.stability.skipped_batches import SkippedBatches


class ResumeRecord:
    """The record of a run's metrics and skipped batches at its newest checkpoint."""

    def __init__(self, directory: RunDirectory, skipped: SkippedBatches) -> None:
        self._path = directory.checkpoints_path / "record.json"
        self._metrics_path = directory.path / FILE_NAME
        self._skipped = skipped
        self._hint = f"Put back a copy, or remove {self._path} to resume without it."
        self._digest, self._num_bytes, self._num_lines = hashlib.sha256(), 0, 0
        self._test_data = ""

    def write(self) -> None:
        """Updates the record of metrics that are on the disk.

        Call this just before a checkpoint is saved, and after a later evaluation.
        """
        with open_file(self._metrics_path, "rb") as file:
            file.seek(self._num_bytes)
            self._write(file.read())

    def rewind(self, step: int) -> None:
        """Drops metrics of later steps than `step`, since the run replaces them."""
        self._digest, self._num_bytes, self._num_lines = hashlib.sha256(), 0, 0
        record = self._read()
        if record is None:
            return
        text = lines_until(self._metrics_path, step)
        if text.count("\n") < record["num_lines"]:
            self._write(text.encode())

    def check(self, steps: Collection[int]) -> None:
        """Raises ValueError if what the checkpoint recorded was lost or changed.

        Later roll-backs to checkpoints of `steps` may have skipped batches.
        """
        record = self._read()
        if record is None:
            return
        self._test_data = record.get("test_data", "")
        expected = record["num_lines"]
        *lines, _ = (read_text(self._metrics_path) or "").split("\n")
        text = "".join(f"{x}\n" for x in lines[:expected])
        if hashlib.sha256(text.encode()).hexdigest() != record["sha256"]:
            raise UserDamageError(
                path=str(self._metrics_path),
                expected=f"the {expected} lines that it had at the last checkpoint",
                got=Words("other ones" if len(lines) >= expected else len(lines)),
                hint=f"The best evaluation follows from them. {self._hint}",
            )
        recorded = list(map(tuple, record["skipped_batches"]))
        self._skipped.check_recorded(recorded, steps, self._hint)

    def test_data_warning(self, test_input: Any) -> str:
        """Returns a warning if `check` read a record of other test data, else "".

        Then records the data of `test_input`.
        """
        before, self._test_data = self._test_data, _fingerprint(test_input)
        if not before or not self._test_data or before == self._test_data:
            return ""
        return (
            "warning: the test data have changed since the checkpoint. The best "
            "evaluation, the patience, and a learning rate that follows evaluations "
            "compare evaluations of both."
        )

    def _write(self, more: bytes) -> None:
        """Writes the record after `more` lines of metrics were added to the log."""
        self._digest.update(more)
        self._num_bytes += len(more)
        self._num_lines += more.count(b"\n")
        record = {
            "num_lines": self._num_lines,
            "sha256": self._digest.hexdigest(),
            "skipped_batches": self._skipped.entries,
            "test_data": self._test_data,
        }
        self._path.parent.mkdir(exist_ok=True)
        write_atomically(self._path, json.dumps(record) + "\n")

    def _read(self) -> dict[str, Any] | None:
        record = read_json(self._path, self._hint)
        if record is None or (
            isinstance(record, dict)
            and is_count(record.get("num_lines"), 0)
            and isinstance(record.get("sha256"), str)
            and isinstance(record.get("test_data", ""), str)
            and isinstance(record.get("skipped_batches"), list)
            and all(
                is_sequence(pair, 2) and all(is_count(number, 0) for number in pair)
                for pair in record["skipped_batches"]
            )
        ):
            return record
        expected = "num_lines, sha256 and skipped_batches"
        raise damaged(self._path, expected, record, self._hint)


def _fingerprint(test_input: Any) -> str:
    """Returns the text of an input's fingerprint, or "" if it has none of its own.

    A user's input may inherit `data_fingerprint`, but override `EvalBatches`.
    """
    for cls in type(test_input).__mro__:
        if "data_fingerprint" in vars(cls):
            return str(test_input.data_fingerprint.text)
        if "EvalBatches" in vars(cls):
            break
    return ""
