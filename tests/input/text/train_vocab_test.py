"""The command that makes vocabularies: of files, of data sets, or a line on why not."""

import errno
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

import lingvo_pipe
from lingvo_pipe.input.text import train_vocab
from lingvo_pipe.input.text.train_vocab import _chunks, main
from lingvo_pipe.input.text.vocabulary import Vocabulary
from tests.input.listed_examples import ListedExamples, prepare

ROOT = Path(lingvo_pipe.__file__).parents[1]
NAMES = ("source", "target", "source_language", "target_language")


def sentences(number):
    draw = random.Random(0)
    return [
        " ".join(draw.choices(["ab", "cd", "ef", "gh", "ij"], k=5))
        for _ in range(number)
    ]


class SmallRows(ListedExamples):
    """`small_rows`: translations into two languages."""

    def Features(self):
        return {name: tfds.features.Text() for name in NAMES}

    def Examples(self):
        texts = sentences(60)
        for n, (one, other) in enumerate(zip(texts[:30], texts[30:], strict=True)):
            row = (one, other, "xx", ("yy", "zz")[n % 2])
            yield dict(zip(NAMES, row, strict=True))


class SmallTexts(ListedExamples):
    """`small_texts`: a text in each of two languages."""

    def Features(self):
        return tfds.features.Translation(languages=["xx", "yy"])

    def Examples(self):
        return [{"xx": text, "yy": text[::-1]} for text in sentences(40)]


def run(folder, *arguments, size=40):
    main([f"--output={folder}/made.vocab", f"--vocab_size={size}", *arguments])
    return Vocabulary(f"{folder}/made.vocab")


def test_it_is_made_of_files(tmp_path, capsys):
    (tmp_path / "a").write_text("\n".join(sentences(50)) + "\n\n")
    (tmp_path / "b").write_text("kl mn\n" * 20)
    made = run(tmp_path, "--languages=de,en", f"{tmp_path}/a", f"{tmp_path}/b", size=25)
    assert (made.size, made.languages) == (25, ["de", "en"])
    said = capsys.readouterr().out
    told = rf"{tmp_path}/made\.vocab\b.*\b25\b.*\b70\b.*\bde, en\b.*{made.fingerprint}"
    assert re.search(told, said)
    again = run(
        tmp_path, "--languages=de,en", "--data_dir", str(tmp_path), "a", "b", size=25
    )
    assert again.fingerprint == made.fingerprint


@pytest.mark.exhaustive
def test_nothing_is_written_but_what_was_made(tmp_path):
    """No start-up messages, of TensorFlow or of SentencePiece."""
    (tmp_path / "a").write_text("\n".join(sentences(50)))
    arguments = ["--output=b", "--vocab_size=18", "a"]
    unset = ("BUILD_WORKING_DIRECTORY", "TF_CPP_MIN_LOG_LEVEL")
    environment = {k: v for k, v in os.environ.items() if k not in unset}
    done = subprocess.run(
        [sys.executable, "-m", train_vocab.__name__, *arguments],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert re.sub(r"importing TensorFlow .*\n", "", done.stderr) == ""
    assert re.fullmatch(r".* b .*\b18\b.*\b50\b.*\n", done.stdout)


@pytest.mark.parametrize(
    ("name", "languages", "number"),
    [("small_rows", ["yy", "zz"], 60), ("small_texts", ["xx", "yy"], 80)],
)
def test_it_is_made_of_a_data_set(tmp_path, capsys, name, languages, number):
    prepare(name, tmp_path)
    made = run(tmp_path, f"--dataset={name}", f"--data_dir={tmp_path}", size=20)
    assert made.languages == languages
    # Each text once.
    *_, line = capsys.readouterr().out.splitlines()
    assert re.search(rf"/made\.vocab\b.*\b20\b.*\b{number}\b", line)


@pytest.mark.parametrize(("number", "most"), [(10, 3), (10, 99), (5000, 4000), (1, 1)])
def test_of_many_texts_some_are_chosen_at_equal_distances(number, most):
    chosen = np.concatenate(_chunks(number, most))
    assert len(chosen) == min(number, most)
    assert chosen[0] == 0
    steps = np.diff(chosen)
    assert not len(steps) or steps.max() - steps.min() <= 1


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def fail(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(train_vocab, "write_output", fail)
    (tmp_path / "a").write_text("\n".join(sentences(50)))
    with pytest.raises(SystemExit, match=rf"^error: .*{tmp_path}/made\.vocab.*$"):
        run(tmp_path, f"{tmp_path}/a", size=18)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"\[\].*--dataset=None"),
        (["a", "--dataset=small_rows"], r"\['a'\].*--dataset=small_rows"),
        (["a", "--split=test"], r"--split.*'test'"),
        (["nothing.de"], r"'nothing\.de'.*/nothing\.de\b"),
        (["--dataset=smal_rows"], "dataset.*'smal_rows'.*'small_rows'"),
        (["a", "--vocab_size=9999"], r"vocab_size.*\b20\b.*\b9999\b"),
        (["a", "--languages="], "--languages.*''"),
        (["a", "--languages=de, en"], "--languages.*'de, en'"),
        (["a", "--languages=de,en,de"], "--languages.*'de,en,de'"),
        (["a", "--max_texts=0"], r"--max_texts.*\b2\b.*\b0\b"),
        (["a", "--output=/no/such/folder/x"], "--output.*/no/such/folder/x"),
        (["a", "--output=/dev/null"], "--output.*/dev/null"),
        (["a", "--imports=no_rows"], "'no_rows'"),
    ],
)
def test_what_can_not_be_made_is_one_line(tmp_path, arguments, message):
    (tmp_path / "a").write_text("\n".join(sentences(50)))
    with pytest.raises(SystemExit, match=f"^error: .*{message}.*$"):
        run(tmp_path, f"--data_dir={tmp_path}", *arguments)
    assert not (tmp_path / "made.vocab").exists()
