"""The configurations can be run, told apart, and have what they are compared with."""

import pytest

from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from tools.benchmarks.configuration import (
    Configuration,
    quick_configurations,
    standard_configurations,
)
from tools.benchmarks.exchange import Report, Request, merge

LISTS = {
    "standard on 2": standard_configurations(2),
    "standard on 4": standard_configurations(4),
    "quick": quick_configurations(2),
}
ALL = [(name, c) for name, listed in LISTS.items() for c in listed]


@pytest.mark.parametrize(
    ("_", "configuration"), ALL, ids=lambda x: getattr(x, "name", x)
)
def test_can_be_run(_: str, configuration: Configuration) -> None:
    workload = configuration.workload
    assert workload.num_layers % configuration.num_stages == 0
    assert workload.batch_size % configuration.num_micro_batches == 0
    assert workload.model_dim % workload.num_heads == 0
    recompute = configuration.recompute
    make_schedule(
        configuration.schedule,
        configuration.num_devices,
        configuration.num_micro_batches,
        configuration.stages_per_device,
        recompute if isinstance(recompute, str) else "always",
    )


@pytest.mark.parametrize("configurations", LISTS.values(), ids=LISTS)
def test_have_names_of_their_own(configurations: list[Configuration]) -> None:
    assert len({c.name for c in configurations}) == len(configurations)


@pytest.mark.parametrize("configurations", LISTS.values(), ids=LISTS)
def test_what_is_timed_has_its_like_on_one_device(
    configurations: list[Configuration],
) -> None:
    timed = [c for c in configurations if not c.only_start]
    assert {c.on_one_device() for c in timed} < set(timed)


@pytest.mark.parametrize("configurations", LISTS.values(), ids=LISTS)
def test_torch_stands_beside_our_own(configurations: list[Configuration]) -> None:
    torch = [c for c in configurations if c.system == "torch"]
    assert torch
    ours = {c.in_torch() for c in configurations if c.system == "lingvo_pipe"}
    assert set(torch) <= ours


@pytest.mark.parametrize(
    "configuration", standard_configurations(2), ids=lambda c: c.name
)
def test_requests_pass_through_json(configuration: Configuration) -> None:
    request = Request(configuration, num_steps=3, with_peak=True, cores=(0, 2))
    assert Request.from_json(request.to_json()) == request


def test_the_slowest_process_counts() -> None:
    reports = [
        Report(3.0, [1.0, 5.0], [10], None, 0.25),
        Report(2.0, [4.0, 2.0], [20], 0.5, 0.5),
    ]
    assert merge(reports) == Report(3.0, [4.0, 5.0], [10, 20], 0.5, 0.75)
