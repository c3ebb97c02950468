"""A stage stashes what its backward pass or its recomputation needs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import pytest
import tensorflow as tf

from lingvo_pipe.core.nests import map_present, spec_of
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.loops.stage import Stage, StageInputs
from lingvo_pipe.pipeline.loops.stash import StashSlot
from lingvo_pipe.pipeline.loops.traced_layers import TracedLayers
from lingvo_pipe.pipeline.schedules.slots import StashKind
from lingvo_pipe.pipeline.tracing.layer_function import LayerFunctions
from lingvo_pipe.pipeline.tracing.phases import Compilation
from lingvo_pipe.pipeline.tracing.trace import CallContext
from tests.pipeline.example_layers import pipeline
from tests.pipeline.small_transformer import (
    transformer_batch,
    transformer_cells,
    word_loss,
)

NUM_CELLS = 8
NOT_COMPILED = Compilation(by_xla=False, device=None)
CONTEXT = CallContext(
    path_hash=tf.TensorSpec([], tf.uint64),
    step=tf.TensorSpec([], tf.int64),
    first_example=tf.TensorSpec([], tf.int64),
    loss_scale=tf.TensorSpec([]),
)


@functools.cache
def _traced() -> TracedLayers:
    layer = pipeline(transformer_cells((NUM_CELLS - 2) // 2), 1, 1)
    batch = map_present(spec_of, transformer_batch(2))
    return TracedLayers(
        layer.cells,
        [map_present(spec_of, cell.vars) for cell in layer.cells],
        CONTEXT,
        (batch.words, batch.mask),
        NestedMap(label=batch.label, mask=batch.mask),
        LayerFunctions(do_eval=False, trains=True, loss_fn=word_loss),
        input_gradients=False,
    )


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros(spec.shape, spec.dtype)


class StashingStage(Stage):
    """A stage of some of the model's calls, and the bytes that it stashes."""

    def __init__(self, first: int, end: int, recomputed: Sequence[int]):
        traced = _traced()
        layers = traced.placed_layers([NOT_COMPILED] * (NUM_CELLS + 1))[first:end]
        super().__init__(layers, [i in recomputed for i in range(first, end)])
        outputs = {value for layer in layers for value in layer.values.made}
        self.specs = traced.specs
        self.incoming = {v for layer in layers for v in layer.used} - outputs
        residuals = [
            spec
            for layer, again in zip(layers, self.recomputed, strict=True)
            if not again
            for spec in layer.functions.phases.residuals
        ]
        recompute_inputs = [traced.specs[value] for value in self.recompute_inputs]
        self.num_bytes = sum(
            spec.shape.num_elements() * spec.dtype.size
            for spec in recompute_inputs + residuals
        )


every_stage = pytest.mark.parametrize(
    ("first", "end"), [(0, 4), (2, 6), (4, NUM_CELLS + 1), (0, NUM_CELLS + 1)]
)


@every_stage
def test_full_recomputation_stashes_the_stages_inputs_alone(
    first: int, end: int
) -> None:
    stage = StashingStage(first, end, range(first, end))
    assert set(stage.recompute_inputs) == stage.incoming
    assert stage.stashes[StashKind.FOR_RECOMPUTE].spec == []


@every_stage
def test_without_recomputation_no_inputs_are_stashed_for_it(
    first: int, end: int
) -> None:
    assert StashingStage(first, end, []).recompute_inputs == []


@every_stage
def test_each_recomputed_cell_shrinks_the_stash(first: int, end: int) -> None:
    """In order; the first needs the stage's inputs anyway."""
    sizes = [
        StashingStage(first, end, range(first, last)).num_bytes
        for last in range(first, end + 1)
    ]
    assert all(more > less for more, less in itertools.pairwise(sizes[1:]))
    assert sizes[-1] < sizes[0] / 4


@pytest.mark.parametrize(("first", "end"), [(0, 4), (2, 6), (4, NUM_CELLS + 1)])
def test_a_recomputation_leaves_out_the_stages_own_outputs(
    first: int, end: int
) -> None:
    """In a stage with the loss, those are the loss's."""
    _traced.cache_clear()  # The functions of other stages would be among its own.
    stage = StashingStage(first, end, range(first, end))
    with tf.Graph().as_default():
        values = {v: _zeros(stage.specs[v]) for v in stage.recompute_inputs}
        weights = [list(map(_zeros, x.functions.phases.weights)) for x in stage.layers]
        inputs = StageInputs(
            stage.pack_weights(weights),
            stage.pack_path_hashes(),
            map_present(_zeros, CONTEXT)._replace(path_hash=None),
        )
        kinds = StashKind.FOR_RECOMPUTE, StashKind.RESIDUALS
        stashes = [
            StashSlot(stage.empty_stash(kind, tf.constant(1)), tf.constant(0))
            for kind in kinds
        ]
        stage.recompute(inputs, values, *stashes)
    with_outputs, without = (
        {
            layer.functions
            for layer in stage.layers
            for name, arguments in layer.functions.functions
            if name == "recompute" and f"'makes_outputs': {makes}" in arguments
        }
        for makes in (True, False)
    )
    *others, last = [layer.functions for layer in stage.layers]
    assert with_outputs == set(others)
    assert without == {last}


def test_a_recomputation_starts_from_the_outputs_of_cells_before() -> None:
    """Though the cells before are not recomputed themselves."""
    stage = StashingStage(0, 4, [2])
    assert stage.recompute_inputs == stage.layers[2].used
