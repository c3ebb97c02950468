"""Metrics: what is written is read back, and resuming forgets what comes again."""

import json
import math
import os

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.training.metrics_log import MetricsLog, read_metrics, same_metrics


def write_steps(logdir, steps, resume_step=None, loss=0.5):
    with MetricsLog(logdir, resume_step) as log:
        for step in steps:
            log.write(step, "train", {"loss": loss})


def steps_of(logdir):
    return [record["step"] for record in read_metrics(logdir)]


def test_scalars_of_every_kind_are_read_back(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write(np.int64(1), "train", {"loss": np.float32(0.25), "accuracy": 1})
        log.write(1, "test", {"loss": tf.constant(2.0)})
    assert read_metrics(tmp_path) == [
        {"step": 1, "split": "train", "loss": 0.25, "accuracy": 1.0},
        {"step": 1, "split": "test", "loss": 2.0},
    ]


def test_each_line_is_on_file_when_written(tmp_path):
    with MetricsLog(tmp_path) as log:
        for step in range(3):
            log.write(step, "train", {"loss": step})
            assert steps_of(tmp_path) == list(range(step + 1))


def test_lines_are_on_disk_when_synced(tmp_path, monkeypatch):
    """Of the file that readers find, whole, at that moment."""
    synced = []
    sync = os.fsync

    def note(descriptor):
        sync(descriptor)
        with open(descriptor, "rb", closefd=False) as file:
            synced.append((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))
            assert file.fileno() == descriptor

    with MetricsLog(tmp_path) as log:
        log.write(1, "train", {"loss": 0.5})
        monkeypatch.setattr(os, "fsync", note)
        log.sync()
    found = (tmp_path / "metrics.jsonl").stat()
    assert synced == [(found.st_ino, found.st_size)]


def test_numbers_that_are_not_finite_stay_json(tmp_path):
    numbers = {"a": math.nan, "b": math.inf, "c": -math.inf}
    with MetricsLog(tmp_path) as log:
        log.write(1, "train", numbers)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = (tmp_path / "metrics.jsonl").read_text()
    record = json.loads(text, parse_constant=refuse)
    assert record == {
        "step": 1,
        "split": "train",
        "a": "NaN",
        "b": "Infinity",
        "c": "-Infinity",
    }
    (read,) = read_metrics(tmp_path)
    assert math.isnan(read["a"])
    assert read["b"] == math.inf
    assert read["c"] == -math.inf


def test_tensorboard_gets_the_same_scalars(tmp_path):
    write_steps(tmp_path, [3, 4], loss=0.25)
    (events,) = (tmp_path / "train").iterdir()
    scalars = [
        (event.step, value.tag, tf.make_ndarray(value.tensor).item())
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
    ]
    assert scalars == [(3, "loss", 0.25), (4, "loss", 0.25)]


def test_tensorboard_gets_pages(tmp_path):
    """Of the shape that its image and text plugins read."""
    picture = tf.io.encode_png(tf.zeros([2, 3, 3], tf.uint8)).numpy()
    with MetricsLog(tmp_path) as log:
        log.write_page(7, "train", "page", picture, "one\ntwo\n")
    (events,) = (tmp_path / "train").iterdir()
    values = {
        value.tag: (
            event.step,
            value.metadata.plugin_data.plugin_name,
            tf.make_ndarray(value.tensor).tolist(),
        )
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
    }
    assert values == {
        "page/picture": (7, "images", [b"3", b"2", picture]),
        "page/text": (7, "text", b"    one\n    two\n"),
    }
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize(("resume_step", "kept"), [(None, 4), (9, 4), (2, 2), (0, 0)])
def test_resuming_drops_later_steps(tmp_path, resume_step, kept):
    write_steps(tmp_path, [1, 2, 3, 4])
    write_steps(tmp_path, [7], resume_step)
    assert steps_of(tmp_path) == [1, 2, 3, 4][:kept] + [7]


@pytest.mark.parametrize(("resume_step", "same"), [(None, True), (2, True), (1, False)])
def test_the_file_is_another_only_if_a_line_is_dropped(tmp_path, resume_step, same):
    """A process that has it open would write to a file that is gone."""
    write_steps(tmp_path, [1, 2])
    path = tmp_path / "metrics.jsonl"
    before = path.stat().st_ino
    with path.open():
        write_steps(tmp_path, [3], resume_step)
        assert (path.stat().st_ino == before) == same


def test_what_is_not_a_number_is_held_too(tmp_path):
    metrics = {"loss": math.nan, "accuracy": 0.25}
    with MetricsLog(tmp_path) as log:
        assert not log.holds(1, "test", metrics)
        log.write(1, "test", metrics)
        assert log.holds(1, "test", metrics)
        assert not log.holds(2, "test", metrics)
        assert not log.holds(1, "dev", metrics)
        assert not log.holds(1, "test", metrics | {"loss": math.inf})
        assert not log.holds(1, "test", {"loss": math.nan})


def test_nothing_is_the_same_as_nothing_alone():
    assert same_metrics(None, None)
    assert not same_metrics(None, {})
    assert not same_metrics({}, None)


def test_a_line_cut_short_is_dropped_wherever_it_was_cut(tmp_path):
    write_steps(tmp_path, [1, 2])
    path = tmp_path / "metrics.jsonl"
    whole = path.read_text()
    first_line = whole.index("\n") + 1
    for end in range(first_line, len(whole)):
        path.write_text(whole[:end])
        assert steps_of(tmp_path) == [1]
    write_steps(tmp_path, [5])
    assert steps_of(tmp_path) == [1, 5]


@pytest.mark.parametrize(
    "damage", ["{", "[]", "{}", '{"step": 1, "split": "", "a": []}']
)
def test_a_damaged_line_is_named(tmp_path, damage):
    write_steps(tmp_path, [1, 2])
    path = tmp_path / "metrics.jsonl"
    before = f"{damage}\n{path.read_text()}"
    path.write_text(before)
    with pytest.raises(ValueError, match=r"JSON.*/metrics\.jsonl:1\b"):
        MetricsLog(tmp_path, resume_step=1)
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("split", "metrics", "message"),
    [
        ("train", {"step": 1.0}, r"\bstep\b.*\bsplit\b.*\bstep\b"),
        ("../test", {"loss": 1.0}, r"\bsplit\b.*'\.\./test'"),
    ],
)
def test_names_that_cannot_be_kept_are_refused(tmp_path, split, metrics, message):
    with MetricsLog(tmp_path) as log, pytest.raises(ValueError, match=message):
        log.write(1, split, metrics)
    assert read_metrics(tmp_path) == []
