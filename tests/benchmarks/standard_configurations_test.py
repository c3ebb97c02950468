"""The configurations can be run, have unique names, and stand beside baselines."""

import itertools

import pytest

from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from tools.benchmarks.configuration import Configuration
from tools.benchmarks.standard_configurations import (
    quick_configurations,
    standard_configurations,
)

LISTS = {
    "standard on 2": standard_configurations(2),
    "standard on 4": standard_configurations(4),
    "quick": quick_configurations(2),
}
ALL = [(name, c) for name, groups in LISTS.items() for group in groups for c in group]


@pytest.mark.parametrize(
    ("_", "configuration"), ALL, ids=lambda x: getattr(x, "name", x)
)
def test_can_be_run(_: str, configuration: Configuration) -> None:
    workload = configuration.workload
    assert workload.num_layers % configuration.num_stages == 0
    assert workload.batch_size % configuration.num_micro_batches == 0
    assert workload.model_dim % workload.num_heads == 0
    recompute = configuration.recompute
    if configuration.system == "tensorflow":
        return
    schedule = make_schedule(
        configuration.schedule,
        configuration.num_devices,
        configuration.num_micro_batches,
        configuration.stages_per_device,
        recompute if isinstance(recompute, str) else "always",
    )
    for device in range(configuration.num_devices):
        stages = {op.stage for op in schedule.columns[device]}
        assert configuration.stages_on(device) == sorted(stages)


@pytest.mark.parametrize("groups", LISTS.values(), ids=LISTS)
def test_have_unique_names(groups: list[list[Configuration]]) -> None:
    configurations = sum(groups, [])
    assert len({c.name for c in configurations}) == len(configurations)
    assert len(set(configurations)) == len(configurations)


@pytest.mark.parametrize("groups", LISTS.values(), ids=LISTS)
def test_timed_configurations_have_a_baseline_on_one_device(
    groups: list[list[Configuration]],
) -> None:
    for group in groups:
        ours = {c for c in group if c.system == "lingvo_pipe" and not c.only_start}
        alone = {c.on_one_device() for c in ours}
        assert alone < ours or not ours
        assert {c for c in ours if c.num_devices == 1} == alone


@pytest.mark.parametrize("groups", LISTS.values(), ids=LISTS)
def test_peers_train_the_same_model_in_the_same_group(
    groups: list[list[Configuration]],
) -> None:
    for group in groups:
        for each in group:
            peers = {c.system for c in group if c.is_peer_of(each)}
            if each.recompute not in ("always", "never") or each.num_blocks > 1:
                assert not peers
            elif each.system == "lingvo_pipe" and not each.only_start:
                assert peers == {"torch", "tensorflow"}
        others = [c for g in groups for c in g if g is not group]
        assert not any(c.is_peer_of(each) for each in group for c in others)


@pytest.mark.parametrize("num_devices", [2, 4])
def test_all_schedules_of_torch_are_there_or_have_a_reason(num_devices: int) -> None:
    torch = [
        c
        for c in sum(standard_configurations(num_devices), [])
        if c.system == "torch" and c.num_devices > 1
    ]
    whole = {
        (c.schedule, c.is_compiled, c.recompute, c.dtype)
        for c in torch
        if c.num_micro_batches == 8
    }
    schedules = {c.schedule for c in torch}
    assert {"gpipe", "1f1b", "interleaved", "zero_bubble_v"} <= schedules
    dtypes = ("float32", "bfloat16", "pure bfloat16")
    assert whole == set(
        itertools.product(schedules, (False, True), ("always", "never"), dtypes)
    )
    for c in torch:
        splits_backward = "zero_bubble" in c.schedule
        is_refused = splits_backward and (c.is_compiled or c.recompute == "always")
        assert bool(c.limitation) == is_refused


@pytest.mark.parametrize("groups", LISTS.values(), ids=LISTS)
def test_workers_stand_beside_one_process(groups: list[list[Configuration]]) -> None:
    assert any(c.placement == "workers" for group in groups for c in group)
    for group in groups:
        assert {c.in_process() for c in group} <= set(group)


@pytest.mark.parametrize("num_devices", [2, 4])
def test_predicted_configurations_are_pipelines_of_one_process(
    num_devices: int,
) -> None:
    known = sum(standard_configurations(num_devices), [])
    predicted = {c for c in known if c.is_predicted and not c.only_start}
    schedules = {"gpipe", "1f1b", "zero_bubble", "zero_bubble_v"}
    assert {c.schedule for c in predicted} == schedules
    assert {c.num_devices for c in predicted} == {num_devices}
    assert not {c.on_workers() for c in predicted} & predicted
