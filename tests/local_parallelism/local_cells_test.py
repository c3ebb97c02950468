"""Pipelines whose blocks have losses of their own, against blocks written out.

Shapes: B examples, D channels, N classes.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.local_parallelism.blocks import Block, make_blocks
from lingvo_pipe.local_parallelism.local_cells import local_pipeline
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.plain_model import by_path, bytes_of
from tests.support.cases import exhaustive, fast_cases
from tests.support.errors import fails

DIM, NUM_CLASSES, NUM_LAYERS, BATCH = 4, 3, 5, 6

SCHEMES: list[tuple[str, Any]] = [
    ("backpropagation", None),
    ("chunked", 2),
    ("greedy", None),
    ("overlapping", None),
]


def _dense(output_dim: int = DIM) -> InstantiableParams:
    activation = "TANH" if output_dim == DIM else "NONE"
    return FCLayer.Params().Set(
        input_dim=DIM, output_dim=output_dim, activation=activation
    )


def _cells() -> list[InstantiableParams]:
    return [*(_dense() for _ in range(NUM_LAYERS - 1)), _dense(NUM_CLASSES)]


def _plain(cells: list[InstantiableParams], **params: Any) -> InstantiableParams:
    p = PipeliningLayer.Params().Set(name="pipe", cell_tpl=cells, dtype=tf.float64)
    return p.Set(**params)


def _head(num_cells: int) -> InstantiableParams:
    """Returns a head for any number of cells before it."""
    return _dense(NUM_CLASSES).Set(
        input_dim=NUM_CLASSES if num_cells == NUM_LAYERS else DIM
    )


def _local(scheme: str, chunks: Any = None, **params: Any) -> InstantiableParams:
    blocks = make_blocks(scheme, NUM_LAYERS, chunks)
    return local_pipeline(_plain(_cells(), **params), blocks, _head)


def _batch() -> tuple[tf.Tensor, NestedMap]:
    x = tf.random.stateless_normal([BATCH, DIM], [0, 1], dtype=tf.float64)
    return x, NestedMap(label=tf.constant([0, 1, 2, 0, 1, 1]))


def _loss(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets.label, logits)
    return NestedMap(
        loss=(tf.reduce_mean(losses), tf.cast(tf.size(losses), tf.float64))
    )


def _step(layer: PipeliningLayer, do_eval: bool = False) -> NestedMap:
    x, targets = _batch()
    with ForwardContext(step=tf.constant(1, tf.int64), do_eval=do_eval):
        return layer.ComputeGradients(layer.vars, [x], targets, _loss)


def _written_out(
    values: dict[str, np.ndarray], blocks: list[Block]
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Returns gradients and losses of a tape for each block."""
    x, targets = _batch()
    total = {path: np.zeros_like(value) for path, value in values.items()}
    losses = {}
    for number, (begin, end, ahead) in enumerate(blocks):
        weights = {path: tf.constant(value) for path, value in values.items()}

        def dense(where: str, h: tf.Tensor, w: Any = weights) -> tf.Tensor:
            return h @ w[f"pipe/{where}/w"] + w[f"pipe/{where}/b"]

        with tf.GradientTape() as tape:
            tape.watch(weights)
            h = passed_on = x
            for i in range(begin, end + ahead):
                h = dense(f"cells_{i}", h)
                h = tf.tanh(h) if i < NUM_LAYERS - 1 else h
                passed_on = h if i < end else passed_on
            if number < len(blocks) - 1:
                last = f"/sub_{ahead}" if ahead else ""
                h = dense(f"local_{number}/head{last}", h)
            loss = _loss(h, targets).loss[0]
        for path, gradient in tape.gradient(loss, weights).items():
            if gradient is not None:
                total[path] += gradient.numpy()
        name = f"local_{number}_loss" if number < len(blocks) - 1 else "loss"
        losses[name] = float(loss)
        x = passed_on
    return total, losses


# Of the others, one is the plain model, and the blocks of `greedy` are simpler.
@pytest.mark.parametrize(
    ("scheme", "chunks"), fast_cases(SCHEMES, [("chunked", 2), ("overlapping", None)])
)
@pytest.mark.parametrize(
    "params",
    [exhaustive({}), {"splits": 2, "num_micro_batches": 3, "schedule": "local"}],
    ids=["one", "two"],
)
def test_gradients_are_those_of_the_blocks_written_out(
    scheme: str, chunks: Any, params: dict[str, Any]
) -> None:
    layer = _local(scheme, chunks, **params).Instantiate()
    result = _step(layer)
    found = by_path(layer, result.gradients)
    values = {path: v.numpy() for path, v in layer.VariablePaths().items()}
    want, losses = _written_out(values, make_blocks(scheme, NUM_LAYERS, chunks))
    assert found.keys() == want.keys()
    for path, gradient in want.items():
        np.testing.assert_allclose(found[path], gradient, rtol=1e-10, atol=1e-13)
        assert np.any(gradient), path
    assert set(result.metrics) == set(losses)
    for name, loss in losses.items():
        assert float(result.metrics[name][0]) == pytest.approx(loss, rel=1e-12)


WAYS: list[dict[str, Any]] = [
    {"splits": [1, 3, 4, 5], "num_micro_batches": 3, "schedule": "local"},
    {"splits": 2, "num_micro_batches": 3},
    {"splits": 5, "num_micro_batches": 3, "schedule": "1f1b", "recompute": [1, 3]},
]


@pytest.mark.parametrize("way", [WAYS[0], *map(exhaustive, WAYS[1:])], ids=str)
def test_bytes_do_not_depend_on_the_stages(way: dict[str, Any]) -> None:
    alone = _step(_local("overlapping", num_micro_batches=3).Instantiate())
    found = _step(_local("overlapping", **way).Instantiate())
    want, got = (bytes_of((x.gradients, x.metrics)) for x in (alone, found))
    assert got == want


@pytest.mark.parametrize(
    ("scheme", "chunks"), [*(exhaustive(*x) for x in SCHEMES[:3]), SCHEMES[3]]
)
def test_names_values_and_evaluations_are_those_of_the_plain_model(
    scheme: str, chunks: Any
) -> None:
    cells = _cells()
    cells[2].name = "own"
    blocks = make_blocks(scheme, NUM_LAYERS, chunks)
    plain = _plain(cells, splits=2).Instantiate()
    local = local_pipeline(_plain(cells, splits=2), blocks, _head).Instantiate()
    own = {k: v for k, v in local.VariablePaths().items() if "/local_" not in k}
    assert list(own) == list(plain.VariablePaths())
    for path, variable in plain.VariablePaths().items():
        assert variable.numpy().tobytes() == own[path].numpy().tobytes()
    x, targets = _batch()
    with ForwardContext(do_eval=True):
        found, want = (
            (
                layer.FProp(layer.theta, x),
                layer.ComputeMetrics(layer.vars, [x], targets, _loss),
            )
            for layer in (local, plain)
        )
    assert set(found[1]) == set(want[1])
    assert found[0].numpy().tobytes() == want[0].numpy().tobytes()
    assert found[1].loss[0].numpy() == want[1].loss[0].numpy()


def test_one_block_is_backpropagation() -> None:
    plain = _plain(_cells(), splits=2)
    assert _local("chunked", 1, splits=2) == plain
    assert _local("backpropagation", splits=2) == plain


def _names(p: InstantiableParams) -> list[list[str]]:
    """Returns the names of each stage's cells."""
    boundaries = p.splits
    names = [cell.name for cell in p.cell_tpl]
    return [names[a:b] for a, b in itertools.pairwise([0, *boundaries])]


@pytest.mark.parametrize(
    ("splits", "chunks", "want"),
    [
        (1, 2, ["0 1 2 L0 3 4"]),
        (2, 2, ["0 1 2 L0", "3 4"]),
        (3, [2, 4, 5], ["0 1 L0", "2 3 L1", "4"]),
        ([1, 2, 5], [2, 5], ["0", "1 L0", "2 3 4"]),
        ([4, 5], [1, 2, 5], ["0 L0 1 L1 2 3", "4"]),
    ],
)
def test_a_loss_stays_in_the_stage_of_the_cell_before(
    splits: Any, chunks: Any, want: list[str]
) -> None:
    found = _names(_local("chunked", chunks, splits=splits))
    short = [
        " ".join(n.replace("cells_", "").replace("local_", "L") for n in names)
        for names in found
    ]
    assert short == want
    assert _local("chunked", chunks, splits=splits).Instantiate().num_stages == len(
        want
    )


def test_lists_of_cells_are_of_the_models_own() -> None:
    params = {"recompute": [0, 1, 3], "offload": [2, 4]}
    p = _local("chunked", [2, 3, 5], schedule="1f1b", **params)
    names = [cell.name for cell in p.cell_tpl]
    recomputed = ["cells_0", "cells_1", "local_0", "cells_3"]
    assert [names[i] for i in p.recompute] == recomputed
    assert [names[i] for i in p.offload] == ["cells_2", "local_1", "cells_4"]


def test_automatic_stages_count_the_heads() -> None:
    auto = {"splits": "auto", "devices": ["cpu:0", "cpu:1"]}
    layer = _local("greedy", **auto, input_shapes=[(BATCH, DIM)]).Instantiate()
    assert layer.num_stages == 2
    assert layer.boundaries[-1] == 2 * NUM_LAYERS - 1
    with fails(path="cell_costs", got=[1] * NUM_LAYERS):
        _local("greedy", **auto, cell_costs=[1] * NUM_LAYERS)


def test_losses_are_not_put_in_twice() -> None:
    p = _local("greedy")
    with fails(path="cell_tpl", got="LocalLossLayers"):
        local_pipeline(p, make_blocks("greedy", len(p.cell_tpl)), _head)


def _norm_cells() -> list[InstantiableParams]:
    norm = BatchNormLayer.Params().Set(dim=DIM)
    return [SequentialLayer.Params().Set(sub=[_dense(), norm]) for _ in range(3)]


def test_state_of_a_copy_is_its_own() -> None:
    """The cell accumulates in its own pass alone; gradients come from both."""
    cells = [*_norm_cells(), _dense(NUM_CLASSES)]
    plain = _plain(cells).Instantiate()
    blocks = make_blocks("overlapping", len(cells))
    layer = local_pipeline(_plain(cells), blocks, lambda n: _dense(NUM_CLASSES))
    layer = layer.Instantiate()
    want, found = _step(plain), _step(layer)
    own = [i for i, c in enumerate(layer.cells) if not c.params.name.startswith("loc")]
    for i, sums in zip(own, want.accumulated.cells, strict=True):
        tf.nest.map_structure(
            np.testing.assert_allclose, found.accumulated.cells[i], sums
        )
    state = [k for k, v in layer.VariablePaths().items() if not v.trainable]
    assert "pipe/cells_1/sub_1/moving_mean" in state
    assert "pipe/local_0/head/sub_0/sub_1/moving_mean" in state
    trained = [k for k, v in layer.VariablePaths().items() if v.trainable]
    assert [k for k in trained if "/head/sub_0/" in k] == []


def test_the_weights_of_a_tied_cell_are_tied_on() -> None:
    """The second of four cells has the first's weights, and so has its copy."""
    cells = [*(_dense() for _ in range(3)), _dense(NUM_CLASSES)]
    tied = {f"cells_1/{name}": f"cells_0/{name}" for name in "wb"}
    plain = _plain(cells, tied=tied)
    blocks = make_blocks("overlapping", len(cells))
    layer = local_pipeline(plain, blocks, lambda n: _dense(NUM_CLASSES)).Instantiate()
    copy = layer.cells[1].head.sub[0]
    assert copy.vars.w is layer.cells[0].vars.w
    assert layer.cells[2].vars.w is layer.cells[0].vars.w


def test_layers_before_are_trained_with_the_first_block() -> None:
    p = _local("greedy", splits=2, before_tpl=[_dense()])
    layer = p.Instantiate()
    found = by_path(layer, _step(layer).gradients)["pipe/before_0/w"]
    x, targets = _batch()
    before, first, loss = layer.before[0], layer.cells[0], layer.cells[1]
    with tf.GradientTape() as tape:
        hidden = first.FProp(first.vars, before.FProp(before.vars, x))
        value = _loss(loss.head.FProp(loss.head.vars, hidden), targets).loss[0]
    want = tape.gradient(value, before.vars.w)
    np.testing.assert_allclose(found, want, rtol=1e-10, atol=1e-13)
