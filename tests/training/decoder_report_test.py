"""What is written can be read, and is the same each time."""

from __future__ import annotations

import json
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tensorflow as tf

from lingvo_pipe.training import decoder_report, draw_scores
from lingvo_pipe.training.atomic_file import write_atomically
from lingvo_pipe.training.decoder import Hypothesis, Translation
from lingvo_pipe.training.decoder_report import scores_table, write_report
from lingvo_pipe.training.metrics_log import read_metrics
from lingvo_pipe.training.translation_scores import TranslationScores
from tests.training.decoder_examples import translation

TRANSLATIONS = [
    translation("the cat sat on the mat .", "the cat sat on a mat ."),
    translation("é 猫", "é 猫", "fr"),
]


def test_a_line_a_sentence(tmp_path: Path) -> None:
    two = Translation(
        "Quelle",
        "spring",
        (Hypothesis("a", -1.5), Hypothesis("b", -2.0)),
        "de",
        "en",
        place=2,
    )
    write_report(tmp_path / "decoder", 600, "test", [*TRANSLATIONS, two])
    text = (tmp_path / "decoder/test-00000600.jsonl").read_text(encoding="utf-8")
    lines = list(map(json.loads, text.splitlines()))
    assert "é 猫" in text
    assert lines[1] == {
        "source": "quelle",
        "reference": "é 猫",
        "hypothesis": "é 猫",
        "score": -0.25,
        "source_language": "fr",
        "target_language": "en",
    }
    assert lines[2]["others"] == [{"text": "b", "score": -2.0}]
    assert len(lines) == 3


def test_scores_as_text_for_programs_and_as_a_picture(tmp_path: Path) -> None:
    table = write_report(tmp_path, 600, "dev", TRANSLATIONS)
    text = (tmp_path / "dev-00000600.txt").read_text(encoding="utf-8")
    assert text == f"Step 600, dev.\n\n{table}\n"
    found = json.loads((tmp_path / "dev-00000600.json").read_text(encoding="utf-8"))
    assert (found["step"], found["split"]) == (600, "dev")
    assert [each["languages"] for each in found["languages"]] == ["de-en", "fr-en"]
    assert found["mean"]["chrf"] > found["languages"][0]["chrf"]
    picture = (tmp_path / "dev-00000600.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", picture[16:24])
    assert width > height > 100


def test_the_table() -> None:
    scores = [
        TranslationScores("de-en", 1200, 20.0, 40.5, "tok:13a", "nc:6"),
        TranslationScores("zh-en", 30, 5.126, 100.0, "tok:zh", "nc:6"),
    ]
    assert scores_table(scores).splitlines() == [
        "languages  sentences   BLEU    chrF",
        "de-en          1,200  20.00   40.50",
        "zh-en             30   5.13  100.00",
        "mean           1,230  12.56   70.25",
        "",
        "BLEU: tok:13a",
        "BLEU: tok:zh",
        "chrF: nc:6",
    ]


def test_scalars_and_the_picture_are_for_tensorboard(tmp_path: Path) -> None:
    write_report(tmp_path, 600, "test", TRANSLATIONS)
    (events,) = tmp_path.glob("test/events*")
    tags = {
        value.tag
        for record in tf.data.TFRecordDataset(str(events))
        for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value
    }
    assert {"bleu", "chrf", "bleu/de-en", "chrf/fr-en"} <= tags
    assert {"translations/picture", "translations/text"} <= tags


def test_once_more_is_the_same(tmp_path: Path) -> None:
    """But for the events, which tell the time."""

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.glob("test-*")}

    write_report(tmp_path, 600, "test", TRANSLATIONS)
    before = files()
    write_report(tmp_path, 600, "test", TRANSLATIONS)
    assert files() == before
    write_report(tmp_path, 700, "test", TRANSLATIONS)
    assert before.items() < files().items()
    assert [line["step"] for line in read_metrics(tmp_path)] == [600, 700]


def test_two_at_a_time_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one data set, too, where they write the same files."""
    picture = tf.io.encode_png(tf.zeros([2, 3, 3], tf.uint8)).numpy()
    monkeypatch.setattr(draw_scores, "draw_scores", lambda _: picture)
    writing = threading.Lock()

    def write_alone(path: Path, content: str | bytes) -> None:
        assert writing.acquire(blocking=False), "two write at a time"
        time.sleep(0.01)
        write_atomically(path, content)
        writing.release()

    monkeypatch.setattr(decoder_report, "write_atomically", write_alone)
    splits = ("dev", "test", "test", "dev")

    def write(split: str) -> None:
        for step in range(3):
            write_report(tmp_path, step, split, TRANSLATIONS)

    with ThreadPoolExecutor(len(splits)) as pool:
        list(pool.map(write, splits))
    found = sorted((line["split"], line["step"]) for line in read_metrics(tmp_path))
    assert found == [(split, step) for split in ("dev", "test") for step in range(3)]
