"""What was planned stands beside what was measured; memory is what was taken."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.schedules.gpipe import gpipe
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.training import memory_peaks as peaks_module
from lingvo_pipe.training.counting_allocator import (
    count_cpu_memory,
    counts_cpu_memory,
)
from lingvo_pipe.training.memory_peaks import MemoryWatch
from lingvo_pipe.training.planned_step import MemoryPeak, PlannedStep
from lingvo_pipe.training.step_profile import StepProfile

MIB = 2**20
HERE = "/job:localhost/replica:0/task:0/device:CPU:"
WORKER = "/job:worker/replica:0/task:1/device:CPU:0"


def _timeline(forward: float):
    stage = StageCosts(forward=forward, backward=2 * forward)
    return simulate(gpipe(2, 4), Costs((stage, stage)))


def _memory(text: str) -> dict[str, list[str]]:
    """Returns the MiB planned and, where they are, measured, by devices."""
    lines = re.findall(r"^memory\D*(\d(?:, \d)*)(.*)", text, re.MULTILINE)
    return {devices: re.findall(r"([\d.]+) MiB", rest) for devices, rest in lines}


def test_time_and_memory_stand_side_by_side() -> None:
    planned = PlannedStep(_timeline(0.010), [3 * MIB, 5 * MIB])
    peaks = [MemoryPeak([0, 1], 9 * MIB)]
    text = planned.beside(_timeline(0.020), peaks)
    (step,) = [line.split() for line in text.splitlines() if line.startswith("step")]
    assert float(step[3]) == pytest.approx(2 * float(step[1]))
    assert _memory(text) == {"0, 1": ["8.0", "9.0"]}
    text = planned.beside(_timeline(0.020), [])
    assert _memory(text) == {"0": ["3.0"], "1": ["5.0"]}


def test_each_replica_needs_as_much() -> None:
    planned = PlannedStep(_timeline(0.010), [3 * MIB, 5 * MIB])
    text = planned.beside(_timeline(0.010), [MemoryPeak([0, 1, 2, 3], 0)])
    assert _memory(text)["0, 1, 2, 3"] == ["16.0", "0.0"]
    text = planned.beside(_timeline(0.010), [MemoryPeak([3], 0)])
    assert _memory(text)["3"] == ["5.0", "0.0"]


def test_a_profile_has_both_predictions(tmp_path: Path) -> None:
    profile = StepProfile(7, _timeline(0.011), _timeline(0.012))
    assert "Planned" not in profile.text()
    planned = PlannedStep(_timeline(0.010), [1, 1])
    with_plan = dataclasses.replace(profile, planned=planned)
    assert with_plan.text().startswith(profile.text())
    assert "Planned" in with_plan.text()
    with_plan.write(tmp_path)
    trace = (tmp_path / "step-7.trace.json").read_text()
    assert all(name in trace for name in ("planned", "predicted", "measured"))


def test_memory_is_told_only_where_it_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = [f"{HERE}0", f"{HERE}1", WORKER]
    monkeypatch.setattr(peaks_module, "counts_cpu_memory", lambda: False)
    uncounted = MemoryWatch(devices, [])
    assert uncounted.peaks() == uncounted.peaks() == []
    monkeypatch.setattr(peaks_module, "counts_cpu_memory", lambda: True)
    watch = MemoryWatch(devices, [])
    kept = tf.random.uniform([MIB])
    assert watch.peaks() == []
    # Large tensors are counted whatever the allocator.
    taken = tf.random.uniform([2 * MIB])
    (peak,) = watch.peaks()
    assert peak.devices == [0, 1]
    assert taken.shape[0] * 4 <= peak.num_bytes < 1.5 * taken.shape[0] * 4
    with tf.device(devices[0]):
        weight = tf.Variable(kept)
    watch = MemoryWatch(devices, [weight])
    watch.peaks()
    (peak,) = watch.peaks()
    assert peak.num_bytes == pytest.approx(kept.shape[0] * 4, rel=0.01)


def test_the_counting_allocator_is_chosen_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CPU_ALLOCATOR_USE_BFC", raising=False)
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "false")
    assert not counts_cpu_memory()
    count_cpu_memory()
    assert counts_cpu_memory()
