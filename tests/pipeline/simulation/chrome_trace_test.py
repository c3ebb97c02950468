from __future__ import annotations

import json
import random

import pytest

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op
from lingvo_pipe.pipeline.simulation.chrome_trace import chrome_trace
from lingvo_pipe.pipeline.simulation.simulate import simulate
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from tests.pipeline.simulation.random_schedules import random_costs, random_schedule

_DIRECTIONS = {Kind.OFFLOAD: "to", Kind.LOAD: "from"}


@pytest.mark.parametrize("seed", range(5))
def test_timelines_can_be_read_back(seed: int) -> None:
    rng = random.Random(seed)
    timelines = {}
    for name, offloads in (("predicted", True), ("measured", False)):
        schedule = random_schedule(rng, offloads)
        timelines[name] = simulate(schedule, random_costs(rng, schedule.num_stages))
    events = json.loads(chrome_trace(timelines))["traceEvents"]
    for process, (name, timeline) in enumerate(timelines.items()):
        own = [event for event in events if event["pid"] == process]
        assert [e["args"]["name"] for e in own if e["name"] == "process_name"] == [name]
        titles = {
            e["tid"]: e["args"]["name"] for e in own if e["name"] == "thread_name"
        }
        devices = range(len(timeline.columns))
        assert {titles.pop(i) for i in devices} == {f"device {i}" for i in devices}
        read = _read_back([e for e in own if e["ph"] == "X"])
        copies = [row for row in read if row[0] in titles]
        assert sorted((titles[row[0]], row[1]) for row in copies) == sorted(
            (f"device {i} {_DIRECTIONS[timed.op.kind]} host", timed.op)
            for i, lane in enumerate(timeline.copies)
            for timed in lane
        )
        assert [row for row in read if row[0] not in titles] == [
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
