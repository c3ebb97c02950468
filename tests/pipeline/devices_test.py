from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.devices import (
    initialize_devices,
    parse_devices,
    stage_devices,
)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("3", 3),
        (" 1 ", 1),
        ("cpu:0", ["CPU:0"]),
        ("cpu:1, gpu:0", ["CPU:1", "GPU:0"]),
        ("GPU:10", ["GPU:10"]),
    ],
)
def test_devices_are_a_number_or_names(text: str, devices: int | list[str]) -> None:
    assert parse_devices(text) == devices


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "at least 1 device; got 0"),
        ("-2", "at least 1 device; got -2"),
        ("cpu", r"no names of devices: \['cpu'\]"),
        ("cpu:0,tpu:x,7", r"no names of devices: \['tpu:x', '7'\]"),
        ("", "no names of devices"),
        ("cpu:0,CPU:0", r"\['CPU:0'\] stand twice"),
    ],
)
def test_other_text_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_devices(text)


def test_absent_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="no gpu:63"):
        initialize_devices(["GPU:63"])


def test_devices_can_not_be_changed_once_tensorflow_runs() -> None:
    tf.constant(1.0)
    initialize_devices(4)  # the same again is no change
    with pytest.raises(RuntimeError, match="Call initialize_devices first of all"):
        initialize_devices(5)


def test_each_stage_needs_a_device() -> None:
    with pytest.raises(ValueError, match="99 stages"):
        stage_devices(None, 99)
    with pytest.raises(ValueError, match="2 stages and 1 devices"):
        stage_devices(["/device:CPU:0"], 2)
    assert len(set(stage_devices(None, 4))) == 4


def test_stages_devices_get_their_full_names() -> None:
    full = "/job:localhost/replica:0/task:0/device:CPU:"
    names = ["cpu:1", "CPU:0", "/device:CPU:2", f"{full}3"]
    assert stage_devices(names, 4) == [f"{full}{i}" for i in (1, 0, 2, 3)]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["cpu:0", "cpu:63"], r"\['/job:localhost.*CPU:63'\] are not"),
        (["gpu:63", "cpu:0"], r"GPU:63'\] are not"),
        (["hello", "cpu:0"], "'hello' is no name of a device"),
        ("cpu:0", "must be a list of names; got 'cpu:0'"),
    ],
)
def test_absent_devices_of_stages_are_refused(names: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        stage_devices(names, 2)


@pytest.mark.parametrize("wanted", [0, -1, [], ["cpu"], ["cpu:0", "cpu:0"]])
def test_what_names_no_devices_is_refused_before_anything_is_set(wanted: Any) -> None:
    with pytest.raises(ValueError, match="Give a number of devices, or names"):
        initialize_devices(wanted)
