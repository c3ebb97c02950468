"""A run resumes only with the metrics and skipped batches of its last checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.training.run.metrics_log import MetricsLog
from lingvo_pipe.training.run.resume_record import ResumeRecord
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.stability.skipped_batches import SkippedBatches
from tests.support.errors import fails


def _record(logdir: Path) -> ResumeRecord:
    directory = RunDirectory(logdir, "toy.Toy")
    return ResumeRecord(directory, SkippedBatches(directory.skipped_batches_path))


def _train(logdir: Path, start: int, last: int) -> None:
    """Writes a line and a record for each step, as a run resumed at `start` does."""
    record = _record(logdir)
    record.check({start})
    record.rewind(start)
    with MetricsLog(logdir, start) as log:
        for step in range(start + 1, last + 1):
            log.write(step, "train", {"loss": 1 / step})
            record.write()


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    RunDirectory(tmp_path, "toy.Toy").write_params("x : 1\n")
    _train(tmp_path, 0, 5)
    return tmp_path


def test_a_record_in_parts_equals_one_of_the_whole(logdir: Path) -> None:
    path = logdir / "checkpoints" / "record.json"
    in_parts = path.read_text()
    record = _record(logdir)
    record.rewind(5)
    record.write()
    assert path.read_text() == in_parts
    assert json.loads(in_parts)["num_lines"] == 5
    # A run that goes back to an earlier checkpoint records the rest again.
    _train(logdir, 3, 5)
    assert path.read_text() == in_parts


@pytest.mark.parametrize("last", [1, 3, 5])
def test_a_run_resumes_from_any_step(logdir: Path, last: int) -> None:
    record = _record(logdir)
    record.rewind(last)
    with MetricsLog(logdir, last):
        pass
    record.check({last})


def test_later_lines_are_no_change(logdir: Path) -> None:
    with MetricsLog(logdir) as log:
        log.write(6, "train", {"loss": 0.1})
    _record(logdir).check({5})


@pytest.mark.parametrize("lost", ["line", "digit", "all"])
def test_lost_and_changed_lines_are_refused(logdir: Path, lost: str) -> None:
    path = logdir / "metrics.jsonl"
    text = path.read_text()
    changed = {"line": text.partition("\n")[2], "digit": text.replace("0.5", "0.6")}
    path.write_text(changed.get(lost, ""))
    with fails(UserDamageError, path=str(path)) as info:
        _record(logdir).check({5})
    assert "record.json" in info.value.hint


class _Data:
    """Test data without a fingerprint."""

    def EvalBatches(self) -> None: ...


def _data(text: str) -> type:
    """Returns a class of test data with a fingerprint."""
    return type("Data", (_Data,), {"data_fingerprint": SimpleNamespace(text=text)})


def test_other_test_data_are_told_once(logdir: Path) -> None:
    """Once a best evaluation on easier data stayed the best, without a line."""

    def resume(text: str | None) -> str:
        record = _record(logdir)
        record.check({5})
        data = _Data if text is None else _data(text)
        line = record.test_data_warning(data())
        record.write()
        return line

    # Runs of old versions, and inputs without a fingerprint, have none.
    lines = [resume(text) for text in ("a", "a", "b", "b", None, "a")]
    assert [line.partition(":")[0] for line in lines] == ["", "", "warning", "", "", ""]


def test_an_inherited_fingerprint_is_not_of_other_batches(logdir: Path) -> None:
    """Once a class with batches of its own was told of changes of its parent's data."""
    warnings = []
    for text in ("a", "b"):
        data = type("Own", (_data(text),), {"EvalBatches": _Data.EvalBatches})
        record = _record(logdir)
        record.check({5})
        warnings.append(record.test_data_warning(data()))
        record.write()
    assert warnings == ["", ""]
