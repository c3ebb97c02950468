"""Each mistake is one line that names it, before anything is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lingvo_pipe.core.errors import UserClusterError
from tests.support.command_line import DIGITS, CommandLine, Snapshot, snapshot

NEW, REPORT = "--logdir=new", "--mode=report"
TRAIN = [DIGITS, NEW]
SPEC = "--cluster_spec=worker=localhost:1,localhost:2"
OTHER = "image.digits.Other"
UNREACHABLE = [*TRAIN, SPEC, "--devices=2", "--wait_for_workers_seconds=1"]


def _override(text: str) -> list[str]:
    return [*TRAIN, f"--model_params_override={text}"]


# Command lines, with parts of their errors.
MISTAKES: list[tuple[list[str], list[str]]] = [
    ([], ["error: --mode=train: expected --model and --logdir."]),
    ([DIGITS], ["error: --mode=train: expected --logdir."]),
    ([NEW], ["error: --mode=train: expected --model.", "--model="]),
    (["--mode=inspect_model"], ["error: --mode=inspect_model: expected --model."]),
    ([DIGITS, "--logdir=gs://runs/a"], ["error: --logdir: ", "'gs://runs/a'"]),
    ([*TRAIN, "--data_dir=s3://data"], ["error: --data_dir: ", "'s3://data'"]),
    ([NEW, "--modle=x"], ["'modle'", "mode, model"]),
    ([*TRAIN, "--max_step=3"], ["'max_step'", "max_steps"]),
    (
        [*TRAIN, "--log_dir=x"],
        ["error: arguments: ", "got 'log_dir'", "'logdir'", "--help"],
    ),
    ([NEW, "--mode=nonsense"], ["--mode=nonsense", "train", "inspect_model"]),
    ([*TRAIN, "--max_steps=ten"], ["--max_steps=ten: ", "--help"]),
    ([*TRAIN, "--profile_step=2"], ["error: --profile_step: ", "got 2"]),
    (
        [*TRAIN, "--profile_step=9", "--max_steps=8"],
        ["error: --profile_step: ", "got 9", "8"],
    ),
    (
        [DIGITS, "--profile_step=9", "--mode=inspect_model"],
        ["error: --mode=inspect_model: expected no --profile_step"],
    ),
    ([*TRAIN, "--init_from="], ["error: --init_from: ", "got ''"]),
    (
        [DIGITS, "--init_from=x", "--mode=inspect_model"],
        ["error: --mode=inspect_model: expected no --init_from"],
    ),
    (
        [*TRAIN, SPEC, "--mode=inspect_params", "--devices=2"],
        ["expected no --logdir and no --devices and no --cluster."],
    ),
    (
        [DIGITS, "--mode=diff_params", f"--other_{DIGITS[2:]}", "--devices=2"],
        ["error: --mode=diff_params: expected no --devices"],
    ),
    (
        [*_override("input.batch_size : 8"), "--model_params_override=a : 1"],
        ["--model_params_override"],
    ),
    (
        [*_override("task.train.max_steps : 8"), "--max_steps=9"],
        ["error: --max_steps: ", "task.train.max_steps", "9"],
    ),
    ([DIGITS, "--mode=diff_params"], ["error: --mode=diff_params: ", "None and None"]),
    (
        [*TRAIN, "--other_model=image.digits.AmoebaNetDigits0To4"],
        ["error: --mode=train: expected no --other_model"],
    ),
    (
        [
            *(DIGITS, "--mode=diff_params", f"--other_{DIGITS[2:]}"),
            "--allow_foreign_logdir",
        ],
        ["error: --mode=diff_params: expected no --allow_foreign_logdir"],
    ),
    ([*TRAIN, "--mode=diff_params"], ["error: --logdir: ", "got 'new'"]),
    ([REPORT], ["error: --mode=report: expected --logdir."]),
    ([NEW, REPORT], ["error: --logdir: ", "got 'new'"]),
    ([REPORT, "--logdir=foreign"], ["error: --logdir: ", "got 'foreign'"]),
    ([DIGITS, REPORT, "--logdir=other"], ["error: --logdir: ", f"--model={OTHER}"]),
    (
        [REPORT, "--max_steps=3", "--devices=2", "--logdir=other"],
        ["error: --mode=report: expected no --devices and no --max_steps"],
    ),
    ([*TRAIN, "again"], ["error: arguments: ", "'again'", "--help"]),
    (
        [NEW, "--model=image.digits.AmoebaNetDigit"],
        ["'image.digits.AmoebaNetDigits'", "--model_imports="],
    ),
    ([*TRAIN, "--model_imports=nowhere"], ["'nowhere'", "PYTHONPATH"]),
    ([*TRAIN, "--devices=worker:0/cpu:0"], ["'worker:0/cpu:0'", "--cluster="]),
    ([*TRAIN, "--devices=gpu:0"], ["gpu:0", "cpu:0"]),
    ([*TRAIN, "--devices=99"], ["error: task.pipeline.splits: ", "99"]),
    ([*TRAIN, SPEC, "--devices=cpu:0"], ["'cpu:0'", "--devices=2"]),
    ([*TRAIN, "--cluster_spec=a:1"], ["--cluster", "'worker'", "slurm", "'a:1'"]),
    ([*TRAIN, "--cluster_spec="], ["--cluster", "'worker'", "slurm", "''"]),
    (
        [*TRAIN, "--listen_on_all_addresses"],
        ["error: --listen_on_all_addresses: ", "--cluster"],
    ),
    ([*TRAIN, "--worker_timeout_seconds=9"], ["error: --worker_timeout_seconds: "]),
    ([*TRAIN, "--grow_seconds=9"], ["error: --grow_seconds: expected --elastic"]),
    (
        [*TRAIN, "--elastic", "--lost_worker_seconds=9"],
        ["error: --lost_worker_seconds: ", "--cluster"],
    ),
    (
        [
            *(*TRAIN, SPEC, "--elastic", "--lost_worker_seconds=60"),
            "--wait_for_workers_seconds=9",
        ],
        ["error: --lost_worker_seconds: ", "--wait_for_workers_seconds, 9", "60"],
    ),
    (
        [*TRAIN, "--elastic", "--cluster=kubernetes:app=w"],
        ["error: --elastic: ", "'kubernetes:app=w'", "StatefulSet"],
    ),
    (
        [*TRAIN, "--elastic", "--devices=2", "--min_devices=3"],
        ["error: --min_devices: ", "2 devices", "3"],
    ),
    (
        [*_override("task.pipeline.splits (list) : [2, 4]"), "--elastic"],
        ["error: task.pipeline.splits: ", "'auto', with --elastic", "[2, 4]"],
    ),
    (
        [DIGITS, "--mode=inspect_model", "--elastic"],
        ["error: --mode=inspect_model: expected no --elastic."],
    ),
    (
        ["--job=evaler", *TRAIN, "--elastic"],
        ["error: --job=evaler: expected no --elastic"],
    ),
    ([*TRAIN, "--task=0"], ["error: --task: expected --job=worker"]),
    ([*TRAIN, "--split=Test"], ["error: --job=trainer: expected no --split"]),
    (["--job=worker", NEW, SPEC], ["error: --job=worker: expected no --logdir."]),
    (["--job=worker", SPEC], ["error: --job=worker: expected --task."]),
    (["--job=worker", "--task=2", SPEC], ["--task", "0..1", "2"]),
    (UNREACHABLE, ["worker:0 at localhost:1", "worker:1 at localhost:2"]),
    (
        [*_override("task.pipeline.devices : ['cpu:0']"), "--devices=2"],
        ["error: --devices: ", "got 2 devices", "task.pipeline.devices : None"],
    ),
    (
        [*_override("task.pipeline.splits (list) : [2, 8]"), "--devices=3"],
        ["error: --devices: ", "for 3 stages", "task.pipeline.splits (int) : 3"],
    ),
    (
        _override("task.pipeline.schedule : nowhere.csv"),
        ["error: task/pipeline.schedule: ", "'nowhere.csv'", "/mistakes"],
    ),
    (_override("task.train.max_steps"), ["`path : value`", "'task.train.max_steps'"]),
    (
        ["--model=image.imagenet.AmoebaNetB557M", NEW, "--data_dir=other"],
        ["imagenet2012", "other", "lingvo_pipe prepare --dataset=imagenet2012"],
    ),
    (
        [*TRAIN, "--data_dir=.", "--dataset=holidays"],
        ["dataset", "'holidays'", "train/CLASS/IMAGE.jpg"],
    ),
    (
        _override("input.batch_size : 3"),
        ["error: task.pipeline.num_micro_batches: ", "3", "got 4"],
    ),
    ([DIGITS, "--logdir=file/run"], ["error: --logdir: ", "file/run ("]),
    ([DIGITS, "--logdir=/proc/self/run"], ["error: --logdir: "]),
    ([DIGITS, "--logdir=foreign"], ["error: --logdir: ", "params.txt"]),
    ([DIGITS, "--logdir=other"], ["error: --logdir: ", f"--model={OTHER}"]),
    ([DIGITS, "--logdir=linked"], ["error: --logdir: ", "--allow_foreign_logdir"]),
    *(
        (
            [DIGITS, "--logdir=linked", "--allow_foreign_logdir", *more],
            ["linked", f"--model={OTHER}"],
        )
        for more in ([], [REPORT])
    ),
]


def _prepare(folder: Path) -> None:
    (folder / "linked").mkdir()
    (folder / "linked" / "params.txt").write_text(f"# model: {OTHER}\n")
    (folder / "linked" / "lock").symlink_to(folder / "file")
    (folder / "file").write_text("")
    (folder / "foreign").mkdir()
    (folder / "foreign" / "thesis.txt").write_text("years of work")
    (folder / "other").mkdir()
    (folder / "other" / "params.txt").write_text(f"# model: {OTHER}\n")


@dataclass(frozen=True)
class Outcome:
    results: Sequence[tuple[int, str, str]]
    before: Snapshot
    after: Snapshot


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("mistakes")
    _prepare(folder)
    before = snapshot(folder)
    results = CommandLine(folder).run_trainers(flags for flags, _ in MISTAKES)
    return Outcome(results, before, snapshot(folder))


@pytest.mark.parametrize(
    "number", range(len(MISTAKES)), ids=[" ".join(flags) for flags, _ in MISTAKES]
)
def test_a_mistake_is_one_line(outcome: Outcome, number: int) -> None:
    flags, parts = MISTAKES[number]
    code, output, errors = outcome.results[number]
    assert code == (UserClusterError.exit_code if flags is UNREACHABLE else 1), errors
    assert output == ""
    errors = re.sub(r"(?m)^.* \.\.\. \d+ s\n", "", errors)  # Of a slow machine.
    assert errors.startswith("error: ")
    assert errors.count("error: ") == 1
    assert "Traceback" not in errors
    assert [part for part in parts if part not in errors] == [], errors


def test_nothing_is_written(outcome: Outcome) -> None:
    assert outcome.after == outcome.before
