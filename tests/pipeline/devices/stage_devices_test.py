from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.stage_devices import (
    initialize_devices,
    loop_device,
    must_compile,
    stage_devices,
)


@pytest.mark.parametrize("kind", ["gpu", "tpu"])
def test_absent_accelerators_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=f"{kind.upper()}s, so there is no {kind}:63"):
        initialize_devices([f"{kind}:63"])


@pytest.mark.parametrize(
    ("wanted", "workers", "words"),
    [
        (["worker:0/cpu:0"], [], "are of none, and there are 0, .* addresses of all"),
        (
            ["cpu:0", "worker:2/cpu:0"],
            ["a:1", "b:1"],
            r"\['worker:2/cpu:0'\] are of no",
        ),
        (
            ["cpu:0"],
            ["a:1", "b:1"],
            "=2, or --devices=worker:0/cpu:0,worker:1",
        ),
        (["worker:0/tpu:0"], ["a:1"], r"\['worker:0/tpu:0'\] are workers'"),
    ],
)
def test_devices_and_workers_must_belong_together(
    wanted: list[str], workers: list[str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        initialize_devices(wanted, Cluster(tuple(workers)) if workers else None)


def test_only_tpus_must_compile_and_leave_loops_to_their_hosts() -> None:
    place = "/job:localhost/replica:0/task:0/device:"
    for kind in ("CPU", "GPU"):
        assert not must_compile(f"{place}{kind}:3")
        assert loop_device(f"{place}{kind}:3") == f"{place}{kind}:3"
    assert must_compile(f"{place}TPU:3")
    assert loop_device(f"{place}TPU:3") == f"{place}CPU:0"


def test_devices_can_not_be_changed_once_tensorflow_runs() -> None:
    tf.constant(1.0)
    initialize_devices(8)  # the same again is no change
    with pytest.raises(RuntimeError, match="Call initialize_devices first of all"):
        initialize_devices(9)


def test_each_stage_needs_a_device() -> None:
    with pytest.raises(ValueError, match="need 99, and there are"):
        stage_devices(None, 99)
    with pytest.raises(ValueError, match="need 2, and 1 are named"):
        stage_devices(["/device:CPU:0"], 2)
    assert len(set(stage_devices(None, 4))) == 4


def test_stages_devices_get_their_full_names() -> None:
    full = "/job:localhost/replica:0/task:0/device:CPU:"
    names = ["cpu:1", "CPU:0", "/device:CPU:2", f"{full}3"]
    assert stage_devices(names, 4) == [f"{full}{i}" for i in (1, 0, 2, 3)]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["cpu:0", "cpu:63"], r"\['cpu:63'\] are not. There are \['cpu:0', "),
        (["gpu:63", "cpu:0"], r"\['gpu:63'\] are not"),
        (["hello", "cpu:0"], r"no names of devices: \['hello'\]"),
        (["cpu:1", "/device:CPU:1"], r"\['cpu:1'\] stand twice"),
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
