"""Each mistake is told in one line, before anything is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lingvo_pipe.core.errors import UserClusterError
from tests.support.command_line import DIGITS, CommandLine, Snapshot, snapshot


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
    Mistake("nothing", [], r"=train\b[^=-]*--model\b[^=-]*--logdir\b", None),
    Mistake("no_logdir", [DIGITS], r"--mode=train\b[^=-]*--logdir\b", None),
    Mistake("remote_logdir", [DIGITS], r"--logdir\b.*'gs://runs/a'", "gs://runs/a"),
    Mistake(
        "remote_data", [DIGITS, "--data_dir=s3://data"], r"--data_dir\b.*'s3://data'"
    ),
    Mistake("no_model", [], r"--mode=train\b[^=-]*--model\b[^=-]*--model="),
    Mistake(
        "nothing_to_inspect",
        ["--mode=inspect_model"],
        r"=inspect_model\b[^=-]*--model\b",
        None,
    ),
    Mistake("unknown_flag", ["--modle=x"], r"'modle'.*\bmode, model\b"),
    Mistake("near_flag", [DIGITS, "--max_step=3"], r"'max_step'.*\bmax_steps\b"),
    Mistake("flag_of_absl", [DIGITS, "--log_dir=x"], r"--log_dir\b.*'logdir'.*--help"),
    Mistake(
        "unknown_mode",
        ["--mode=nonsense"],
        r"--mode=nonsense\b.*\btrain\b.*inspect_mod",
    ),
    Mistake("no_steps", [DIGITS, "--max_steps=0"], "--max_steps=0: .*--help"),
    Mistake("steps_in_words", [DIGITS, "--max_steps=ten"], "--max_steps=ten: .*--help"),
    Mistake(
        "second_step", [DIGITS, "--profile_step=2"], r"\b3\b.*max_steps.*\b2\b.*--prof"
    ),
    Mistake(
        "step_beyond",
        [DIGITS, "--profile_step=9", "--max_steps=8"],
        r"\b3\b.*max_steps.*\b8\b.*\b9\b.*--profile_step\b.*--max_steps\b",
    ),
    Mistake(
        "no_step_to_profile",
        [DIGITS, "--profile_step=9", "--mode=inspect_model"],
        r"--mode=inspect_model\b.*--profile_step\b",
    ),
    Mistake(
        "nothing_to_compare_with",
        [DIGITS, "--mode=diff_params"],
        r"--mode=diff_params\b.*--other_model\b.*--logdir\b.*None\b.*None\b",
        None,
    ),
    Mistake(
        "other_model_to_train",
        [DIGITS, "--other_model=image.digits.AmoebaNetDigits0To4"],
        r"--mode=train\b.*--other_model\b",
    ),
    Mistake(
        "no_foreign_run_to_compare_with",
        [
            DIGITS,
            "--mode=diff_params",
            f"--other_{DIGITS[2:]}",
            "--allow_foreign_logdir",
        ],
        r"--mode=diff_params\b.*--allow_foreign_logdir\b",
        None,
    ),
    Mistake(
        "no_run_to_compare_with", [DIGITS, "--mode=diff_params"], r"--logdir\b.*\bnew\b"
    ),
    Mistake("nothing_to_report", ["--mode=report"], r"=report\b[^=-]*--logdir\b", None),
    Mistake("no_run_to_report", ["--mode=report"], r"--logdir\b.*\bnew\b"),
    Mistake(
        "report_of_no_run", ["--mode=report"], r"--logdir\b.*\bforeign\b", "foreign"
    ),
    Mistake(
        "report_of_another_models_run",
        [DIGITS, "--mode=report"],
        r"\bother\b.*image\.digits\.Other\b.*--model=image\.digits\.Other\b",
        "other",
    ),
    Mistake(
        "report_on_devices",
        ["--mode=report", "--max_steps=3", "--devices=2"],
        r"--mode=report\b.*--devices\b.*--max_steps\b",
        "other",
    ),
    Mistake("argument", [DIGITS, "again"], r"--.*\bagain\b.*--help"),
    Mistake(
        "unknown_model",
        ["--model=image.digits.AmoebaNetDigit"],
        r"'image\.digits\.AmoebaNetDigit'.*'image\.digits\.AmoebaNetDigits'"
        r".*--model_imports=",
    ),
    Mistake(
        "part_of_models", ["--model=cldr"], r"'cldr'.*'mt\.cldr\.\w+'.*--list_models"
    ),
    Mistake("relative_model", ["--model=.digits.X"], r"'\.digits\.X'.*image\.digits\."),
    Mistake(
        "unknown_package", [DIGITS, "--model_imports=nowhere"], "'nowhere'.*PYTHONPATH"
    ),
    Mistake("devices_in_words", [DIGITS, "--devices=two"], r"\['two'\].*cpu:0,cpu:1"),
    Mistake("near_device", [DIGITS, "--devices=cpus:1"], r"\['cpus:1'\]\D*cpu:1\b"),
    Mistake(
        "no_workers",
        [DIGITS, "--devices=worker:0/cpu:0"],
        r"\['worker:0/cpu:0'\].*\b0\b.*--cluster=",
    ),
    Mistake("unused", [DIGITS, SPEC, "--devices=cpu:0"], r"\['cpu:0'\].*--devices=2"),
    Mistake(
        "no_job", [DIGITS, "--cluster_spec=a:1"], "--cluster.*'worker'.*slurm.*'a:1'"
    ),
    Mistake("other_job", [DIGITS, "--cluster=works=a:1"], "'works=a:1'.*'worker'"),
    Mistake("no_slurm", [DIGITS, "--cluster=slurm"], "=slurm.*SLURM_STEP_NUM_TASKS"),
    Mistake("no_tf_config", [DIGITS, "--cluster=tf_config"], "=tf_config.*TF_CONFIG='"),
    Mistake(
        "no_kubernetes",
        [DIGITS, "--cluster=kubernetes"],
        "=kubernetes.*--cluster=worker=worker-0",
    ),
    Mistake(
        "nobody_listens",
        [DIGITS, "--listen_on_all_addresses"],
        r"--listen_on_all_addresses\b.*--cluster\b",
    ),
    Mistake(
        "no_cluster", [DIGITS, "--cluster_spec="], "--cluster.*'worker'.*slurm.*''"
    ),
    Mistake("no_worker", [DIGITS, "--task=0"], r"error: --task\b.*--job=worker"),
    Mistake(
        "job_of_a_trainer",
        ["--job=worker", SPEC],
        r"=worker\b.*\['--task'\].*'--logdir'",
    ),
    Mistake(
        "no_task",
        ["--job=worker", "--task=2", SPEC],
        r"--task\b.*\b0\.\.1\b.*\b2\b",
        None,
    ),
    Mistake(
        "unreachable",
        [DIGITS, SPEC, "--devices=2", "--wait_for_workers_seconds=1"],
        r"worker:0 at localhost:1\b.*worker:1 at localhost:2\b.*\b1\b.*--wait_for_",
    ),
    Mistake("no_devices", [DIGITS, "--devices=0"], r"\b1 device\b.*\b0\b.*cpu:0,cpu:1"),
    Mistake(
        "device_twice", [DIGITS, "--devices=cpu:1,cpu:1"], r"\['cpu:1'\].*\btwice\b"
    ),
    Mistake(
        "absent_gpu", [DIGITS, "--devices=gpu:0"], r"\b0 GPUs\b.*\bgpu:0\b.*\bcpu:0\b"
    ),
    Mistake(
        "empty_stages",
        [DIGITS, "--devices=99"],
        r"task\.pipeline\.splits\b.*\b8\b.*\b99\b",
    ),
    Mistake(
        "other_devices",
        [DIGITS, "--devices=2", _flag("task.pipeline.devices : ['cpu:0']")],
        r"--devices\b.*\b2 devices\b.*\bcpu:0\b.*task\.pipeline\.devices : None",
    ),
    Mistake(
        "other_stages",
        [DIGITS, "--devices=3", _flag("task.pipeline.splits (list) : [2, 8]")],
        r"\b3 stages\b.*\[2, 8\].*--devices\b.*task\.pipeline\.splits \(int\) : 3",
    ),
    _override(
        "no_cells",
        "task.pipeline.cell_tpl (int) : 3",
        r"task\.pipeline\.cell_tpl\b.*\b3\b",
    ),
    _override(
        "unused_costs",
        "task.pipeline.cell_costs : [1]",
        r"cell_costs\b.*'measured'.*\[1\]",
    ),
    _override(
        "no_file",
        "task.pipeline.schedule : nowhere.csv",
        r"task/pipeline\.schedule\b.*'nowhere\.csv'.*/mistakes",
    ),
    _override("unknown_param", "task.train.max_stepz : 3", "'max_stepz'.*'max_steps'"),
    _override(
        "no_number", "task.train.max_steps : abc", r"task\.train\.max_steps: .*'abc'"
    ),
    _override(
        "no_value", "task.train.max_steps", r"`path : value`.*'task\.train\.max_steps'"
    ),
    _override(
        "several",
        "task.trian.max_steps : 3; input.batch_sise : 3; task.train.max_steps : abc",
        r"(?s)\b3 problems\b.*task\.trian: .*'train'.*input\.batch_sise: .*'batch_size'"
        r".*task\.train\.max_steps: .*'abc'",
    ),
    Mistake(
        "no_data",
        ["--model=image.imagenet.AmoebaNetB557M", "--data_dir=nowhere"],
        r"imagenet2012\b.*\bnowhere/.*lingvo_pipe prepare --dataset=imagenet2012\b",
    ),
    Mistake(
        "no_images",
        [DIGITS, "--data_dir=.", "--dataset=holidays"],
        r"dataset: .*train/CLASS/IMAGE\.jpg.*'holidays'",
    ),
    _override("empty_batch", "input.batch_size : 0", r"Class\w*\.batch_size\b.*\b0\b"),
    _override(
        "small_batch", "input.batch_size : 3", r"num_micro_batches\b.*\b3\b.*\b4\b"
    ),
    _override(
        "large_batch", "input.batch_size : 4000", r"batch_size\b.*\b1438\b.*\b4000\b"
    ),
    _override("empty_split", "input.split : 'tset'", r"\bsplit\b.*'tset'.*'test'"),
    _override(
        "negative_rate", "task.train.learning_rate : -1", r"learning_rate\b.*-1\b"
    ),
    _override(
        "unknown_optimizer", "task.train.optimizer.name : 'SDG'", "'SDG'.*'SGD'.*'Adam'"
    ),
    _override(
        "never_saved",
        "task.train.save_interval_steps : 0",
        r"task\.train\.save_interval_steps\b.*\b0\b",
    ),
    _override(
        "none_kept",
        "task.train.keep_checkpoints : 0",
        r"train\.keep_checkpoints\b.*\b0\b",
    ),
    Mistake("below_a_file", [DIGITS], r"logdir\b.*\bfile/run \(.*--logdir", "file/run"),
    Mistake("foreign", [DIGITS], r"\bforeign\b.*\bparams\.txt\b.*--logdir", "foreign"),
    Mistake(
        "another_models",
        [DIGITS],
        r"\bother\b.*--model=image\.digits\.Other\b",
        "other",
    ),
    Mistake("link", [DIGITS], r"\blinked/lock\b.*--allow_foreign_logdir\b", "linked"),
    *(
        Mistake(
            f"other_model_{number}",
            [DIGITS, "--allow_foreign_logdir", *flags],
            r"\blinked\b.*--model=image\.digits\.Other\b",
            "linked",
        )
        for number, flags in enumerate([[], ["--mode=report"], ["--job=evaler"]])
    ),
]


def _prepare(folder: Path) -> None:
    (folder / "linked").mkdir()
    (folder / "linked" / "params.txt").write_text("# model: image.digits.Other\n")
    (folder / "linked" / "lock").symlink_to(folder / "file")
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
    """The outcomes of all mistakes."""
    folder = tmp_path_factory.mktemp("mistakes")
    _prepare(folder)
    before = snapshot(folder)
    command_lines = [
        [*mistake.flags, *([f"--logdir={mistake.logdir}"] if mistake.logdir else [])]
        for mistake in MISTAKES
    ]
    outcomes = CommandLine(folder).run_trainers(command_lines)
    names = [mistake.name for mistake in MISTAKES]
    results: dict[str, tuple[int, str, str]] = dict(zip(names, outcomes, strict=True))
    return Outcome(results, before, snapshot(folder))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_is_told_in_one_line(outcome: Outcome, mistake: Mistake) -> None:
    code, output, errors = outcome.results[mistake.name]
    is_unreachable = mistake.name == "unreachable"
    assert code == (UserClusterError.exit_code if is_unreachable else 1), errors
    assert output == ""
    errors = re.sub(r"(?m)^.* \.\.\. \d+ s\n", "", errors)  # Of a slow machine.
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
    assert "--traceback" in more
    assert output == ""
    assert not (tmp_path / "run").exists()
