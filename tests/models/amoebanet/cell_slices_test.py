"""A cell in slices computes what the whole cell does."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.slicing import num_units, slices_of
from lingvo_pipe.layers.dropout import DropPathLayer
from lingvo_pipe.models.amoebanet.cell import AmoebaCell
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.stage_choice.memory_limit import DoesNotFitError
from lingvo_pipe.pipeline.stage_choice.stage_boundaries import whole_memory
from tests.layers.sliced_layers import (
    assert_costs_add_up,
    assert_same,
    compute,
    layers_of,
)
from tests.support.cases import exhaustive

_CELL = AmoebaCell.Params().Set(num_filters=4, num_in=6, random_seed=5)
CELLS = {
    "normal": _CELL.Copy().Set(num_in_before=10, before_is_larger=True),
    "without one before": _CELL,
    "reduction": _CELL.Copy().Set(num_in_before=4, reduction=True),
    "drop-path": _CELL.Copy().Set(
        genotype="C",
        drop_path_tpl=DropPathLayer.Params().Set(keep_prob=0.6),
        num_cells=4,
    ),
}


def _inputs(p: InstantiableParams, dtype: tf.DType) -> list[Any]:
    def image(size: int, channels: int) -> tf.Tensor:
        return tf.random.stateless_normal(
            [4, size, size, channels], [1, 2], dtype=dtype
        )

    size = 8 if p.before_is_larger else 4
    before = image(size, p.num_in_before) if p.num_in_before else None
    num_before = tf.fill([4], tf.constant(2, tf.int64)) if p.num_cells else None
    return [image(4, p.num_in), before, num_before, tf.constant([3, 1, 2, 0])]


@pytest.mark.parametrize("dtype", [exhaustive(tf.float32), tf.float64])
@pytest.mark.parametrize(
    ("name", "num_slices"),
    [
        (name, number) if number == 3 else exhaustive(name, number)
        for name in CELLS
        for number in (1, 2, 3, 8)
    ],
)
def test_slices_are_the_cell(name: str, num_slices: int, dtype: tf.DType) -> None:
    p = CELLS[name].Copy().Set(dtype=dtype)
    inputs = _inputs(p, dtype)
    layers = layers_of(p, num_slices)
    assert len(layers) == num_slices
    want = compute(layers_of(p, None), inputs)
    tolerance = 1e-12 if dtype == tf.float64 else 1e-6
    assert_same(compute(layers, inputs), want, tolerance)


@pytest.mark.parametrize("name", CELLS)
def test_slices_cost_what_the_cell_does(name: str) -> None:
    p = CELLS[name]
    for number in (2, num_units(p)):
        assert_costs_add_up(p, number, _inputs(p, tf.float32), 1.01)


def test_each_operation_may_be_a_slice() -> None:
    p = CELLS["normal"]
    parts = [set(each.cls.Parts(each)) for each in slices_of(p, num_units(p))]
    assert all(len(each) == 1 for each in parts)
    assert set().union(*parts) == set(AmoebaCell.Parts(p))


@pytest.mark.exhaustive
def test_auto_cuts_a_cell_whose_activations_do_not_fit() -> None:
    cell = AmoebaCell.Params().Set(num_filters=4, num_in=4, num_in_before=4)
    image = (2, 32, 32, 4)
    p = PipeliningLayer.Params().Set(
        name="pipe",
        cell_tpl=[cell],
        splits="auto",
        devices=stage_devices(None, 2),
        input_shapes=[image, image, None],
        num_micro_batches=2,
    )
    memory = whole_memory(p.Copy().Set(memory_limit=1e9), "pipe")
    p.memory_limit = 0.8 * memory.by_cell()[0]
    assert memory.weights(0, 1) < 0.01 * p.memory_limit
    layer = p.Copy().Set(slices="auto").Instantiate()
    assert layer.num_stages == 2
    assert len(layer.cells) > 2
    fewer = {"cells[0]": len(layer.cells) - 1}
    with pytest.raises(DoesNotFitError):
        p.Copy().Set(slices=fewer).Instantiate()
