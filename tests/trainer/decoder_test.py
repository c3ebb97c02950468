"""A model is trained, and translates what it has not seen, on any devices."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.training.run.metrics_log import read_metrics
from tests.docs.pages import page, python_blocks
from tests.support.command_line import CommandLine, snapshot
from tests.trainer.translating_models import LANGUAGES, translated
from tests.trainer.translating_runs import MODEL, train_letters

STEPS = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a finished run, and its translations."""
    folder = train_letters(tmp_path_factory.mktemp("decoder"))
    CommandLine(folder).train(*MODEL, "--logdir=run", "--job=decoder")
    return folder


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    text = (folder / name).read_text(encoding="utf-8")
    return list(map(json.loads, text.splitlines()))


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_scores_are_by_language(folder: Path) -> None:
    text = (folder / f"run/decoder/test-{STEPS:08d}.json").read_text()
    scores = json.loads(text)
    assert [each["languages"] for each in scores["languages"]] == [
        "abc-next",
        "abc-same",
    ]
    assert scores["mean"]["chrf"] > 80
    # One of the two languages is the source's.
    assert 50 <= scores["source_copied"]["chrf"] < scores["mean"]["chrf"]
    (logged,) = read_metrics(folder / "run/decoder")
    assert logged["chrf"] == scores["mean"]["chrf"]
    assert logged["step"] == STEPS
    page = (folder / "run/report.html").read_text()
    assert f"{scores['source_copied']['bleu']:.2f}" in page
    assert lines(folder, f"run/decoder/test-{STEPS:08d}.jsonl")[0]["source"] in page


@pytest.mark.exhaustive
def test_another_process_evaluates_as_the_trainer_does(folder: Path) -> None:
    CommandLine(folder).train(
        *MODEL, "--logdir=run", "--job=evaler", "--follow_seconds=30", "--devices=1"
    )
    (found,) = read_metrics(folder / "run/evaler")
    assert found == read_metrics(folder / "run")[-1]


@pytest.fixture(scope="module")
def exported(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported model, in a folder without the data and the vocabulary."""
    output, _ = CommandLine(folder).train(
        *MODEL, "--logdir=run", "--job=exporter", "--devices=2"
    )
    path = f"run/export/{STEPS}"
    assert re.search(rf"\b{STEPS}\b.* {path}\b", output.splitlines()[-1])
    target = tmp_path_factory.mktemp("exported") / "model"
    return (folder / path).rename(target)


@pytest.mark.exhaustive
def test_an_exported_model_predicts_the_next_letters(exported: Path) -> None:
    signatures = tf.saved_model.load(str(exported)).signatures
    names = {k: {*s.structured_input_signature[1]} for k, s in signatures.items()}
    parts = ("ids", "segment_ids", "segment_pos")
    assert names == {
        "serving_default": {f"{s}_{p}" for s in ("source", "target") for p in parts},
        "translate": {"sentences", "target_language"},
    }


# Run where no module of ours can be found.
_SERVE = """
import json, os, sys
import tensorflow as tf
import tensorflow_text

sources, *languages = json.loads(sys.argv[2])
model = tf.saved_model.load(sys.argv[1])
assert not any("lingvo" in name for name in sys.modules)
translate = model.signatures["translate"]
found, errors = [], []
for language in languages:
    outputs = translate(
        sentences=tf.constant(sources), target_language=tf.constant(language)
    )
    found.append([text.decode() for text in outputs["translations"].numpy()])
for sentence, language in (("a b", "nxt"), ("a" * 99, "next")):
    try:
        translate(
            sentences=tf.constant([sentence]), target_language=tf.constant(language)
        )
    except tf.errors.InvalidArgumentError as error:
        errors.append(error.message)
print(json.dumps([found, errors]))
"""


@pytest.mark.exhaustive
def test_an_exported_model_translates_without_this_project(
    folder: Path, exported: Path
) -> None:
    found = lines(folder, f"run/decoder/test-{STEPS:08d}.jsonl")
    want = {(x["source"], x["target_language"]): x["hypothesis"] for x in found}
    sources = sorted({source for source, _ in want})
    given = json.dumps([[*sources, " ", ""], *LANGUAGES])
    of_page = python_blocks(page("text"))[3][1]
    for old, new in (
        ('"/tmp/en-fr/export/2000"', "sys.argv[1]"),
        ('["cannot open the file", "unknown option"]', "sources[:2]"),
        ("(sentences=", "(target_language=tf.constant(languages[0]), sentences="),
    ):
        assert of_page.count(old) == 1
        of_page = of_page.replace(old, new)
    output = subprocess.run(
        [sys.executable, "-I", "-c", _SERVE + of_page, str(exported), given],
        check=True,
        cwd=exported.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    *_, results, of_page = output.splitlines()
    translations, (unknown, long) = json.loads(results)
    assert of_page == str(translations[0][:2])
    assert translations == [
        [*(want[source, language] for source in sources), "", ""]
        for language in LANGUAGES
    ]
    assert "same, next" in unknown
    assert "22 tokens" in long
    readme = (exported / "README.md").read_text()
    assert "`serving_default`, `translate`" in readme
    assert "next, same" in readme


def decoded(folder: Path, copy: str, *flags: str) -> dict[str, bytes]:
    """The translations of a copy of the run, and the scores."""
    shutil.copytree(folder / "run", folder / copy)
    shutil.rmtree(folder / copy / "decoder")
    CommandLine(folder).train(*MODEL, f"--logdir={copy}", "--job=decoder", *flags)
    files = (folder / copy / "decoder").glob("*.*")
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.exhaustive
def test_the_number_of_devices_changes_no_byte(folder: Path) -> None:
    got = decoded(folder, "four", "--devices=4")
    want = {p.name: p.read_bytes() for p in (folder / "run/decoder").glob("*.*")}
    assert got == want
    assert len(want) == 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("language", ["same", "next"])
def test_lines_of_text_are_translated_as_the_data_set_is(
    folder: Path, language: str
) -> None:
    """Also in another order, and with lines that have no words."""
    known = {
        each["source"]: each["hypothesis"]
        for each in lines(folder, f"run/decoder/test-{STEPS:08d}.jsonl")
        if each["target_language"] == language
    }
    sources = ["", *sorted(known), " ", "", *list(known)[:3]]
    (folder / f"text.{language}").write_text("\r\n".join(sources))
    before = snapshot(folder / "run")
    files = [f"--input_file=text.{language}", f"--output_file=found.{language}"]
    language_flag = f"--target_language={language}"
    job = (*MODEL, "--logdir=run", "--job=decoder", language_flag)
    CommandLine(folder).train(*job, *files)
    found = (folder / f"found.{language}").read_text()
    assert found == "".join(f"{known.get(source, '')}\n" for source in sources)
    output, _ = CommandLine(folder).train(*job, files[0])
    assert output == found
    assert snapshot(folder / "run") == before


@pytest.mark.exhaustive
def test_another_split_and_checkpoint(folder: Path) -> None:
    flags = ("--split=Train", "--checkpoint=ckpt-00000200")
    assert "train-00000200.jsonl" in decoded(folder, "other", *flags)


_LOAD = """
import json, os, sys
import lingvo_pipe as lp

run, (sources, target_language) = os.path.abspath("run"), json.loads(sys.argv[1])
os.chdir(sys.argv[2])  # Neither data nor the vocabulary's file is here.
model = lp.load(run, model="mine.translating_models.Letters")
found = model.translate(sources, to=target_language)
try:
    model.classify(["a.png"])
except TypeError as error:
    print(json.dumps([found, str(error)]))
"""


@pytest.mark.exhaustive
def test_a_python_program_translates_as_the_decoder_does(
    folder: Path, tmp_path: Path
) -> None:
    found = lines(folder, f"run/decoder/test-{STEPS:08d}.jsonl")[:10]
    languages = {each["target_language"] for each in found}
    sources = [each["source"] for each in found]
    given = json.dumps([[*sources, ""], *languages])
    of_page = python_blocks(page("text"))[2][1]
    for old, new in (
        (
            '"/tmp/en-fr", model="my_models.translate.EnglishToFrench"',
            'run, model="mine.translating_models.Letters"',
        ),
        (
            '["cannot open the file", "unknown option"], to="fr"',
            "sources[:2], to=target_language",
        ),
    ):
        assert of_page.count(old) == 1
        of_page = of_page.replace(old, new)
    run = CommandLine(folder).run("-c", _LOAD + of_page, given, str(tmp_path))
    assert run[0] == 0, run
    *_, results, of_page = run[1].splitlines()
    translations, error = json.loads(results)
    assert of_page == str(translations[:2])
    assert translations == [*(each["hypothesis"] for each in found), ""]
    assert error.startswith("classify: ")
    assert error.endswith("Use translate.")
