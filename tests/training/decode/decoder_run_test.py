"""A decoding run's files can be read, and are the same each time."""

from __future__ import annotations

import json
import re
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.training.decode import decoder_run
from lingvo_pipe.training.decode.decoder import Hypothesis, Translation
from lingvo_pipe.training.decode.decoder_run import write_report
from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.run.run_directory import RunDirectory
from tests.training.decoder_examples import translation

TRANSLATIONS = [
    translation("the cat sat on the mat .", "the cat sat on a mat ."),
    translation("é 猫", "é 猫", "fr"),
]


def test_each_sentence_has_a_line(tmp_path: Path) -> None:
    two = Translation(
        "Quelle",
        "spring",
        (Hypothesis("a", -1.5), Hypothesis("b", -2.0)),
        "de",
        "en",
        position=2,
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


def test_checkpoints_are_decoded_as_they_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def restored() -> Iterator[int]:
        for step in (3, 5):
            events.append(f"restored {step}")
            yield step

    monkeypatch.setattr(
        decoder_run, "Decoder", lambda task, vocabulary: lambda batches: TRANSLATIONS
    )
    monkeypatch.setattr(decoder_run, "report_end", lambda directory, log: None)
    data: Any = SimpleNamespace(vocabulary=None, DecodeBatches=list)
    directory = RunDirectory(tmp_path, "toy.Toy")
    log = events.append
    monkeypatch.setattr(decoder_run, "check_vocabulary", lambda path, data: None)
    task: Any = None
    decoder_run.decode(task, data, directory, "test", restored(), log)
    steps = [event for event in events if re.search(r"restored|Decoding", event)]
    decoding = "Decoding test with the checkpoint of step"
    assert steps == [
        *("restored 3", f"{decoding} 3."),
        *("restored 5", f"{decoding} 5."),
    ]
    assert read_metrics(directory.decoder_path)[-1]["step"] == 5


def test_scores_are_text_json_and_an_image(tmp_path: Path) -> None:
    table = write_report(tmp_path, 600, "dev", TRANSLATIONS)
    text = (tmp_path / "dev-00000600.txt").read_text(encoding="utf-8")
    assert text == f"Step 600, dev.\n\n{table}\n"
    found = json.loads((tmp_path / "dev-00000600.json").read_text(encoding="utf-8"))
    assert (found["step"], found["split"]) == (600, "dev")
    assert [each["languages"] for each in found["languages"]] == ["de-en", "fr-en"]
    assert found["mean"]["chrf"] > found["languages"][0]["chrf"]
    image = (tmp_path / "dev-00000600.png").read_bytes()
    assert image.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", image[16:24])
    assert width > height > 100


def test_tensorboard_shows_scalars_and_the_image(tmp_path: Path) -> None:
    write_report(tmp_path, 600, "test", TRANSLATIONS)
    (events,) = tmp_path.glob("test/events*")
    tags = {
        value.tag
        for record in tf.data.TFRecordDataset(str(events))
        for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value
    }
    assert {"bleu", "chrf", "bleu/de-en", "chrf/fr-en"} <= tags
    assert {"translations/picture", "translations/text"} <= tags


def test_a_repeated_run_writes_the_same(tmp_path: Path) -> None:
    """Except for the events, which hold the time."""

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.glob("test-*")}

    write_report(tmp_path, 600, "test", TRANSLATIONS)
    before = files()
    write_report(tmp_path, 600, "test", TRANSLATIONS)
    assert files() == before
    write_report(tmp_path, 700, "test", TRANSLATIONS)
    assert before.items() < files().items()
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines] == [600, 700]
    assert {"bleu", "chrf", "bleu/de-en", "chrf/fr-en"} <= lines[0].keys()


def test_simultaneous_runs_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even on one data set, where they write the same files."""
    image = tf.io.encode_png(tf.zeros([2, 3, 3], tf.uint8)).numpy()
    monkeypatch.setattr(decoder_run, "draw_scores", lambda _: image)
    writing = threading.Lock()

    def write_alone(path: Path, content: str | bytes) -> None:
        assert writing.acquire(blocking=False), "two write at a time"
        time.sleep(0.01)
        write_atomically(path, content)
        writing.release()

    monkeypatch.setattr(decoder_run, "write_atomically", write_alone)
    splits = ("dev", "test", "test", "dev")

    def write(split: str) -> None:
        for step in range(3):
            write_report(tmp_path, step, split, TRANSLATIONS)

    with ThreadPoolExecutor(len(splits)) as pool:
        list(pool.map(write, splits))
    found = sorted((line["split"], line["step"]) for line in read_metrics(tmp_path))
    assert found == [(split, step) for split in ("dev", "test") for step in range(3)]
