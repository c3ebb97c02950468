"""A bad value gets one line, at once, and nothing is written.

The values are drawn with a fixed seed, for flags, for params of several models, and for
new runs and old ones.
"""

from __future__ import annotations

import functools
import random
import shutil
import string
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

import model_registry
from tests.support.command_line import (
    SMALL,
    CommandLine,
    snapshot,
    write_small_model,
)

NUM_CASES, NUM_SHARDS = 500, 4
MAX_SECONDS = 120.0  # About 2 on a machine that does nothing else.

# Numbers of things, which are neither missing nor unlimited.
COUNTS = [
    "input.batch_size",
    "task.eval.interval_steps",
    "task.eval.patience",
    "task.pipeline.num_batch_shards",
    "task.pipeline.num_micro_batches",
    "task.pipeline.num_replicas",
    "task.pipeline.splits",
    "task.pipeline.stages_per_device",
    "task.train.histogram_interval_steps",
    "task.train.keep_checkpoints",
    "task.train.max_steps",
    "task.train.report_interval_steps",
    "task.train.save_interval_steps",
    "task.train.steps_per_loop",
]
# Sizes of the layers of SMALL.
SIZES = ["task.pipeline.cell_tpl[1].dim", "task.pipeline.cell_tpl[4].input_dim"]
# Params that may be None, and are numbers if not.
NUMBERS = [
    "task.random_seed",
    "task.train.clip_gradient_norm_to_value",
    "task.train.learning_rate",
    "task.train.loss_spike_factor",
    "task.pipeline.memory_limit",
]
GROUPS = ["task", "task.train", "task.eval", "task.local", "task.pipeline", "input"]
GROUPS += ["task.train.optimizer", "task.pipeline.cell_tpl[0]"]
# Names of which there are few.
CHOICES = [
    "input.dataset",
    "input.split",
    "task.eval.best_metric",
    "task.local.scheme",
    "task.pipeline.cell_tpl[0].activation",
    "task.pipeline.recompute",
    "task.pipeline.schedule",
    "task.train.optimizer.name",
]
# What must have a value of its type.
NEEDED = [
    "input.dataset",
    "input.train_transforms",
    "task.name",
    "task.pipeline.cell_tpl",
    "task.pipeline.cell_tpl[0].filter_shape",
    "task.pipeline.schedule",
    "task.train.max_rollbacks",
    "task.train.max_skipped_steps",
    "task.train.optimizer.arguments",
    "task.train.optimizer.name",
]
# Models of which any number is drawn.
MODELS = ["image.digits.AmoebaNetDigits", "mt.cldr.TransformerTiny"]
MODELS += ["lm.giant.L13", "image.imagenet.AmoebaNetB557M"]
BAD_NUMBERS = ["nan", "inf", "-inf", "1e39", "-3e300", "9" * 30, "'x'", "[1]"]
# No count of anything, of an int or of a param without a value.
NO_COUNTS = ["0", "-1", "-2000000000", "1e30", "3e9", "nan", "1.5", "'many'", "[]"]


class Case(NamedTuple):
    """Flags with a bad value among them, but for --logdir."""

    flags: Sequence[str]
    is_resumed: bool


def _word(draw: random.Random, letters: str = string.ascii_lowercase) -> str:
    return "q" + "".join(draw.choices(letters, k=draw.randrange(3, 9)))


def _override(draw: random.Random) -> str:
    """An override of a param of SMALL."""
    kind = draw.randrange(8)
    if kind == 0:
        return f"{draw.choice(COUNTS)} : {draw.choice(NO_COUNTS)}"
    if kind == 1:
        return f"{draw.choice(SIZES)} : {draw.choice(['0', '-8', '1e13', 'None'])}"
    if kind == 2:
        return f"{draw.choice(NUMBERS)} : {draw.choice(BAD_NUMBERS)}"
    if kind == 3:
        return f"{draw.choice(GROUPS)} : {draw.choice(['None', '7', '[]', 'x'])}"
    if kind == 4:
        return f"{draw.choice(CHOICES)} : {_word(draw)}"
    if kind == 5:
        return f"{draw.choice(NEEDED)} : None"
    if kind == 6:
        return _word(draw, string.printable[10:95])
    first, second = _override(draw), _override(draw)
    return f"task.train.save_interval_steps : 2; {first}; {second}"


@functools.cache
def _numbers(model: str) -> list[tuple[str, bool]]:
    """Paths of all numbers of a model, and whether each is a bool."""
    found: list[tuple[str, bool]] = []

    def visit(path: str, value: object) -> None:
        if isinstance(value, (int, float)):
            found.append((path, isinstance(value, bool)))

    model_registry.GetParams(model, "Train").Visit(visit)
    return found


def _number(draw: random.Random) -> list[str]:
    """A number of a registered model that is none."""
    name = draw.choice(MODELS)
    path, is_bool = draw.choice(_numbers(name))
    bad = "maybe" if is_bool else draw.choice(BAD_NUMBERS)
    return [f"--model={name}", f"--model_params_override={path} : {bad}"]


def _flags(draw: random.Random) -> list[str]:
    """A flag with a bad value."""
    digits = str(draw.randrange(10**4, 10**30))
    word, long = _word(draw), draw.choice(string.ascii_letters) * 300
    workers = "--cluster=worker=localhost:1"
    values = [
        [f"--{name}={value}"]
        for name, bad in {
            "max_steps": ["0", f"-{digits}", word, "nan", "9" * 20, ""],
            "profile_step": ["0", "1", "9" * 25, word, f"-{digits}"],
            "devices": [digits, f"cpu:{digits}", word, "cpu:1,cpu:1", "-1", ""],
            "job": [word, "worker"],
            "mode": [word, "training"],
            "model": [word, f"image.{word}", "..", long],
            "model_imports": [word, "../x", ","],
            "data_dir": ["/dev/null", f"/{long}", f"/proc/{word}"],
            "allow_params_change": [word, "task.trian"],
            "cluster": [word, "worker=localhost:0", f"worker=localhost:{digits}", ""],
            "task": ["0", "-1", word],
            "split": [word],
            word: [digits],
            "max_stepz": ["3"],
        }.items()
        for value in bad
    ]
    values += [
        [workers, f"--{name}_seconds={value}"]
        for name in ("worker_timeout", "wait_for_workers", "lost_worker", "grow")
        for value in ("nan", "inf", "-1", word, "1e300")
    ]
    values += [
        [f"--job={job}", f"--{name}={value}"]
        for job in ("evaler", "decoder", "exporter")
        for name, value in (
            ("split", word),
            ("split", "Task"),
            ("checkpoint", word),
            ("checkpoint", f"../{word}"),
            ("follow_seconds", "nan"),
            ("max_steps", "3"),
        )
    ]
    return draw.choice(values)


def _cases() -> Iterator[Case]:
    """Yields different cases without end."""
    draw = random.Random(20)
    seen: set[tuple[str, ...]] = set()
    while True:
        kind = draw.randrange(10)
        if kind == 0:
            flags = [f"--logdir={draw.choice('abc') * 300}", SMALL]
        elif kind < 3:
            flags = _number(draw)
        elif kind < 6:
            flags = [SMALL, *_flags(draw)]
        else:
            flags = [SMALL, f"--model_params_override={_override(draw)}"]
        case = Case(flags, draw.random() < 0.5)
        if tuple(flags) not in seen or kind == 0 and len(seen) < 2:
            seen.add(tuple(flags))
            yield case


def _draw_cases() -> list[Case]:
    cases = _cases()
    return [next(cases) for _ in range(NUM_CASES)]


class Refusals(CommandLine):
    """Runs with bad values below a folder, which has an old run."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        write_small_model(folder)
        self._folder = folder
        self.train(SMALL, "--logdir=old", "--max_steps=1")
        self._old = snapshot(folder / "old")

    def problem(self, number: int, case: Case) -> str:
        """Returns what is wrong with a refusal, or ""."""
        logdir = self._folder / f"run{number}"
        if case.is_resumed:
            shutil.copytree(self._folder / "old", logdir)
        begin = time.monotonic()
        with self.start_trainer(f"--logdir={logdir.name}", *case.flags) as trainer:
            try:
                output, errors = trainer.communicate(MAX_SECONDS)
            except subprocess.TimeoutExpired:
                return f"{case}: no end within {time.monotonic() - begin:.0f} seconds"
        after = snapshot(logdir) if logdir.exists() else {}
        shutil.rmtree(logdir, ignore_errors=True)
        lines = errors.splitlines()
        # This one names each param on a line of its own.
        is_short = len(lines) == 1 or errors.startswith("error: Cannot resume: ")
        is_short |= "problems; nothing was changed" in lines[0] if lines else False
        is_clean = after == (self._old if case.is_resumed else {})
        is_line = (
            is_short and errors.startswith("error: ") and "Traceback" not in errors
        )
        if trainer.returncode in (1, 2) and not output and is_line and is_clean:
            return ""
        written = "" if is_clean else "; files were written"
        return f"{case}: {trainer.returncode}{written}\n{output}{errors}"


SHARDS = [range(start, NUM_CASES, NUM_SHARDS) for start in range(NUM_SHARDS)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("numbers", SHARDS, ids=str)
def test_each_is_refused_in_a_line(numbers: Sequence[int], tmp_path: Path) -> None:
    refusals, cases = Refusals(tmp_path), _draw_cases()
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = pool.map(lambda i: refusals.problem(i, cases[i]), numbers)
    problems = [problem for problem in found if problem]
    assert not problems, "\n".join(problems)
