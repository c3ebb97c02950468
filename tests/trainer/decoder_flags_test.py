"""Jobs of a run that translates: what fits, and what is refused in a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cases import exhaustive
from tests.support.command_line import DIGITS, CommandLine, snapshot
from tests.trainer.translating_models import write_other_vocabulary
from tests.trainer.translating_runs import MODEL, train_letters


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a run that has learned nothing."""
    folder = train_letters(
        tmp_path_factory.mktemp("untrained"), "--max_steps=1", "--devices=1"
    )
    write_other_vocabulary(folder / "other.model")
    (folder / "long").write_text("a b\n" + "a" * 99)
    return folder


@pytest.mark.exhaustive
def test_lines_are_translated_as_in_python(untrained: Path) -> None:
    """By a model that has learned nothing."""
    sources = ["b a", "", "a b c", "c"]
    (untrained / "letters").write_text("".join(f"{x}\n" for x in sources))
    job = (*MODEL, "--logdir=run", "--job=decoder", "--target_language=next")
    output, _ = CommandLine(untrained).train(*job, "--input_file=letters")
    model = 'lp.load("run", model="mine.translating_models.Letters")'
    program = f"print(*{model}.translate({sources}, to='next'), sep='\\n')"
    run = CommandLine(untrained).run("-c", f"import lingvo_pipe as lp\n{program}")
    assert run.output == output
    assert any(output.splitlines())


OVERRIDE, LANGUAGE = "--model_params_override=", "--target_language=next"


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ([], ["--job=decoder: expected --logdir."]),
        (["--logdir=none"], ["--logdir: "]),
        (["--logdir=run", "--split=Tset"], ["data set: ", "'Tset'", "'Test'"]),
        exhaustive(["--logdir=run", "--checkpoint=ckpt-7"], ["--checkpoint: "]),
        exhaustive(["--logdir=run", "--checkpoint=best"], ["--checkpoint: "]),
        (["--logdir=run", "--max_steps=3"], ["--job=decoder: expected no --max_steps"]),
        (
            ["--logdir=run", "--checkpoint=best", "--follow_seconds=1"],
            ["--follow_seconds=1.0: expected no --checkpoint"],
        ),
        (
            ["--logdir=run", f"{OVERRIDE}task.decode.width : 0"],
            ["width: ", "got 0"],
        ),
        (
            ["--logdir=run", f"{OVERRIDE}input.vocab_file : other.model"],
            ["input.vocab_file: "],
        ),
        (["--logdir=run", DIGITS], ["input: expected DecodeBatches "]),
        (["--logdir=run", DIGITS, "--input_file=test.same"], ["input: expected Sent"]),
        (["--logdir=run", "--input_file=none.txt"], ["--input_file: "]),
        (["--logdir=run", "--input_file=letters.model", LANGUAGE], ["--input_file: "]),
        (
            ["--logdir=run", "--input_file=long", "--output_file=no/x"],
            ["--output_file"],
        ),
        (["--logdir=run", "--input_file=test.same"], ["target_language: "]),
        (
            ["--logdir=run", "--input_file=long", LANGUAGE],
            ["input.source_length: ", "102", "24"],
        ),
        (
            ["--logdir=run", "--input_file=long", "--split=Test"],
            ["--input_file=long: expected no --split"],
        ),
        (["--logdir=run", "--output_file=x"], ["--job=decoder: expected no --output"]),
        (["--logdir=run", "--input_file=long", "--top_p=2"], ["--top_p: ", "got 2.0"]),
        exhaustive(["--logdir=run", "--input_file=long", "--seed=3"], ["--seed: "]),
    ],
)
def test_what_does_not_fit_is_a_line(
    untrained: Path, flags: list[str], parts: list[str]
) -> None:
    before = snapshot(untrained / "run")
    job = CommandLine(untrained).start_trainer(*MODEL, "--job=decoder", *flags)
    _, errors = job.communicate()
    assert job.returncode == 1
    error = errors.partition("error: ")[2]
    assert error.startswith(parts[0])
    assert [part for part in parts if part not in error] == [], error
    assert "Traceback" not in errors
    assert snapshot(untrained / "run") == before
