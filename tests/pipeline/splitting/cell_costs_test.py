"""Costs of cells from shapes alone."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.convolution import Conv2DLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.splitting.cell_costs import cell_costs


class SpreadLayer(BaseLayer):
    """x -> (NestedMap of x and None, None, x)."""

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        spread = NestedMap(a=shapes[0], b=(shapes[0], None))
        return NestedMap(flops=3, out_shapes=(spread, None, shapes[0]))


class GatherLayer(BaseLayer):
    """Outputs of SpreadLayer -> x."""

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        spread, nothing, x = shapes
        assert nothing is None
        assert spread == NestedMap(a=x, b=(x, None))
        return NestedMap(flops=4, out_shapes=(x,))


class UnknownLayer(BaseLayer):
    """A layer without FPropMeta."""


def dense(num_in: int, num_out: int) -> InstantiableParams:
    return FCLayer.Params().Set(input_dim=num_in, output_dim=num_out, has_bias=False)


def test_each_cell_takes_the_outputs_of_the_previous_one() -> None:
    cells = [dense(3, 5), SpreadLayer.Params(), GatherLayer.Params(), dense(5, 2)]
    costs = cell_costs(cells, (4, 3))
    assert costs.flops == [2 * 4 * 3 * 5, 3, 4, 2 * 4 * 5 * 2]
    assert costs.passed_on == [20, 60, 20, 8]
    assert sum(costs.flops) == (
        SequentialLayer.FPropMeta(SequentialLayer.Params().Set(sub=cells), (4, 3)).flops
    )


def test_no_cells_cost_nothing() -> None:
    assert cell_costs([], (4, 3)) == ([], [])


@pytest.mark.parametrize(
    "shape", [(4, 3), [4, 3], tf.TensorShape([4, 3]), np.array([4, 3])]
)
def test_shapes_may_be_of_any_kind(shape: Any) -> None:
    assert cell_costs([dense(3, 5)], shape).passed_on == [20]
    spread = NestedMap(a=(4, 3), b=NestedMap(c=shape, d=None))

    class Inspect(BaseLayer):
        @classmethod
        def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
            expected = NestedMap(a=(4, 3), b=NestedMap(c=(4, 3), d=None))
            assert shapes == (expected, None)
            return NestedMap(flops=0, out_shapes=shapes)

    assert cell_costs([Inspect.Params()], spread, None).passed_on == [24]


@pytest.mark.parametrize(
    "shape", [4, (4, None), (4, -1), (0, 3), tf.TensorShape([None, 3]), "43", (2.5,)]
)
def test_invalid_shapes_are_refused(shape: Any) -> None:
    given = re.escape(repr(shape))
    with pytest.raises(ValueError, match=rf"\btuple\b.*{given}.*\(8, 32\)"):
        cell_costs([dense(3, 5)], shape)


def test_a_layer_without_costs_is_named_with_a_hint() -> None:
    inner = SequentialLayer.Params().Set(name="inner", sub=[UnknownLayer.Params()])
    for cell, name in (
        (UnknownLayer.Params().Set(name="x"), "UnknownLayer 'x'"),
        (inner, "SequentialLayer 'inner'"),
    ):
        hint = r"\bUnknownLayer\.FPropMeta\b.*\(cls, p, \*shapes\)"
        with pytest.raises(ValueError, match=rf"\bcell_tpl\[1\].*{name}.*{hint}"):
            cell_costs([dense(3, 5), cell], (4, 3))


def test_shapes_that_do_not_fit_are_reported_with_the_cell() -> None:
    conv = Conv2DLayer.Params().Set(name="conv", filter_shape=[3, 3, 5, 2])
    named = r"\bcell_tpl\[1\].*\bConv2DLayer 'conv'.*\bFPropMeta\b.*\(4, 5\)"
    with pytest.raises(ValueError, match=named):
        cell_costs([dense(3, 5), conv], (4, 3))
    with pytest.raises(
        ValueError, match=r"\bcell_tpl\[0\].*\bFCLayer\b.*\bFPropMeta\b"
    ):
        cell_costs([dense(3, 5)])


@pytest.mark.parametrize(
    "meta", [3, NestedMap(flops=3), NestedMap(flops=3, out_shapes=(4, 3))]
)
def test_an_invalid_cost_is_reported_with_its_cell(meta: Any) -> None:
    class WrongLayer(BaseLayer):
        """Its FPropMeta breaks the rule."""

        @classmethod
        def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> Any:
            return meta

    named = r"\bcell_tpl\[1\].*\bWrongLayer 'odd'.*\bFPropMeta\b.*NestedMap\(flops="
    cells = [dense(3, 5), WrongLayer.Params().Set(name="odd"), dense(5, 2)]
    with pytest.raises(ValueError, match=named):
        cell_costs(cells, (4, 3))
