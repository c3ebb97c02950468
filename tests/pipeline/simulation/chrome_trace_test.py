from __future__ import annotations

import json
import random

import pytest

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op
from lingvo_pipe.pipeline.simulation.chrome_trace import chrome_trace
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from tests.pipeline.simulation.random_schedules import random_costs, random_schedule


@pytest.mark.parametrize("seed", range(5))
def test_timelines_can_be_read_back(seed: int) -> None:
    rng = random.Random(seed)
    timelines = {}
    for name in ("predicted", "measured"):
        schedule = random_schedule(rng)
        timelines[name] = simulate(schedule, random_costs(rng, schedule.num_stages))
    events = json.loads(chrome_trace(timelines))["traceEvents"]
    for process, (name, timeline) in enumerate(timelines.items()):
        own = [event for event in events if event["pid"] == process]
        assert [e["args"]["name"] for e in own if e["name"] == "process_name"] == [name]
        assert {
            e["tid"]: e["args"]["name"] for e in own if e["name"] == "thread_name"
        } == {device: f"device {device}" for device in range(len(timeline.columns))}
        assert _read_back([e for e in own if e["ph"] == "X"]) == [
            (device, op, *(pytest.approx(time) for time in times))
            for device, (op, *times) in timeline.ops()
        ]


def _read_back(events: list[dict]) -> list[tuple[int, Op, float, float, float]]:
    kinds = {kind.label: kind for kind in Kind}
    rows = []
    for event in events:
        args = event["args"]
        op = Op(kinds[event["cat"]], args["micro-batch"], args["stage"])
        assert event["name"] == f"{event['cat']} {op.micro_batch}"
        start, end = event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6
        waited = args["waited for messages (ms)"] * 1e-3
        rows.append((event["tid"], op, start - waited, start, end))
    return rows


def test_no_timeline_gives_an_empty_trace() -> None:
    assert json.loads(chrome_trace({}))["traceEvents"] == []
    assert len(json.loads(chrome_trace({"": Timeline(())}))["traceEvents"]) == 1
