"""Each mistake is told in one line, before anything is written."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainer.command_line import DIGITS, CommandLine, Snapshot, snapshot


@dataclass(frozen=True)
class Mistake:
    """A command line and what is said about it.

    Attributes:
        flags: all but --logdir.
        message: a regular expression that the line matches somewhere.
        logdir: new, or one of those that `_prepare` makes; None: no such flag.
    """

    name: str
    flags: Sequence[str]
    message: str
    logdir: str | None = "new"


def _flag(text: str) -> str:
    return f"--model_params_override={text}"


def _override(name: str, text: str, message: str) -> Mistake:
    return Mistake(name, [DIGITS, _flag(text)], message)


SPEC = "--cluster_spec=worker=localhost:1,localhost:2"

MISTAKES = [
    Mistake("nothing", [], "needs --model and --logdir.*For example: --model=", None),
    Mistake("no_logdir", [DIGITS], "needs --logdir. For example", None),
    Mistake("no_model", [], "needs --model. For example"),
    Mistake("nothing_to_inspect", ["--mode=inspect_model"], "needs --model. ", None),
    Mistake("unknown_flag", ["--modle=x"], "'modle'. Did you mean: mode, model"),
    Mistake("unknown_mode", ["--mode=nonsense"], "mode=nonsense: .*train.inspect_mod"),
    Mistake("no_steps", [DIGITS, "--max_steps=0"], "max_steps=0: .*positive integer"),
    Mistake("steps_in_words", [DIGITS, "--max_steps=ten"], "ten.*--help"),
    Mistake("second_step", [DIGITS, "--profile_step=2"], "from 3 to max_.*got 2"),
    Mistake(
        "step_beyond",
        [DIGITS, "--profile_step=9", "--max_steps=8"],
        "from 3 to max_steps, 8: .*got 9. Change --profile_step or --max_steps",
    ),
    Mistake(
        "no_step_to_profile",
        [DIGITS, "--profile_step=9", "--mode=inspect_model"],
        "--mode=inspect_model takes no --profile_step. Leave it out",
    ),
    Mistake(
        "nothing_to_compare_with",
        [DIGITS, "--mode=diff_params"],
        "with --other_model, or with the run in --logdir; got None and None. Give one",
        None,
    ),
    Mistake(
        "other_model_to_train",
        [DIGITS, "--other_model=image.digits.AmoebaNetDigits0To4"],
        "--mode=train takes no --other_model",
    ),
    Mistake(
        "no_run_to_compare_with", [DIGITS, "--mode=diff_params"], "is none. Train first"
    ),
    Mistake("nothing_to_report", ["--mode=report"], "report needs --logdir. ", None),
    Mistake("no_run_to_report", ["--mode=report"], "is none. Train first"),
    Mistake("report_of_no_run", ["--mode=report"], "is none. Train first", "foreign"),
    Mistake(
        "report_of_another_models_run",
        [DIGITS, "--mode=report"],
        "holds one of image.digits.Other",
        "other",
    ),
    Mistake(
        "report_on_devices",
        ["--mode=report", "--max_steps=3", "--devices=2"],
        "--mode=report takes no --devices and no --max_steps. Leave it out",
        "other",
    ),
    Mistake("argument", [DIGITS, "again"], "must be flags, with --; got again"),
    Mistake(
        "unknown_model",
        ["--model=image.digits.AmoebaNetDigit"],
        "no 'image.digits.AmoebaNetDigit'. Did you mean 'image.digits.AmoebaNetDigits'"
        ".*--model_imports=package",
    ),
    Mistake("relative_model", ["--model=.digits.X"], "there is no '.digits.X'"),
    Mistake("unknown_package", [DIGITS, "--model_imports=nowhere"], "no 'nowhere'"),
    Mistake(
        "devices_in_words", [DIGITS, "--devices=two"], "'two'.*Give a number of dev"
    ),
    Mistake("near_device", [DIGITS, "--devices=cpus:1"], "Did you mean cpu:1"),
    Mistake("no_workers", [DIGITS, "--devices=worker:0/cpu:0"], "addresses of all"),
    Mistake("unused", [DIGITS, SPEC, "--devices=cpu:0"], "theirs; got .'cpu:0'.*es=2"),
    Mistake("no_job", [DIGITS, "--cluster_spec=a:1"], "name the job 'worker'.*'a:1'"),
    Mistake("other_job", [DIGITS, "--cluster=works=a:1"], "Did you mean 'worker'"),
    Mistake("no_slurm", [DIGITS, "--cluster=slurm"], "to the tasks of srun; SLURM_S"),
    Mistake("no_tf_config", [DIGITS, "--cluster=tf_config"], "TF_CONFIG to be set"),
    Mistake(
        "no_kubernetes", [DIGITS, "--cluster=kubernetes"], "=kubernetes needs .*Or "
    ),
    Mistake(
        "nobody_listens", [DIGITS, "--listen_on_all_addresses"], "for tasks of a cl"
    ),
    Mistake("no_cluster", [DIGITS, "--cluster_spec="], "name the job 'worker'.*got ''"),
    Mistake("no_worker", [DIGITS, "--task=0"], "it needs --job=worker"),
    Mistake(
        "job_of_a_trainer", ["--job=worker", SPEC], "missing: .'--task'.*'--logdir"
    ),
    Mistake("no_task", ["--job=worker", "--task=2", SPEC], "0..1; got 2", None),
    Mistake(
        "unreachable",
        [DIGITS, SPEC, "--devices=2", "--wait_for_workers_seconds=1"],
        "worker:0 at localhost:1.* worker:1 at localhost:2",
    ),
    Mistake("no_devices", [DIGITS, "--devices=0"], "at least 1 device; got 0"),
    Mistake("device_twice", [DIGITS, "--devices=cpu:1,cpu:1"], "cpu:1.* stand twice"),
    Mistake(
        "absent_gpu", [DIGITS, "--devices=gpu:0"], "no gpu:0. Ask for.*CPU devices"
    ),
    Mistake("empty_stages", [DIGITS, "--devices=99"], "layers, 8; got 99.*use fewer"),
    Mistake(
        "other_devices",
        [DIGITS, "--devices=2", _flag("task.pipeline.devices : ['cpu:0']")],
        "asks for 2 devices, .*params name cpu:0. Leave --devices out",
    ),
    Mistake(
        "other_stages",
        [DIGITS, "--devices=3", _flag("task.pipeline.splits (list) : [2, 8]")],
        "makes 3 stages, .* list 2, .2, 8.. Leave --devices out",
    ),
    _override("no_cells", "task.pipeline.cell_tpl (int) : 3", "cell_tpl must be a li"),
    _override("unused_costs", "task.pipeline.cell_costs : [1]", "for each cell, fin"),
    _override(
        "no_file",
        "task.pipeline.schedule : nowhere.csv",
        "schedule of .*pipeline: .*'nowhere.csv' is not: No such file",
    ),
    _override("unknown_param", "task.train.max_stepz : 3", "Did you mean 'max_steps'"),
    _override("no_number", "task.train.max_steps : abc", "whole number.* got 'abc'"),
    _override(
        "no_value", "task.train.max_steps", "`path : value`; got 'task.train.max"
    ),
    _override(
        "several",
        "task.trian.max_steps : 3; input.batch_sise : 3; task.train.max_steps : abc",
        "(?s)3 faults; nothing was.*'train'.*'batch_size'.*got 'abc'",
    ),
    Mistake(
        "no_data",
        ["--model=image.imagenet.AmoebaNetB557M", "--data_dir=nowhere"],
        "imagenet2012 must be prepared before .*input.prepare --dataset=imagenet2012",
    ),
    _override("empty_batch", "input.batch_size : 0", "batch_size must be a pos.*got 0"),
    _override("small_batch", "input.batch_size : 3", "3 examples for 4 micro-batches"),
    _override("large_batch", "input.batch_size : 4000", "exceed the 1438.*got 4000"),
    _override("empty_split", "input.split : 'tset'", "got 'tset'.*Did you mean 'test'"),
    _override("negative_rate", "task.train.learning_rate : -1", "positive; got -1"),
    _override("unknown_optimizer", "task.train.optimizer.name : 'SDG'", "mean 'SGD'"),
    _override(
        "never_saved", "task.train.save_interval_steps : 0", "interval_steps is 0"
    ),
    _override("none_kept", "task.train.keep_checkpoints : 0", "keep_checkpoints is 0"),
    Mistake("below_a_file", [DIGITS], "can be written.*Choose another --l", "file/run"),
    Mistake("foreign", [DIGITS], "no params.txt. Choose another --logdir", "foreign"),
    Mistake("another_models", [DIGITS], "holds one of image.digits.Other", "other"),
]


def _prepare(folder: Path) -> None:
    (folder / "file").write_text("")
    (folder / "foreign").mkdir()
    (folder / "foreign" / "thesis.txt").write_text("years of work")
    (folder / "other").mkdir()
    (folder / "other" / "params.txt").write_text("# model: image.digits.Other\n")


@dataclass(frozen=True)
class Outcome:
    results: dict[str, tuple[int, str, str]]
    before: Snapshot
    after: Snapshot


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What came of all mistakes."""
    folder = tmp_path_factory.mktemp("mistakes")
    _prepare(folder)
    before = snapshot(folder)
    command_lines = [
        [*mistake.flags, *([f"--logdir={mistake.logdir}"] if mistake.logdir else [])]
        for mistake in MISTAKES
    ]
    program = CommandLine(folder).start(
        str(Path(__file__).with_name("many_command_lines.py"))
    )
    output, errors = program.communicate(json.dumps(command_lines))
    assert program.returncode == 0, errors
    names = [mistake.name for mistake in MISTAKES]
    results = dict(zip(names, json.loads(output), strict=True))
    return Outcome(results, before, snapshot(folder))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_is_told_in_one_line(outcome: Outcome, mistake: Mistake) -> None:
    code, output, errors = outcome.results[mistake.name]
    assert code == 1, errors
    assert output == ""
    assert errors.startswith("error: ")
    assert errors.count("error: ") == 1
    assert "Traceback" not in errors
    assert re.search(mistake.message, errors), errors


def test_nothing_is_written(outcome: Outcome) -> None:
    assert outcome.after == outcome.before


def test_an_error_in_a_model_is_shown_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "broken.py").write_text("import no_such_package\n")
    trainer = CommandLine(tmp_path).start_trainer(
        "--model=mine.broken.X", "--logdir=run"
    )
    output, errors = trainer.communicate()
    assert trainer.returncode == 1
    first, place, line, more = errors.splitlines()
    assert first == "error: ModuleNotFoundError: No module named 'no_such_package'"
    assert place.endswith('/mine/broken.py", line 1, in <module>')
    assert line == "    import no_such_package"
    assert more == "--traceback shows more."
    assert output == ""
    assert not (tmp_path / "run").exists()
