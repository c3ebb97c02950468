"""Invalid values of params are refused; the stages that valid values mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.convolution import Conv2DLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.pipelining_params import define_pipelining_params, make_layout
from lingvo_pipe.pipeline.schedules.by_name import V_SHAPED_NAMES
from lingvo_pipe.pipeline.stage_choice.memory_limit import DoesNotFitError
from tests.support.errors import fails

DIM = 3
NUM_CELLS = 4
DEVICES = ["cpu:0", "cpu:1"]
FIVE = [f"cpu:{i}" for i in range(5)]


class UnknownLayer(BaseLayer):
    """A layer without FProp."""


def _dense(num_in: int = DIM, num_out: int = DIM) -> InstantiableParams:
    return FCLayer.Params().Set(input_dim=num_in, output_dim=num_out)


def _params(**values: Any) -> InstantiableParams:
    p = PipeliningLayer.Params().Set(
        name="pipe", cell_tpl=[_dense() for _ in range(NUM_CELLS)]
    )
    return p.Set(**values)


NAN, INF = float("nan"), float("inf")
AUTO = {"splits": "auto", "devices": DEVICES}
SHAPES = [(2, DIM)]
SPLITS: list[Any] = [None, 0, True, "2", NUM_CELLS + 1, [], [2, 2, 4], [2], [2, "4"]]
SCHEDULES: list[Any] = [None, True, [], "gpip", "nowhere.csv"]

# Every param with a rule of its own; a new one must be added.
WRONG: dict[str, list[Any]] = {
    "cell_tpl": [
        *(3, "FCLayer", [], [_dense(), 3], [FCLayer], [Params()]),
        [InstantiableParams(NestedMap)],
    ],
    "before_tpl": [None, [_dense(), 3]],
    "tied": [None, {"cells_1/w": 3}, {3: "cells_0/w"}],
    "slices": [3, "atuo", {"cells[0]": 0}, {0: 2}],
    "cell_costs": [
        *("measurd", 3, [1, 2], [1, 2, 3, -4]),
        *([1, 2, 3, cost] for cost in (NAN, INF, "4", True)),
    ],
    "input_shapes": [3, {}],
    "input_dtypes": ["int32", [3], ["int33"], [["int32"]], [True]],
    "memory_limit": [0, True, NAN, "1"],
    "num_micro_batches": [0, True, 1.5, "2", None],
    "micro_batch_size": [0, 1.5],
    "batch_dim": [-1, None, False, 1.5],
    "state_dtype": [1, True, "nonsense", tf.int32, np.float32(1)],
    "num_replicas": [0, None],
    "num_batch_shards": [0, 1.5],
    "stages_per_device": [0, None],
    "recompute": [True, 3, "allways", [0, 0], [-1], [NUM_CELLS], [1.0]],
    "offload": [
        *(True, 3, "alway", [], [0, 0], [-1], [NUM_CELLS], [1.0]),
        *(0, 0.0, 1.0, 1, -0.5, 1.5, math.nan),
    ],
    "jit_compile": [None, 1],
    "devices": ["cpu:0", [], [0]],
}

# Values that are refused with others, or where they are used, and the wrong param.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"slices": {"cells[0]": 99}}, "slices"),
    ({"slices": "auto"}, "slices"),
    *(({"splits": x}, "splits") for x in SPLITS),
    ({"splits": "auto", "cell_costs": [1] * 4}, "devices"),
    (AUTO, "input_shapes"),
    ({**AUTO, "cell_costs": [1] * 4, "devices": FIVE}, "splits"),
    ({**AUTO, "input_shapes": SHAPES, "memory_limit": 1, "devices": FIVE}, "splits"),
    ({**AUTO, "cell_costs": "measured"}, "input_shapes"),
    ({"cell_costs": "measured", "input_shapes": SHAPES}, "cell_costs"),
    ({"cell_costs": [1, 2, 3, 4], "splits": [2, 4]}, "cell_costs"),
    *(
        ({**AUTO, "input_shapes": shapes}, "input_shapes")
        for shapes in ([(2, None)], [(2, 1.5)], [], SHAPES * 2)
    ),
    ({"input_shapes": SHAPES}, "input_shapes"),
    (
        {**AUTO, "input_shapes": SHAPES, "before_tpl": [UnknownLayer.Params()]},
        "input_shapes",
    ),
    *(
        ({**AUTO, "input_shapes": shapes, "cell_costs": "measured"}, "input_shapes")
        for shapes in ([], [(2, DIM + 1)])
    ),
    ({**AUTO, "input_dtypes": ["int32"]}, "input_dtypes"),
    ({**AUTO, "input_dtypes": ["int32"] * 2, "input_shapes": SHAPES}, "input_dtypes"),
    *(
        (
            {
                **AUTO,
                "input_dtypes": [dtypes],
                "input_shapes": [{"x": (2, DIM)}],
                "memory_limit": 1e9,
            },
            "input_dtypes",
        )
        for dtypes in ("int32", {"y": "int32"})
    ),
    ({"slices": "auto", "memory_limit": 1e9}, "slices"),
    ({"slices": "auto", **AUTO}, "slices"),
    ({"memory_limit": 1}, "input_shapes"),
    ({**AUTO, "memory_limit": 1, "cell_costs": [1] * 4}, "input_shapes"),
    ({"num_micro_batches": "auto"}, "num_micro_batches"),
    ({"num_micro_batches": "auto", **AUTO}, "num_micro_batches"),
    ({"schedule": "auto", "recompute": "auto"}, "schedule"),
    *(({"schedule": x}, "schedule") for x in SCHEDULES),
    ({"num_replicas": 3}, "num_micro_batches"),
    ({"num_batch_shards": 3, "num_replicas": 2}, "num_batch_shards"),
    ({"num_batch_shards": 7}, "num_micro_batches"),
    ({"stages_per_device": 3}, "stages_per_device"),
    *(
        ({"stages_per_device": 2, "splits": 4, "schedule": name}, "stages_per_device")
        for name in ("gpipe", "1f1b", "zero_bubble")
    ),
    ({"devices": ["cpu:0", "cpu:0"], "splits": 2}, "devices"),
    ({"devices": ["cpu:0"], "num_replicas": 2, "num_micro_batches": 2}, "devices"),
    (
        {
            "splits": "auto",
            "cell_costs": [1] * 4,
            "devices": ["cpu:0"],
            "num_replicas": 2,
            "num_micro_batches": 2,
        },
        "devices",
    ),
    *(({"devices": x}, "devices") for x in (["cpus:0"], ["cpu:99"], DEVICES)),
]


def test_the_stages_per_device_of_schedules_are_named() -> None:
    with fails(path="pipe.stages_per_device") as info:
        _params(stages_per_device=0).Instantiate()
    assert [x for x in V_SHAPED_NAMES if x not in info.value.hint] == []


def test_no_param_is_left_out() -> None:
    p = Params()
    define_pipelining_params(p)
    defined = set(dict(p.IterParams()))
    assert {*WRONG, "splits", "schedule"} == defined


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]]
)
def test_a_wrong_value_is_refused(name: str, value: Any) -> None:
    with fails(path=f"pipe.{name}", got=value) as info:
        _params(**{name: value}).Instantiate()
    assert info.value.expected
    assert info.value.hint
    assert len(str(info.value)) < 400


@pytest.mark.parametrize(("params", "name"), REFUSED)
def test_values_that_do_not_fit_are_refused(params: dict[str, Any], name: str) -> None:
    with fails(path=f"pipe.{name}"):
        _params(**params).Instantiate()


@pytest.mark.parametrize(
    "params", [{**AUTO, "input_shapes": SHAPES}, {"input_shapes": SHAPES}]
)
def test_stages_do_not_fit_into_a_byte(params: dict[str, Any]) -> None:
    with pytest.raises(DoesNotFitError, match=r"^pipe\.memory_limit: .*splits=\["):
        _params(memory_limit=1, **params).Instantiate()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cell_tpl", (_dense(),)),
        ("splits", np.int64(2)),
        ("splits", (1, NUM_CELLS)),
        ("num_micro_batches", np.int32(2)),
        ("micro_batch_size", 2),
        ("batch_dim", np.int64(0)),
        ("state_dtype", "bfloat16"),
        ("state_dtype", np.float16),
        ("recompute", (3, 0)),
        ("recompute", []),
        ("devices", ("cpu:2",)),
        ("devices", ["/device:CPU:2"]),
    ],
)
def test_a_value_may_be_of_another_type(name: str, value: Any) -> None:
    make_layout(_params(**{name: value}), "pipe")


def _automatic(**values: Any) -> Sequence[int]:
    p = _params(splits="auto", devices=DEVICES, **values)
    return make_layout(p, "pipe").boundaries


def test_the_prologue_does_not_move_the_cells() -> None:
    """It runs alone, so with fewer cells the first stage would only wait longer."""
    for num_before in range(NUM_CELLS):
        before = [_dense() for _ in range(num_before)]
        assert _automatic(input_shapes=[(2, DIM)], before_tpl=before) == [2, 4]


@pytest.mark.parametrize("costs", [None, "measured"])
def test_the_wrong_one_of_the_shapes_is_shown(costs: str | None) -> None:
    with fails(path="pipe.input_shapes", got=(4, -1)):
        _automatic(input_shapes=[(2, DIM), (4, -1)], cell_costs=costs)
    with fails(path="pipe.input_dtypes", got={"y": "int32"}):
        shapes, dtypes = [{"x": (2, DIM)}], [{"y": "int32"}]
        _automatic(input_shapes=shapes, input_dtypes=dtypes, cell_costs=costs)


def test_layers_that_do_not_take_their_inputs_are_named() -> None:
    """The prologue and the cells are counted separately."""
    before, conv = [_dense()], Conv2DLayer.Params().Set(filter_shape=[3, 3, 1, 1])
    shapes = [(2, DIM)]
    with fails(path="pipe.input_shapes", got=shapes) as info:
        _automatic(input_shapes=shapes, before_tpl=before, cell_tpl=[conv] * 2)
    assert "cell_tpl[0], Conv2DLayer" in str(info.value)
    with fails() as info:
        _automatic(input_shapes=shapes, before_tpl=[*before, conv])
    assert "before_tpl[1], Conv2DLayer" in str(info.value)
