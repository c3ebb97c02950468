"""What a stage keeps between a forward pass and its backward."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.optional_nest import map_present, spec_of
from lingvo_pipe.pipeline.assembly import Assembly
from lingvo_pipe.pipeline.loops.stage import Stage
from lingvo_pipe.pipeline.tracing.layer_function import LayerFunctions
from lingvo_pipe.pipeline.tracing.phases import Compilation
from lingvo_pipe.pipeline.tracing.trace import Surroundings
from tests.pipeline.example_layers import pipeline
from tests.pipeline.small_transformer import (
    transformer_batch,
    transformer_cells,
    word_loss,
)

NUM_CELLS = 8
NOT_COMPILED = Compilation(by_xla=False, device=None)


def _assembly() -> Assembly:
    layer = pipeline(transformer_cells((NUM_CELLS - 2) // 2), 1, 1)
    batch = map_present(spec_of, transformer_batch(2))
    return Assembly(
        layer.cells,
        [map_present(spec_of, cell.vars) for cell in layer.cells],
        Surroundings(
            path_hash=tf.TensorSpec([], tf.uint64),
            step=tf.TensorSpec([], tf.int64),
            first_example=tf.TensorSpec([], tf.int64),
            loss_scale=tf.TensorSpec([]),
        ),
        (batch.words, batch.mask),
        NestedMap(label=batch.label, mask=batch.mask),
        word_loss,
        LayerFunctions(do_eval=False, trains=True),
        input_gradients=False,
    )


class Keeping:
    """A stage of some of the model's calls, and what it keeps where it recomputes."""

    def __init__(self, first: int, end: int, recomputed: Sequence[int]):
        assembly = _assembly()
        calls = assembly.stage_calls([NOT_COMPILED] * (NUM_CELLS + 1))[first:end]
        again = [i in recomputed for i in range(first, end)]
        self.stage = Stage(calls, again)
        made = {value for call in calls for value in call.call.made}
        self.incoming = {v for call in calls for v in call.used} - made
        residuals = [
            spec
            for call, recomputes in zip(calls, again, strict=True)
            if not recomputes
            for spec in call.functions.phases.residuals
        ]
        saved = [assembly.specs[value] for value in self.stage.saved]
        self.num_bytes = sum(
            spec.shape.num_elements() * spec.dtype.size for spec in saved + residuals
        )


STAGES = [(0, 4), (2, 6), (4, NUM_CELLS + 1), (0, NUM_CELLS + 1)]


@pytest.mark.parametrize(("first", "end"), STAGES)
def test_where_all_is_recomputed_the_stages_inputs_alone_are_kept(
    first: int, end: int
) -> None:
    keeping = Keeping(first, end, range(first, end))
    assert set(keeping.stage.saved) == keeping.incoming
    assert keeping.stage.kept.handles == []


@pytest.mark.parametrize(("first", "end"), STAGES)
def test_where_nothing_is_recomputed_no_inputs_are_kept_for_it(
    first: int, end: int
) -> None:
    assert Keeping(first, end, []).stage.saved == []


@pytest.mark.parametrize(("first", "end"), STAGES)
def test_each_cell_that_is_recomputed_shrinks_what_is_kept(
    first: int, end: int
) -> None:
    """Of the cells in order; the first needs the stage's inputs anyway."""
    sizes = [
        Keeping(first, end, range(first, last)).num_bytes
        for last in range(first, end + 1)
    ]
    assert all(more > less for more, less in itertools.pairwise(sizes[1:]))
    assert sizes[-1] < sizes[0] / 4


def test_a_recomputation_starts_from_what_cells_before_made() -> None:
    """Though they are not recomputed themselves."""
    stage = Keeping(0, 4, [2]).stage
    (call,) = stage.calls[2:3]
    assert stage.saved == call.used
