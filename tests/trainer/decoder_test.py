"""A model is trained, and translates what it has not seen, on any devices."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.training.run.metrics_log import read_metrics
from tests.support.command_line import DIGITS, CommandLine, snapshot
from tests.trainer.translating_models import (
    LANGUAGES,
    translated,
    write_data,
    write_other_vocabulary,
)

HERE = Path(__file__).resolve().parent
MODEL = ("--model=mine.translating_models.Letters", "--data_dir=.")
STEPS = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a finished run, and its translations."""
    folder = tmp_path_factory.mktemp("decoder")
    (folder / "mine").mkdir()
    shutil.copy(HERE / "translating_models.py", folder / "mine")
    write_data(folder)
    write_other_vocabulary(folder / "other.model")
    CommandLine(folder).train(*MODEL, "--logdir=run")
    CommandLine(folder).train(*MODEL, "--logdir=run", "--job=decoder")
    return folder


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    text = (folder / name).read_text(encoding="utf-8")
    return list(map(json.loads, text.splitlines()))


def test_what_was_learned_is_translated(folder: Path) -> None:
    """Also where each source is to be translated to two languages."""
    found = lines(folder, f"run/decoder/test-{STEPS:08d}.jsonl")
    wanted = [
        line.split("\t")
        for language in LANGUAGES
        for line in (folder / f"test.{language}").read_text().splitlines()
    ]
    assert [[each["source"], each["reference"]] for each in found] == wanted
    right = [each["hypothesis"] == each["reference"] for each in found]
    assert sum(right) > 0.8 * len(right)
    for each in found:
        language = each["target_language"]
        assert each["reference"] == translated(each["source"], language)
        assert each["source_language"] == "abc"
        assert each["others"][0]["score"] <= each["score"] <= 0


def test_scores_are_by_language(folder: Path) -> None:
    text = (folder / f"run/decoder/test-{STEPS:08d}.json").read_text()
    scores = json.loads(text)
    assert [each["languages"] for each in scores["languages"]] == [
        "abc-next",
        "abc-same",
    ]
    assert scores["mean"]["chrf"] > 80
    (logged,) = read_metrics(folder / "run/decoder")
    assert logged["chrf"] == scores["mean"]["chrf"]
    assert logged["step"] == STEPS


def test_another_process_evaluates_as_the_trainer_does(folder: Path) -> None:
    CommandLine(folder).train(
        *MODEL, "--logdir=run", "--job=evaler", "--follow_seconds=30", "--devices=1"
    )
    (found,) = read_metrics(folder / "run/evaler")
    assert found == read_metrics(folder / "run")[-1]


def test_an_exported_model_predicts_the_next_letters(folder: Path) -> None:
    output, _ = CommandLine(folder).train(*MODEL, "--logdir=run", "--job=exporter")
    path = f"run/export/{STEPS}"
    assert re.search(rf"\b{STEPS}\b.* {path}\b", output.splitlines()[-1])
    signatures = tf.saved_model.load(str(folder / path)).signatures
    (names,) = [set(s.structured_input_signature[1]) for s in signatures.values()]
    parts = ("ids", "segment_ids", "segment_pos")
    assert names == {f"{s}_{part}" for s in ("source", "target") for part in parts}


def decoded(folder: Path, copy: str, *flags: str) -> dict[str, bytes]:
    """The translations of a copy of the run, and the scores."""
    shutil.copytree(folder / "run", folder / copy)
    shutil.rmtree(folder / copy / "decoder")
    CommandLine(folder).train(*MODEL, f"--logdir={copy}", "--job=decoder", *flags)
    files = (folder / copy / "decoder").glob("*.*")
    return {path.name: path.read_bytes() for path in files}


def test_the_number_of_devices_changes_no_byte(folder: Path) -> None:
    got = decoded(folder, "four", "--devices=4")
    want = {p.name: p.read_bytes() for p in (folder / "run/decoder").glob("*.*")}
    assert got == want
    assert len(want) == 5


def test_another_split_and_checkpoint(folder: Path) -> None:
    flags = ("--split=Train", "--checkpoint=ckpt-00000200")
    assert "train-00000200.jsonl" in decoded(folder, "other", *flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], r"--job=decoder\b[^=-]*--logdir\b"),
        (["--logdir=none"], r"--logdir\b.*\bnone\b"),
        (["--logdir=run", "--split=Tset"], "'Tset'.*'Test'"),
        (["--logdir=run", "--checkpoint=ckpt-7"], r"'ckpt-7'.*\brun/checkpoints\b"),
        (["--logdir=run", "--max_steps=3"], r"--job=decoder\b.*--max_steps\b"),
        (
            ["--logdir=run", "--model_params_override=task.label_smoothing : 0.5"],
            r"--allow_params_change=task\.label_smoothing\b",
        ),
        (
            ["--logdir=run", "--allow_params_change=task.label_smooth"],
            r"'task\.label_smooth'.*'task\.label_smoothing'",
        ),
        (["--logdir=run", "--checkpoint=best"], r"=best\b.*task\.eval\.best_metric"),
        (
            ["--logdir=run", "--checkpoint=best", "--follow_seconds=1"],
            r"--follow_seconds\b.*--checkpoint=best\b",
        ),
        (
            ["--logdir=run", "--model_params_override=task.decode.width : 0"],
            r"\bwidth\b.*\b1\b.*\b0\b",
        ),
        (
            ["--logdir=run", "--model_params_override=input.vocab_file : other.model"],
            r"\(\./letters\.model\).*vocab_file\b.*\./other\.model\b",
        ),
        (["--logdir=run", DIGITS], r"DecodeBatches\b.*\bImageClassificationInput\b"),
    ],
)
def test_what_does_not_fit_is_a_line(
    folder: Path, flags: list[str], message: str
) -> None:
    before = snapshot(folder / "run")
    job = CommandLine(folder).start_trainer(*MODEL, "--job=decoder", *flags)
    _, errors = job.communicate()
    assert job.returncode == 1
    assert re.search(message, errors.splitlines()[-1])
    assert "Traceback" not in errors
    assert snapshot(folder / "run") == before


def test_flags_of_decoding_are_no_others(folder: Path) -> None:
    job = CommandLine(folder).start_trainer(*MODEL, "--logdir=new", "--split=Test")
    _, errors = job.communicate()
    assert re.search(r"--job=trainer\b.*--split\b", errors)
    assert not (folder / "new").exists()
