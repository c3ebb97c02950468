"""Random damage to files of a run: an error of one line, or the same results.

The fast suite has the chosen damages of `damaged_files_test.py`.
"""

from __future__ import annotations

import functools
import random
import shutil
from pathlib import Path

import pytest

from lingvo_pipe.training.run.best_evaluation import read_best
from tests.support.cases import seeds
from tests.support.command_line import saved_variables
from tests.training.toy_run import STEPS
from tests.training.whole_run import JOBS, problem_of, train_toy, write_whole_run

BEST = "best.json"
NUM_CORRUPTIONS = 150


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logdir = tmp_path_factory.mktemp("runs") / "whole"
    write_whole_run(logdir)
    return logdir


def _corrupt(draw: random.Random, content: bytes) -> bytes:
    """Returns content with a random slice flipped, cut, repeated, zeroed or drawn."""
    start = draw.randrange(len(content) + 1)
    end = min(len(content), start + 2 ** draw.randrange(12))
    piece = content[start:end]
    return content[:start] + draw.choice(
        [
            bytes(byte ^ 1 << draw.randrange(8) for byte in piece[:1])
            + content[start + 1 :],
            b"",
            content[end:],
            piece + piece + content[end:],
            bytes(len(piece)) + content[end:],
            draw.randbytes(len(piece) or 1) + content[end:],
        ]
    )


def _results(logdir: Path) -> tuple[object, ...]:
    variables = saved_variables(logdir, STEPS)
    names = "metrics.jsonl", "skipped_batches.json", BEST
    return variables, *((logdir / name).read_text() for name in names)


@pytest.mark.parametrize("seed", seeds(NUM_CORRUPTIONS))
def test_a_random_corruption_is_a_line_or_changes_no_result(
    tmp_path: Path, whole: Path, seed: int
) -> None:
    draw = random.Random(seed)
    logdir = shutil.copytree(whole, tmp_path / "run")
    files = [p for p in sorted(logdir.rglob("*")) if p.is_file()]
    before, best = _results(logdir), read_best(logdir / BEST)["step"]
    damaged = draw.sample(files, draw.choice([1, 1, 2]))
    for path in damaged:
        path.write_bytes(_corrupt(draw, path.read_bytes()))
    job = draw.choice([train_toy, *JOBS])
    logged: list[str] = []
    if job is train_toy:
        job = functools.partial(train_toy, log=logged.append)
    line = problem_of(job, logdir)
    if line:
        assert str(logdir) in line or line.startswith("Cannot resume: ")
    elif job not in JOBS:
        *results, of_best = _results(logdir)
        assert (*results, of_best) == before or (
            # Another checkpoint is the best if that one is damaged, and a line says so.
            results == [*before[:-1]]
            and any(path.stem.startswith(f"ckpt-{best:08d}") for path in damaged)
            and any(f"step {best}," in text for text in logged)
        )
