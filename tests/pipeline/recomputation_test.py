"""Each policy of recomputation with each schedule: it works, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.pipelining_params import Layout, make_layout
from lingvo_pipe.pipeline.schedules.by_rule import gpipe, zero_bubble
from lingvo_pipe.pipeline.schedules.csv_file import write_csv
from lingvo_pipe.pipeline.schedules.recompute import POLICIES, recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind
from tests.pipeline.example_layers import gradients, loss_fn
from tests.support.errors import fails

DIM = 3
NUM_CELLS = 4


def _dense(num_in: int = DIM, num_out: int = DIM) -> InstantiableParams:
    return FCLayer.Params().Set(input_dim=num_in, output_dim=num_out)


def _params(**values: Any) -> InstantiableParams:
    p = PipeliningLayer.Params().Set(
        name="pipe", cell_tpl=[_dense() for _ in range(NUM_CELLS)]
    )
    return p.Set(**values)


PLAIN_FILES = {"plain.csv": gpipe(2, 3), "weights.csv": zero_bubble(2, 3)}
OTHER_FILES = {
    f"recomputed_{name}": recomputed(schedule, "except_last")
    for name, schedule in PLAIN_FILES.items()
}
FILES = PLAIN_FILES | OTHER_FILES
ALWAYS = ["gpipe", "1f1b", "interleaved"]
LISTS = [[], [1], [0, 3]]


def _layout(folder: Path, schedule: str, **values: Any) -> Layout:
    return make_layout(_for_schedule(folder, schedule, **values), "pipe")


def _for_schedule(folder: Path, schedule: str, **values: Any) -> InstantiableParams:
    if schedule in FILES:
        write_csv(FILES[schedule], folder / schedule)
        schedule = str(folder / schedule)
    per_device = 2 if schedule == "interleaved" else 1
    return _params(
        splits=2 * per_device,
        stages_per_device=per_device,
        num_micro_batches=3,
        schedule=schedule,
        **values,
    )


@pytest.mark.parametrize("schedule", [*ALWAYS, "zero_bubble", *PLAIN_FILES])
def test_a_schedule_that_recomputes_nothing_follows_each_policy(
    tmp_path: Path, schedule: str
) -> None:
    plain = _layout(tmp_path, schedule, recompute="never").schedule
    assert Kind.RECOMPUTE not in plain.kinds
    for policy in POLICIES:
        layout = _layout(tmp_path, schedule, recompute=policy)
        assert layout.schedule == recomputed(plain, policy)
        assert layout.recomputed == [True] * NUM_CELLS
    for cells in LISTS:
        layout = _layout(tmp_path, schedule, recompute=cells)
        assert layout.schedule == recomputed(plain, "always")
        assert layout.recomputed == [i in cells for i in range(NUM_CELLS)]
    default = "always" if schedule in ALWAYS else "never"
    assert _layout(tmp_path, schedule).schedule == recomputed(plain, default)


@pytest.mark.parametrize("schedule", OTHER_FILES)
def test_a_file_with_recomputation_keeps_it(tmp_path: Path, schedule: str) -> None:
    assert _layout(tmp_path, schedule).schedule == FILES[schedule]
    for cells in LISTS:
        layout = _layout(tmp_path, schedule, recompute=cells)
        assert layout.schedule == FILES[schedule]
        assert layout.recomputed == [i in cells for i in range(NUM_CELLS)]
    for policy in POLICIES:
        with fails(path="pipe.recompute", got=policy):
            _layout(tmp_path, schedule, recompute=policy)


def test_recomputation_changes_no_byte(tmp_path: Path) -> None:
    """A file defers weight gradients. `transparency_test` has the other schedules."""
    x = tf.random.stateless_normal([6, DIM], [1, 2])
    batch = [x], NestedMap(label=tf.range(6) % DIM, weight=tf.ones([6]))
    want = gradients(_for_schedule(tmp_path, "gpipe").Instantiate(), batch)
    layer = _for_schedule(tmp_path, "recomputed_weights.csv").Instantiate()
    assert Kind.RECOMPUTE in layer.schedule.kinds
    tf.nest.map_structure(np.testing.assert_array_equal, gradients(layer, batch), want)


def test_recomputation_with_deferred_weight_gradients_saves_memory() -> None:
    cells = [_dense(DIM, 64), _dense(64, 64), _dense(64, 64), _dense(64, DIM)]
    batch = (
        [tf.ones([64, DIM])],
        NestedMap(label=tf.zeros([64], tf.int32), weight=tf.ones([64])),
    )
    peaks = [
        _params(
            cell_tpl=cells,
            splits=2,
            num_micro_batches=4,
            schedule="zero_bubble",
            recompute=recompute,
        )
        .Instantiate()
        .PeakBytes(*batch, loss_fn)[0]
        for recompute in ("never", "always")
    ]
    assert peaks[1] < peaks[0]
