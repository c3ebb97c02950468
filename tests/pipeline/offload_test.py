"""Offload with each schedule: it changes no byte, and the device needs less memory."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.cell_roles import check_offloads
from lingvo_pipe.pipeline.devices.device_names import DeviceName
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.pipelining_params import make_layout
from lingvo_pipe.pipeline.schedules.by_rule import gpipe, one_f_one_b
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.csv_file import write_csv
from lingvo_pipe.pipeline.schedules.offload import offloaded
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.stage_choice.memory_limit import DoesNotFitError
from tests.pipeline.example_layers import gradients, loss_fn
from tests.support.cases import exhaustive
from tests.support.errors import fails

DIM, ROWS, NUM_CELLS, M = 3, 24, 4, 6
KINDS = {Kind.FORWARD, Kind.BACKWARD, Kind.OFFLOAD, Kind.LOAD}


def _params(dim: int = DIM, **values: Any) -> InstantiableParams:
    cell = FCLayer.Params().Set(input_dim=dim, output_dim=dim, activation="TANH")
    p = PipeliningLayer.Params().Set(
        name="pipe",
        cell_tpl=[cell.Copy() for _ in range(NUM_CELLS)],
        num_micro_batches=M,
    )
    return p.Set(**values)


def _batch(rows: int = ROWS, dim: int = DIM) -> tuple[list[tf.Tensor], NestedMap]:
    x = tf.random.stateless_normal([rows, dim], [1, 2])
    return [x], NestedMap(label=tf.range(rows) % 3, weight=tf.ones([rows]))


@functools.cache
def _of_one_stage() -> NestedMap:
    """Returns the results of one stage that neither recomputes nor offloads."""
    return gradients(_params(recompute="never").Instantiate(), _batch())


def _file(folder: Path, schedule: Any) -> str:
    write_csv(schedule, folder / "schedule.csv")
    return str(folder / "schedule.csv")


# Cells that are recomputed, as the layout finds them, by (recompute, offload).
ROLES = [
    ("never", "always", [], [0, 1, 2, 3]),
    (None, [1, 2], [0, 3], [1, 2]),
    ("never", [1, 2], [], [1, 2]),
    ([0], [1, 2], [0], [1, 2]),
    (None, 0.5, [1, 3], [0, 2]),
    ("never", 0.25, [], [0]),
    ([0], 0.5, [0], [1, 3]),  # A share of the cells that are not listed.
]


@pytest.mark.parametrize(("recompute", "offload", "again", "away"), ROLES, ids=str)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_each_cell_has_one_role(
    schedule: str, recompute: Any, offload: Any, again: list[int], away: list[int]
) -> None:
    p = _params(splits=4, schedule=schedule, recompute=recompute, offload=offload)
    layout = make_layout(p, "pipe")
    assert Kind.OFFLOAD in layout.schedule.kinds
    assert (Kind.RECOMPUTE in layout.schedule.kinds) == bool(again)
    if again:
        assert [i for i, yes in enumerate(layout.recomputed) if yes] == again
    assert [i for i, yes in enumerate(layout.offloaded) if yes] == away


@pytest.mark.parametrize("recompute", ["always", "except_last", [0, 2]])
def test_a_cell_with_two_roles_is_refused(recompute: Any) -> None:
    with fails(path="pipe.offload") as error:
        _params(recompute=recompute, offload=[1, 2]).Instantiate()
    cells = [2] if isinstance(recompute, list) else [1, 2]
    assert str(cells) in str(error.value)


def test_a_file_keeps_its_own_copies(tmp_path: Path) -> None:
    schedule = offloaded(one_f_one_b(4, M))
    p = _params(splits=4, schedule=_file(tmp_path, schedule))
    assert make_layout(p.Copy(), "pipe").schedule == schedule
    assert make_layout(p.Copy().Set(offload=[0]), "pipe").schedule == schedule
    with fails(path="pipe.offload", got="always"):
        make_layout(p.Copy().Set(offload="always"), "pipe")


def test_a_file_that_recomputes_is_not_offloaded(tmp_path: Path) -> None:
    schedule = recomputed(gpipe(2, M), "always")
    p = _params(splits=2, schedule=_file(tmp_path, schedule), offload="always")
    with fails(path="pipe.offload"):
        make_layout(p, "pipe")


def test_a_file_that_would_offload_recomputed_cells_is_refused(tmp_path: Path) -> None:
    schedule = offloaded(recomputed(gpipe(2, M), "always"))
    p = _params(splits=2, schedule=_file(tmp_path, schedule))
    with fails(path="pipe.offload"):
        p.Instantiate()
    assert p.Copy().Set(offload=[0]).Instantiate().schedule == schedule


def test_a_schedule_that_would_offload_recomputed_cells_is_refused() -> None:
    layer = _params(splits=2, recompute="always").Instantiate()
    with fails(path="pipe.offload"):
        layer.PeakBytes(*_batch(), loss_fn, offloaded(layer.schedule))


def test_tpus_are_refused() -> None:
    cells, devices = [False], ["/job:localhost/replica:0/task:0/device:TPU:0"]
    with fails(path="pipe.offload"):
        check_offloads(offloaded(gpipe(1, M)), cells, [True], devices, "pipe")
    check_offloads(gpipe(1, M), cells, [True], devices, "pipe")


@pytest.mark.parametrize(
    "values",
    [
        {"splits": 1, "offload": "always"},
        {"splits": 2, "offload": [0, 3], "schedule": "zero_bubble"},
        {"splits": 4, "offload": [1, 2], "schedule": "interleaved"},
    ],
    ids=str,
)
def test_offload_changes_no_byte(values: dict[str, Any]) -> None:
    if values.get("schedule") == "interleaved":
        values = {**values, "stages_per_device": 2}
    layer = _params(**values).Instantiate()
    assert layer.schedule.kinds >= KINDS
    found = gradients(layer, _batch())
    tf.nest.map_structure(np.testing.assert_array_equal, found, _of_one_stage())


def _with_random_copies(plain: Schedule, rng: random.Random) -> Schedule:
    """Returns a schedule with copies of half of the micro-batches, anywhere."""
    while True:
        columns = []
        for column in map(list, plain.columns):
            for op in list(column):
                if op.kind is Kind.BACKWARD and rng.random() < 0.5:
                    first = column.index(op._replace(kind=Kind.FORWARD)) + 1
                    places = [rng.randint(first, column.index(op)) for _ in range(2)]
                    column.insert(max(places), op._replace(kind=Kind.LOAD))
                    column.insert(min(places), op._replace(kind=Kind.OFFLOAD))
            columns.append(tuple(column))
        schedule = Schedule(plain.num_stages, plain.num_micro_batches, tuple(columns))
        with contextlib.suppress(ValueError):  # A stage's copies must be in order.
            check(schedule)
            if Kind.OFFLOAD in schedule.kinds:
                return schedule


@pytest.mark.parametrize("seed", [0, *map(exhaustive, range(1, 8))])
@pytest.mark.parametrize("make", [gpipe, exhaustive(one_f_one_b)])
def test_copies_at_any_place_change_no_byte(
    seed: int, make: Callable[[int, int], Schedule]
) -> None:
    rng = random.Random(seed)
    plain = make(3, M)
    roles: dict[str, Any] = {"recompute": "never", "offload": "always"}
    if rng.random() < 0.5:
        plain = recomputed(plain, "always")
        roles = {"recompute": [0, 1], "offload": [2, 3]}
    layer = _params(splits=3, **roles).Instantiate()
    found = gradients(layer, _batch(), schedule=_with_random_copies(plain, rng))
    tf.nest.map_structure(np.testing.assert_array_equal, found, _of_one_stage())


@pytest.mark.parametrize("num_replicas", [1, exhaustive(2)])
def test_the_shards_of_a_batch_are_offloaded_one_after_another(
    num_replicas: int,
) -> None:
    shards: Any = {"num_micro_batches": 12, "num_batch_shards": 2}
    want = gradients(_params(recompute="never", **shards).Instantiate(), _batch())
    p = _params(splits=2, num_replicas=num_replicas, offload="always", **shards)
    layer = p.Instantiate()
    assert layer.schedule.kinds == KINDS
    tf.nest.map_structure(
        np.testing.assert_array_equal, gradients(layer, _batch()), want
    )


@functools.cache
def _gpipe(**values: Any) -> PipeliningLayer:
    return _params(64, schedule="gpipe", splits=2, **values).Instantiate()


def _peaks(**values: Any) -> tuple[int, int]:
    """Returns the peak bytes of the first device and of its host."""
    layer, batch = _gpipe(**values), _batch(64 * values["num_micro_batches"], 64)
    return layer.PeakBytes(*batch, loss_fn)[0], layer.HostBytes(*batch, loss_fn)[0]


@pytest.fixture
def as_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts memory as if the CPU devices had memory of their own."""
    monkeypatch.setattr(DeviceName, "has_host_memory", False)


def test_what_a_cpu_offloads_stays_in_its_memory() -> None:
    with_offload = _peaks(num_micro_batches=12, offload="always")
    assert with_offload[0] == _peaks(num_micro_batches=12, recompute="never")[0]
    assert with_offload[1] > 0


@pytest.mark.usefixtures("as_on_gpus")
def test_a_device_needs_no_more_for_more_micro_batches() -> None:
    few, many = (_peaks(num_micro_batches=n, offload="always") for n in (6, 12))
    stashed = _peaks(num_micro_batches=12, recompute="never")
    assert few[0] == many[0] < stashed[0] / 2
    assert stashed[1] == 0
    assert many[1] == 2 * few[1] > stashed[0] - many[0]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_offload_is_a_hint_only_where_it_helps(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = _params(64, splits=2, schedule=schedule, input_shapes=[(64, 64)])
    p.Set(recompute="never", memory_limit=1000)
    for on_cpu in (False, True):
        monkeypatch.setattr(DeviceName, "has_host_memory", on_cpu)
        with fails(DoesNotFitError) as error:
            make_layout(p.Copy(), "pipe")
        helps = not on_cpu and schedule == "gpipe"
        assert ("offload='always'" in str(error.value)) == helps


@pytest.mark.usefixtures("as_on_gpus")
@pytest.mark.parametrize("trains", [False, exhaustive(True)])
def test_what_does_not_fit_fits_with_offload(trains: bool) -> None:
    batch = _batch(64 * M, 64)
    p = _params(64, splits=2, input_shapes=[(64, 64)], recompute="never")
    needed = p.Copy().Set(offload="always", input_shapes=None).Instantiate()
    limit = 1.1 * max(needed.PeakBytes(*batch, loss_fn))
    with fails(DoesNotFitError) as error:
        p.Copy().Set(memory_limit=limit).Instantiate()
    assert "offload='always'" in str(error.value)
    layer = p.Copy().Set(memory_limit=limit, offload="always").Instantiate()
    assert layer.schedule.kinds == KINDS
    assert layer.boundaries == needed.boundaries
    if trains:
        tf.nest.map_structure(
            np.testing.assert_array_equal,
            gradients(layer, batch),
            gradients(needed, batch),
        )
