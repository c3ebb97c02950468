"""Metrics are read back as written, and shared logs lose no line."""

import contextlib
import fcntl
import json
import math
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.training.run.metrics_log import (
    MetricsLog,
    buckets,
    read_metrics,
    shared_log,
)
from tests.support.errors import fails
from tests.training.toy_run import events

NORMAL = np.random.default_rng(0).normal(size=[40, 25]).astype(np.float32)


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
    """It is the file that readers find, with all lines."""
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


def test_a_new_file_is_on_disk_with_its_folder(tmp_path, monkeypatch):
    """After a crash of the machine, the folder may not have it otherwise."""
    synced, sync = [], os.fsync

    def note(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    with MetricsLog(tmp_path):
        assert tmp_path.stat().st_ino in synced


def test_no_file_stays_open(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write(1, "train", {"loss": 0.5})
        assert any(_open_files(tmp_path))
    assert list(_open_files(tmp_path)) == []


def _open_files(folder):
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # It is closed by now.
            if descriptor.resolve().is_relative_to(folder):
                yield descriptor


def test_an_error_of_writing_names_the_file(tmp_path):
    log, limits = MetricsLog(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with pytest.raises(OSError, match=r"metrics\.jsonl"), log:
            log.write(1, "train", {"loss": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


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
    assert events(tmp_path / "train", "scalars") == [
        (3, "loss", 0.25),
        (4, "loss", 0.25),
    ]


def test_tensorboard_drops_what_a_resumed_run_replaces(tmp_path):
    """It drops what it has of later steps at an event that starts a session."""
    write_steps(tmp_path, [1, 2, 3])
    write_steps(tmp_path, [2, 3], resume_step=1, loss=0.25)
    values: dict[int, list[float]] = {}
    for path in sorted((tmp_path / "train").iterdir()):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            if event.session_log.status == tf.compat.v1.SessionLog.START:
                values = {step: x for step, x in values.items() if step < event.step}
            for value in event.summary.value:
                values.setdefault(event.step, []).append(tf.make_ndarray(value.tensor))
    assert values == {1: [0.5], 2: [0.25], 3: [0.25]}


def test_tensorboard_gets_pages(tmp_path):
    """They have the shape that its image and text plugins read."""
    image = tf.io.encode_png(tf.zeros([2, 3, 3], tf.uint8)).numpy()
    with MetricsLog(tmp_path) as log:
        log.write_page(7, "train", "page", image, "one\ntwo\n")
    ((step, tag, picture),) = events(tmp_path / "train", "images")
    assert (step, tag) == (7, "page/picture")
    assert picture.tolist() == [b"3", b"2", image]
    text = events(tmp_path / "train", "text")
    assert text == [(7, "page/text", b"    one\n    two\n")]
    assert read_metrics(tmp_path) == []


def test_tensorboard_gets_histograms(tmp_path):
    """They have the shape that its histogram plugin reads."""
    with MetricsLog(tmp_path) as log:
        log.write_histograms(7, "train", {"a/w": NORMAL, "a/b": np.zeros([0])})
    written = events(tmp_path / "train", "histograms")
    values = {tag: x for _, tag, x in written}
    assert [(step, tag) for step, tag, _ in written] == [(7, "a/w"), (7, "a/b")]
    np.testing.assert_array_equal(values["a/w"], buckets(NORMAL))
    assert values["a/b"].shape == (0, 3)
    assert values["a/b"].dtype == np.float64
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize(
    ("resume_step", "num_left"), [(None, 4), (9, 4), (2, 2), (0, 0)]
)
def test_resuming_drops_later_steps(tmp_path, resume_step, num_left):
    write_steps(tmp_path, [1, 2, 3, 4])
    write_steps(tmp_path, [7], resume_step)
    assert steps_of(tmp_path) == [1, 2, 3, 4][:num_left] + [7]


@pytest.mark.parametrize(("resume_step", "same"), [(None, True), (2, True), (1, False)])
def test_the_file_is_another_only_if_a_line_is_dropped(tmp_path, resume_step, same):
    """A process that has it open would write to a file that is gone."""
    write_steps(tmp_path, [1, 2])
    path = tmp_path / "metrics.jsonl"
    before = path.stat().st_ino
    with path.open():
        write_steps(tmp_path, [3], resume_step)
        assert (path.stat().st_ino == before) == same


def test_lines_with_nan_are_found(tmp_path):
    metrics = {"loss": math.nan, "accuracy": 0.25}
    with MetricsLog(tmp_path) as log:
        assert not log.contains(1, "test", metrics)
        log.write(1, "test", metrics)
        assert log.contains(1, "test", metrics)
        assert not log.contains(2, "test", metrics)
        assert not log.contains(1, "dev", metrics)
        assert not log.contains(1, "test", metrics | {"loss": math.inf})
        assert not log.contains(1, "test", {"loss": math.nan})


def test_an_incomplete_line_is_dropped(tmp_path):
    write_steps(tmp_path, [1, 2])
    path = tmp_path / "metrics.jsonl"
    whole = path.read_text()
    first_line = whole.index("\n") + 1
    for end in range(first_line, len(whole)):
        path.write_text(whole[:end])
        assert steps_of(tmp_path) == [1]
    logged: list[str] = []
    MetricsLog(tmp_path, log=logged.append).close()
    assert len(logged) == 1
    assert str(path) in logged[0]
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
    with fails(UserDamageError, path=f"{path}:1", got=damage):
        MetricsLog(tmp_path, resume_step=1)
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("split", "metrics", "path", "got"),
    [
        ("train", {"step": 1.0}, "metrics", ["step"]),
        ("../test", {"loss": 1.0}, "split", "../test"),
    ],
)
def test_unusable_names_are_rejected(tmp_path, split, metrics, path, got):
    with MetricsLog(tmp_path) as log, fails(path=path, got=got):
        log.write(1, split, metrics)
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize(
    "values",
    [NORMAL, NORMAL.astype(tf.bfloat16.as_numpy_dtype), np.arange(31), [1, 2, 2, 2, 9]],
)
def test_buckets_count_as_numpy_does(values):
    counts, edges = np.histogram(np.asarray(values, np.float64), bins=30)
    got = buckets(values)
    np.testing.assert_allclose(got[:, 0], edges[:-1], atol=1e-12)
    np.testing.assert_allclose(got[:, 1], edges[1:], atol=1e-12)
    np.testing.assert_array_equal(got[:, 2], counts)
    assert got.dtype == np.float64


def test_numbers_that_are_not_finite_are_in_no_bucket():
    values = np.concatenate([NORMAL.ravel(), [np.nan, np.inf, -np.inf]])
    np.testing.assert_array_equal(buckets(values), buckets(NORMAL))


def test_numbers_that_hardly_differ_are_counted():
    values = [1.0, np.nextafter(1.0, 2)]
    got = buckets(values)
    assert (got[0, 0], got[-1, 1], got[:, 2].sum()) == (*values, 2)


def test_equal_numbers_are_one_bucket_and_none_are_none():
    for value in (0.0, -3.5, 1e-40):
        (bucket,) = buckets(np.full([2, 3], value))
        np.testing.assert_array_equal(bucket, [value, value, 6])
    for values in ([], np.zeros([3, 0]), [np.nan, np.nan]):
        assert buckets(values).shape == (0, 3)


def test_one_writer_of_a_log_waits_for_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, has_to_wait = fcntl.flock, threading.Event()

    def lock(file: Any, operation: int) -> None:
        try:
            flock(file, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            has_to_wait.set()
            flock(file, operation)

    def write() -> None:
        with shared_log(tmp_path / "evaler") as log:
            log.write(2, "dev", {"loss": 2.0})

    monkeypatch.setattr(fcntl, "flock", lock)
    with ThreadPoolExecutor(1) as pool:
        with shared_log(tmp_path / "evaler") as log:
            writing = pool.submit(write)
            assert has_to_wait.wait(300)
            log.write(1, "test", {"loss": 1.0})
        writing.result()
    lines = [
        (line["step"], line["split"]) for line in read_metrics(tmp_path / "evaler")
    ]
    assert lines == [(1, "test"), (2, "dev")]
