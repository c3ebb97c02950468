"""A pipeline's cells become slices, by path or as few as fit."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import CopyFieldsTo, InstantiableParams
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer, FeedForwardLayer
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.layers.residual import ResidualLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.pipelining_params import make_layout
from lingvo_pipe.pipeline.slices import sliceable_paths, with_slices
from lingvo_pipe.pipeline.stage_choice.memory_limit import DoesNotFitError
from lingvo_pipe.pipeline.stage_choice.traced_cells import trace_cells
from tests.models.transformer.small_models import translation_task
from tests.support.cases import exhaustive
from tests.support.errors import fails

DIM, HIDDEN, BATCH = 8, 256, 4


def _params(**pipeline: Any) -> InstantiableParams:
    body = FeedForwardLayer.Params().Set(dim=DIM, hidden_dim=HIDDEN)
    p = PipeliningLayer.Params().Set(name="pipe", num_micro_batches=2)
    p.cell_tpl = [
        FCLayer.Params().Set(input_dim=DIM, output_dim=DIM),
        ResidualLayer.Params().Set(dim=DIM, body=body),
        LayerNormLayer.Params().Set(dim=DIM, name="norm"),
    ]
    return p.Set(**pipeline)


def _limited(limit: float, num_devices: int = 2, **pipeline: Any) -> InstantiableParams:
    return _params(
        memory_limit=limit,
        input_shapes=[(BATCH // 2, DIM)],
        splits="auto",
        devices=stage_devices(None, num_devices),
        **pipeline,
    )


def _loss(outputs: tf.Tensor, targets: tf.Tensor) -> NestedMap:
    error = tf.reduce_mean(tf.square(outputs - targets))
    return NestedMap(loss=(error, tf.constant(1.0)))


def _peak_bytes(layer: PipeliningLayer) -> list[int]:
    x = tf.random.stateless_normal([BATCH, DIM], [1, 2])
    with ForwardContext(step=tf.constant(0, tf.int64), first_example=0):
        return layer.PeakBytes([x], x, _loss)


@functools.cache
def _whole_bytes() -> int:
    """Returns what one device needs for whole cells."""
    return max(_peak_bytes(_params().Instantiate()))


def test_slices_are_cells_and_others_keep_their_names() -> None:
    layer = _params(slices={"cells[1].body": 3}, splits=[1, 2, 5]).Instantiate()
    names = [cell.params.name for cell in layer.cells]
    assert names == ["cells_0", "cells_1>0", "cells_1>1", "cells_1>2", "norm"]
    assert layer.num_stages == 3


_FIVE = {"cells[1].body": 3}  # Slices with which there are five cells.


@pytest.mark.parametrize(
    ("state_dtype", "slices", "count"),
    [(tf.bfloat16, _FIVE, 1), (tf.bfloat16, None, 0), (None, _FIVE, 0)],
)
def test_a_dtype_between_slices_is_warned_of(
    state_dtype: Any, slices: Any, count: int, warnings: pytest.LogCaptureFixture
) -> None:
    """Exports run whole layers, so they round less often than training does."""
    make_layout(_params(state_dtype=state_dtype, slices=slices), "pipe")
    assert sum("state_dtype" in x for x in warnings.messages) == count


@pytest.mark.parametrize("last", [False, True])
def test_lists_count_slices_as_cells(last: bool) -> None:
    costs = [1, 1, 1, 1, 4] if last else [4, 1, 1, 1, 1]
    lists = {"cell_costs": costs, "recompute": [4], "offload": [0, 3]}
    p = _params(slices=_FIVE, splits="auto", devices=stage_devices(None, 2), **lists)
    layer = p.Instantiate()
    assert layer.boundaries == ([4, 5] if last else [1, 5])


@pytest.mark.parametrize(
    ("name", "value"),
    [("cell_costs", [1, 1, 1]), ("recompute", [5]), ("offload", [1, 5])],
)
def test_lists_do_not_count_the_cells_that_are_cut(name: str, value: list[int]) -> None:
    with fails(path=f"pipe.{name}", got=value):
        _params(slices=_FIVE, **{name: value}).Instantiate()


@pytest.mark.parametrize(
    ("name", "value"), [("cell_costs", [1, 1, 1]), ("recompute", [0]), ("offload", [0])]
)
def test_no_list_counts_slices_that_are_chosen(name: str, value: list[int]) -> None:
    with fails(path=f"pipe.{name}", got=value):
        _limited(1e9, slices="auto").Set(**{name: value}).Instantiate()


@pytest.mark.parametrize(
    ("slices", "got"),
    [
        ({"cells[1].bdy": 2}, ["cells[1].bdy"]),
        ({"cells[9]": 2}, ["cells[9]"]),
        ({"cells[2]": 2}, [2]),
        ({"cells[1]": HIDDEN + 1}, [HIDDEN + 1]),
        ({"cells[1]": 2, "cells[1].body": 2}, [["cells[1]", "cells[1].body"]]),
        ({"cells[0]": 99, "cells[2]": 2}, [99, 2]),
    ],
)
def test_wrong_slices_are_refused(slices: Any, got: list[Any]) -> None:
    with fails() as info:
        _params(slices=slices).Instantiate()
    problems = info.value.problems
    assert [(x.path, x.got) for x in problems] == [("pipe.slices", x) for x in got]
    assert "cells[1].body" in info.value.hint


class TwiceLayer(ResidualLayer):
    """Computes twice what its base class does, whose slices would not."""

    def FProp(self, theta: NestedMap, inputs: tf.Tensor, *args: Any) -> tf.Tensor:
        return 2.0 * super().FProp(theta, inputs, *args)


@pytest.mark.parametrize("name", ["cells[1]", "cells[1].body"])
def test_slices_of_a_base_class_are_refused(name: str) -> None:
    p = _params(slices={name: 2})
    p.cell_tpl[1] = CopyFieldsTo(p.cell_tpl[1], TwiceLayer.Params())
    with fails(path="pipe.slices") as info:
        p.Instantiate()
    assert "FProp of TwiceLayer" in str(info.value)
    assert sliceable_paths(p.cell_tpl)["cells[1]"] == 1


def test_tied_weights_have_the_same_slices() -> None:
    p = translation_task(tied=True).pipeline.Set(name="pipe", slices={"cells[0]": 2})
    with fails(path="pipe.slices", got="1 and 2"):
        p.Instantiate()
    p.slices = dict.fromkeys(("cells[0]", "cells[3]", "cells[6]"), 2)
    assert with_slices(p, "pipe").tied == {
        f"{tied}>{j}/{name}": f"source_embedding>{j}/embedding/w"
        for tied, name in (("target_embedding", "embedding/w"), ("logits", "w"))
        for j in (0, 1)
    }
    layer = p.Instantiate()
    assert layer.cells[-1].vars.w is layer.cells[1].vars.embedding.w


def test_cells_may_be_one_params_object() -> None:
    """All were given the name of the first."""
    cell = FCLayer.Params().Set(input_dim=DIM, output_dim=DIM)
    layer = _params(cell_tpl=[cell] * 3, slices={"cells[1]": 2}).Instantiate()
    names = [each.params.name for each in layer.cells]
    assert names == ["cells_0", "cells_1>0", "cells_1>1", "cells_2"]


def test_names_of_cells_are_no_paths() -> None:
    slices = {"encoder_1.feed_forward": 2}
    with fails(path="pipe.slices", got="encoder_1.feed_forward") as info:
        translation_task().pipeline.Set(name="pipe", slices=slices).Instantiate()
    assert "Did you mean 'cells[2].feed_forward'?" in str(info.value)


def test_all_that_can_be_cut_is_listed() -> None:
    paths = sliceable_paths(translation_task().pipeline.cell_tpl)
    assert paths["cells[0]"] == paths["cells[6]"] == 11
    assert paths["cells[4].memory_attention.body"] == paths["cells[4]"] == 2
    assert paths["cells[1].feed_forward"] == 8


def test_auto_leaves_what_fits_whole() -> None:
    layer = _limited(1.05 * _whole_bytes(), slices="auto").Instantiate()
    assert len(layer.cells) == 3


@pytest.mark.parametrize(
    ("share", "num_devices", "numbers_of_cells"),
    # The feed-forward layer by itself needs nearly all that the whole cells do.
    [(0.6, 3, [4]), exhaustive(1 / 3.5, 4, range(9))],
)
def test_auto_cuts_what_does_not_fit_into_as_few_slices_as_fit(
    share: float, num_devices: int, numbers_of_cells: Collection[int]
) -> None:
    limit = share * _whole_bytes()
    layer = _limited(limit, num_devices, slices="auto").Instantiate()
    assert len(layer.cells) in numbers_of_cells
    assert max(_peak_bytes(layer)) <= limit


def test_slices_between_others_are_traced_once() -> None:
    p = _limited(1e6)
    sliced = with_slices(p.Copy().Set(slices={"cells[1].body": 8}), "pipe")
    cells = trace_cells(sliced, p.devices[0])
    first, *between, last = cells.layers[1:9]
    assert len({layer.functions for layer in between}) == 1
    assert len({layer.functions for layer in (first, last, *between)}) == 3


def test_auto_cuts_a_cell_between_two_devices() -> None:
    """Each of five cells fits, but no two and a half; slices were not tried."""
    cell = FCLayer.Params().Set(input_dim=HIDDEN, output_dim=HIDDEN)
    p = PipeliningLayer.Params().Set(
        name="pipe",
        cell_tpl=[cell.Copy() for _ in range(5)],
        num_micro_batches=2,
        splits="auto",
        slices="auto",
        memory_limit=2.2e6,
        input_shapes=[(2, HIDDEN)],
        devices=stage_devices(None, 2),
    )
    assert len(p.Instantiate().cells) > 5


def test_other_weights_are_cut_beside_weights_tied_across_dimensions() -> None:
    """The search raised the error of slices that nobody set."""
    ff = FeedForwardLayer.Params().Set(dim=DIM, hidden_dim=DIM, name="ff")
    out = FCLayer.Params().Set(input_dim=DIM, output_dim=DIM, name="out")
    p = _limited(100.0).Set(cell_tpl=[ff, out], tied={"out/w": "ff/contract/w"})
    with pytest.raises(DoesNotFitError):
        p.Instantiate()


def test_a_refused_model_names_the_slices_that_fit() -> None:
    with fails(DoesNotFitError) as info:
        _limited(0.6 * _whole_bytes(), num_devices=3).Instantiate()
    assert "slices={'cells[1].body" in info.value.hint
    with fails(DoesNotFitError):
        _limited(0.03 * _whole_bytes(), num_devices=2, slices="auto").Instantiate()
