"""Contention makes steps longer, and parts of passes take as long as their products."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest

from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.simulation.contention import busy_shares
from lingvo_pipe.pipeline.splitting.balance import balanced_boundaries
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.costs.device_needs import DeviceNeeds, OversizedCandidate
from lingvo_pipe.planner.costs.flops_time_model import flops_time
from lingvo_pipe.planner.costs.traced_model import ModelTracer
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import Contention, DeviceModel
from lingvo_pipe.planner.resources.hosts import Link
from lingvo_pipe.planner.search.candidate_evaluation import (
    Evaluation,
    find_stages,
    step_costs,
)
from tests.planner.made_up_model import (
    evaluated,
    every_needs,
    made_up_device,
    made_up_model,
    made_up_models,
)
from tests.registered_models.reduced_models import reduced_params

ALONE = made_up_device(10**6)


def spread(num_replicas: int, num_devices: int, device: DeviceModel) -> Evaluation:
    candidate = Candidate(num_replicas, num_devices, 1, 8, "1f1b", "never")
    return evaluated(candidate, device)


def with_contention(*values: float) -> DeviceModel:
    return dataclasses.replace(ALONE, contention=Contention(*values))  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [2, 3, 5, 8])
@pytest.mark.parametrize("num_devices", [1, 2, 3, 5])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_each_busy_device_adds_equal_slowdown(
    num_replicas: int, num_devices: int, most: int
) -> None:
    """Beyond the measured number of devices it stays constant."""
    alone = spread(num_replicas, num_devices, ALONE).timeline
    busy = spread(num_replicas, num_devices, with_contention(most, 3.0)).timeline
    devices = range(num_devices)
    before, after = (sum(map(x.busy_seconds, devices)) for x in (alone, busy))
    others = (n * num_replicas - 1 for n in range(1, num_devices + 1))
    factors = [1 + 2 * min(each / (most - 1), 1) for each in others]
    shares = zip(busy_shares(busy), factors, strict=True)
    assert after * sum(x / factor for x, factor in shares) == pytest.approx(before)
    assert (after > before) == (num_replicas * num_devices > 1)


@pytest.mark.parametrize(
    ("num_replicas", "num_devices", "more"),
    [(1, 1, 2.0), (1, 2, 3.0), (1, 3, 4.0), (2, 2, 5.0), (1, 5, 6.0), (2, 3, 6.0)],
)
def test_each_device_adds_equal_seconds_to_the_rest(
    num_replicas: int, num_devices: int, more: float
) -> None:
    alone = spread(num_replicas, num_devices, ALONE)
    many = spread(num_replicas, num_devices, with_contention(5, 1.0, 2.0, 6.0))
    assert many.timeline == alone.timeline
    assert many.step_seconds == pytest.approx(alone.step_seconds + more)


HALVES = [0.5] * 6


def with_shares(
    schedule: str,
    shares: list[float],
    output_shares: list[float] | None = None,
    recompute: str = "never",
) -> Evaluation:
    model = dataclasses.replace(
        made_up_model(1), weight_shares=shares, output_shares=output_shares or []
    )
    return evaluated(Candidate(1, 3, 1, 8, schedule, recompute), ALONE, model)


def offloading(host_bandwidth: float, offload: str = "always") -> Evaluation:
    device = dataclasses.replace(
        ALONE, host_bandwidth=host_bandwidth, operation_seconds=0.0
    )
    return evaluated(Candidate(1, 2, 1, 8, "gpipe", "never", offload), device)


def test_copies_that_take_no_time_only_save_memory() -> None:
    stash, away = offloading(math.inf, "never"), offloading(math.inf)
    assert away.timeline.step_seconds == pytest.approx(stash.timeline.step_seconds)
    pairs = zip(away.bytes_by_device, stash.bytes_by_device, strict=True)
    assert all(less < more for less, more in pairs)
    assert stash.bytes_on_hosts == ()


def test_copies_take_the_link_to_the_host() -> None:
    bandwidth = 1e3
    away = offloading(bandwidth)
    model, _ = made_up_models(ALONE)(1)
    copied = DeviceNeeds(away.candidate, model).copied(away.boundaries)
    copies = [*itertools.chain(*away.timeline.copies)]
    assert copies
    for timed in copies:
        assert timed.seconds == pytest.approx(copied[timed.op.stage] / bandwidth)
    assert away.step_seconds > offloading(math.inf).step_seconds
    pairs = zip(away.bytes_on_hosts, copied, strict=True)
    assert all(on_host >= num_bytes for on_host, num_bytes in pairs)


def busy(found: Evaluation, kind: Kind, stage: int) -> float:
    ops = [timed for _, timed in found.timeline.ops()]
    return sum(x.seconds for x in ops if (x.op.kind, x.op.stage) == (kind, stage))


def test_activations_and_their_gradients_take_the_same_link() -> None:
    """Gradients were sent by the link after the stage."""
    fast, slow = Link(1e6, 0.0), Link(1e3, 0.0)
    cells = [CellSeconds(1.0, 2.0)] * 3
    stages = step_costs(
        cells, [100, 200, 0], [1, 2, 3], [ALONE] * 3, [fast, slow]
    ).stages
    assert [x.send_forward for x in stages] == [fast.seconds(100), slow.seconds(200), 0]
    assert [x.send_backward for x in stages] == [
        *(0, fast.seconds(100), slow.seconds(200))
    ]


def test_each_half_has_its_cells_shares() -> None:
    rng = random.Random(0)
    shares = [rng.random() for _ in range(6)]
    found = with_shares("zero_bubble", shares)
    _, seconds = made_up_models(ALONE)(1)
    start = 0
    for stage, end in enumerate(found.boundaries):
        cells = zip(seconds[start:end], shares[start:end], strict=True)
        late = sum(cell.backward * share for cell, share in cells)
        whole = sum(cell.backward for cell in seconds[start:end])
        assert busy(found, Kind.WEIGHT_GRADIENT, stage) == pytest.approx(8 * late)
        assert busy(found, Kind.BACKWARD, stage) == pytest.approx(8 * (whole - late))
        start = end


def test_a_recomputation_leaves_out_what_only_the_stages_outputs_need() -> None:
    shares = [0.1, 0.2, 0.3, 0.4, 0.5, 0.0]
    found = with_shares("gpipe", HALVES, shares, "always")
    _, seconds = made_up_models(ALONE)(1)
    start = 0
    for stage, end in enumerate(found.boundaries):
        whole = sum(cell.forward for cell in seconds[start:end])
        recomputed = whole - shares[end - 1] * seconds[end - 1].forward
        assert busy(found, Kind.RECOMPUTE, stage) == pytest.approx(8 * recomputed)
        start = end


def test_layers_that_xla_compiles_leave_nothing_out() -> None:
    model = dataclasses.replace(made_up_model(1), in_place=True)
    assert sum(made_up_model(1).left_out) > 0
    assert sum(model.left_out) == 0


def test_they_matter_only_where_the_pass_is_split() -> None:
    shares = [1.0, 0.5, 0.3, 0.3, 0.0, 0.5]
    ways = [with_shares("1f1b", x).step_seconds for x in (shares, HALVES, [])]
    assert ways[0] == ways[1] == ways[2]
    split = [with_shares("zero_bubble", x).step_seconds for x in (shares, HALVES, [])]
    assert split[1] == pytest.approx(split[2], rel=1e-12)
    assert split[0] != pytest.approx(split[1])


def test_shares_of_a_transformer() -> None:
    """Tokens have no gradient, and products of attention have no weights."""
    params = reduced_params("lm.text.TransformerTiny")
    tracer = ModelTracer(params.task, params.input.Instantiate().element_spec)
    costs = tracer.trace(2, counts_flops=False).costs
    first, *layers, last = costs.weight_shares
    assert first == 1
    assert all(0.3 < share < 0.5 for share in layers), layers
    assert last == pytest.approx(0.5, abs=0.2)
    # The final norm needs the layers' last product, and the loss the logits.
    assert costs.output_shares == [0, *[0] * len(layers), 0]


def test_balanced_stages_that_fit_are_taken() -> None:
    """Also several on a device, of which one may need more than its share."""
    several = 0
    for candidate, model, needs in every_needs():
        seconds = flops_time(model, ALONE, "float32")
        work = [cell.forward + cell.backward for cell in seconds]
        number = needs.schedule.num_stages
        limit = needs.largest(balanced_boundaries(work, number, model.boundary_bytes))
        device = dataclasses.replace(ALONE, memory=limit + ALONE.reserved)
        stages = find_stages(
            candidate, model, seconds, [device] * candidate.num_devices
        )
        assert not isinstance(stages, OversizedCandidate), candidate
        several += candidate.stages_per_device > 1
    assert several > 10
