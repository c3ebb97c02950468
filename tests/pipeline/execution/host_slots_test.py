"""Devices whose weights cannot be updated on the host, or with other last digits."""

from __future__ import annotations

import pytest

from lingvo_pipe.pipeline.execution.host_slots import check_host_slots, slot_device
from tests.support.errors import fails

PATH = "task.train.offload_slots"


def _names(*devices: str) -> list[str]:
    return [f"/job:localhost/replica:0/task:0/device:{x}" for x in devices]


def test_a_host_that_may_round_differently_is_named(
    warnings: pytest.LogCaptureFixture,
) -> None:
    check_host_slots(_names("CPU:0", "CPU:1"), PATH)
    assert not warnings.messages
    check_host_slots(_names("GPU:1", "CPU:0", "GPU:0"), PATH)
    (text,) = warnings.messages
    assert text.startswith(f"{PATH}: ")
    assert "gpu:0, gpu:1" in text


def test_tpus_are_refused() -> None:
    with fails(path=PATH) as error:
        check_host_slots(_names("CPU:0", "TPU:1"), PATH)
    assert "tpu:1" in str(error.value)


def test_slots_are_beside_their_weight_or_on_its_worker() -> None:
    gpu = "/job:worker/replica:0/task:2/device:GPU:1"
    assert slot_device(gpu, on_host=False) == gpu
    assert slot_device(gpu, True) == "/job:worker/replica:0/task:2/device:CPU:0"
