"""The params' devices and --devices agree, or are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.pipeline.devices.device_names import parse_devices
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.training.task.placement import Placement, place_stages
from tests.support.errors import fails

NUM_CELLS = 6


def _params(**values: Any) -> InstantiableParams:
    cells = [FCLayer.Params() for _ in range(NUM_CELLS)]
    return PipeliningLayer.Params().Set(cell_tpl=cells, splits=2, **values)


def _place(flag: str | None, **values: Any) -> tuple[Placement, Any]:
    p = _params().Set(**values)
    return place_stages(p, None if flag is None else parse_devices(flag)), p.splits


@pytest.mark.parametrize(
    ("splits", "per_device", "expected"),
    [(1, 1, 1), (3, 1, 3), ([1, 6], 1, 2), (6, 2, 3), (1, 2, 1)],
)
def test_without_the_flag_stages_determine_the_devices(
    splits: Any, per_device: int, expected: int
) -> None:
    placed, after = _place(None, splits=splits, stages_per_device=per_device)
    assert placed == (expected, "")
    assert after == splits


@pytest.mark.parametrize("splits", [2, [1, 6], "auto"])
@pytest.mark.parametrize("flag", [None, "2", "gpu:1,cpu:0"])
def test_devices_in_the_params_are_used(flag: str | None, splits: Any) -> None:
    named = ["gpu:1", "cpu:0"]
    placed, after = _place(flag, splits=splits, devices=named)
    assert placed == (named, "")
    assert after == splits


@pytest.mark.parametrize("flag", ["3", "1", "cpu:0,gpu:1", "gpu:1,cpu:1", "gpu:1"])
def test_other_devices_than_those_named_are_refused(flag: str) -> None:
    with fails(path="--devices") as info:
        _place(flag, splits="auto", devices=["gpu:1", "cpu:0"])
    assert info.value.got.startswith(flag)


@pytest.mark.parametrize("splits", [2, "auto", [1, 6]])
def test_the_flag_is_followed_where_nothing_contradicts(splits: Any) -> None:
    assert _place("2", splits=splits) == ((2, ""), splits)
    names = parse_devices("cpu:3,cpu:1")
    assert _place("cpu:3,cpu:1", splits=splits) == ((names, ""), splits)


@pytest.mark.parametrize(
    ("flag", "per_device", "splits", "words"),
    [
        ("3", 1, 3, r"3\b.*\.splits, 2,.*--devices.*\b3 devices$"),
        ("1", 1, 1, r"1\b.*\.splits, 2,.*--devices.*\b1 device$"),
        ("3", 2, 6, r"6\b.*\.splits, 2,.*--devices.*\b3 devices$"),
        ("cpu:0,cpu:2,cpu:1", 1, 3, r"3\b.*\.splits, 2,.* cpu:0,cpu:2,cpu:1$"),
    ],
)
def test_another_number_of_stages_is_made_and_noted(
    flag: str, per_device: int, splits: int, words: str
) -> None:
    placed, after = _place(flag, stages_per_device=per_device)
    assert placed.devices == parse_devices(flag)
    assert after == splits
    assert re.match(f"stages: {words}", placed.note)


def test_a_list_of_other_stages_is_refused() -> None:
    with fails(path="--devices", got="3 devices, for 3 stages"):
        _place("3", splits=[1, 6])
    with fails(path="--devices", got="1 device, for 3 stages"):
        _place("1", splits=[1, 6], stages_per_device=3)
    with fails(path="--devices", got=None):
        _place(None, splits="auto")


@pytest.mark.parametrize(
    "values", [{"splits": 0}, {"cell_tpl": 3}, {"stages_per_device": 0}]
)
@pytest.mark.parametrize("flag", [None, "2"])
def test_invalid_params_are_refused(flag: str | None, values: dict[str, Any]) -> None:
    (name,) = values
    with fails() as info:
        _place(flag, **values)
    assert str(info.value).startswith(f"task.pipeline.{name}: ")
