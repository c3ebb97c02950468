"""A pipeline made by hand takes `auto`, and gets what the trainer picks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.splitting.cell_costs import CellSeconds
from lingvo_pipe.planner.measured import resolve_auto as resolve_auto_module
from lingvo_pipe.planner.measured.resolve_auto import extract_auto, resolve_auto
from lingvo_pipe.planner.measured.resolve_pipeline import resolve_pipeline
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.training.task.pipeline_inputs import (
    batch_placeholders,
    configure_inputs,
)
from tests.planner.made_up_machine import replace_times
from tests.planner.made_up_model import made_up_device
from tests.registered_models.reduced_models import reduced_params
from tests.support.cases import exhaustive
from tests.support.errors import fails

NAMES = ("num_micro_batches", "schedule", "recompute")
AUTO: dict[str, Any] = dict.fromkeys(NAMES, "auto")
SET = (*NAMES, "splits", "stages_per_device", "input_shapes", "input_dtypes")
BATCH_SIZE, DIM, NUM_STEPS = 8, 4, 3


def seconds(calls: Sequence[Any], *_: Any) -> list[CellSeconds]:
    """Returns a second more for each cell than for the one before."""
    return [CellSeconds(i + 1.0, 2.0 * i + 2.0) for i in range(len(calls))]


def device(names: Sequence[str]) -> DeviceModel:
    return made_up_device(10**9)


@pytest.fixture(autouse=True)
def not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures no devices."""
    replace_times(monkeypatch, seconds)
    monkeypatch.setattr(resolve_auto_module, "machine_device", device)


GIVEN = [
    {**AUTO, "num_micro_batches": 2, "memory_limit": 10**8},
    exhaustive(AUTO),
    exhaustive({**AUTO, "num_replicas": 2}),
    {"splits": "auto"},
    {"memory_limit": 10**8},
]


@pytest.mark.parametrize("given", GIVEN)
def test_it_becomes_what_the_trainer_picks(given: dict[str, Any]) -> None:
    params = reduced_params("lm.text.TransformerTiny")
    data = params.input.Instantiate()
    devices = stage_devices(None, 2)
    task = params.task.Copy().Set(name="task")
    task.pipeline.Set(**{"splits": "auto", "devices": devices, **given})
    by_hand = task.pipeline.Copy().Set(name="pipe")

    names, lines = extract_auto(task.pipeline), list[str]()
    if names:
        spec, size = data.element_spec, params.input.batch_size
        line = resolve_auto(task, names, spec, size, devices, lines.append).line
    else:
        line = ""
    configure_inputs(task, data)

    with tf.Graph().as_default():
        whole = params.task.Copy().Set(name="task")
        whole.pipeline.Set(splits=1, num_micro_batches=1)
        made = whole.Instantiate()
        batch = batch_placeholders(data.element_spec)
        inputs, targets = made.PipelineInputs(batch), made.LossTargets(batch)
        specs = tf.nest.map_structure(
            lambda x: None if x is None else tf.TensorSpec(x.shape, x.dtype),
            (tuple(inputs), targets),
        )
    given_inputs, given_targets = specs
    found = resolve_pipeline(
        by_hand, given_inputs, given_targets, made.ComputeLoss, task.train
    )
    assert found == line
    assert bool(found) == bool(names)
    assert {x: by_hand.Get(x) for x in SET} == {x: task.pipeline.Get(x) for x in SET}
    assert by_hand.splits == "auto" or "auto" not in [by_hand.Get(x) for x in NAMES]


def squared_error(outputs: tf.Tensor, targets: tf.Tensor) -> NestedMap:
    rows = tf.cast(tf.shape(targets)[-1], tf.float32)
    return NestedMap(loss=(tf.reduce_mean(tf.square(outputs - targets)), rows))


def dense(**values: Any) -> InstantiableParams:
    cell = FCLayer.Params().Set(input_dim=DIM, output_dim=DIM)
    p = PipeliningLayer.Params().Set(name="pipe", cell_tpl=[cell] * 4, splits="auto")
    return p.Set(**{"devices": stage_devices(None, 2), **AUTO, **values})


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_the_layer_trains_as_planned(batch_dim: int) -> None:
    """The examples may be in another dimension of the samples."""
    shape = [NUM_STEPS, BATCH_SIZE] if batch_dim else [BATCH_SIZE, NUM_STEPS]
    x, y = tf.ones([*shape, DIM]), tf.zeros([*shape, DIM])
    p = dense(batch_dim=batch_dim)
    line = resolve_pipeline(p, [x], y, squared_error)
    assert f"M={p.num_micro_batches} " in line
    assert BATCH_SIZE % p.num_micro_batches == 0
    layer = p.Instantiate()
    assert layer.boundaries == p.splits
    with ForwardContext(step=tf.constant(0, tf.int64)):
        result = layer.ComputeGradients(layer.theta, [x], y, squared_error)
    assert result.metrics.loss[0] > 0


def test_without_auto_it_stays() -> None:
    p = dense(splits=2, num_micro_batches=2, schedule="1f1b", recompute="never")
    before = p.ToText()
    x = tf.ones([BATCH_SIZE, DIM])
    assert resolve_pipeline(p, [x], x, squared_error) == ""
    assert p.ToText() == before


def test_slots_of_the_optimizer_count() -> None:
    train = reduced_params("lm.text.TransformerTiny").task.train
    x = tf.ones([BATCH_SIZE, DIM])
    needs = []
    for each in (None, train):
        line = resolve_pipeline(dense(), [x], x, squared_error, each)
        needs.append(float(line.split(" idle")[1].split(", ")[1].split()[0]))
    assert needs[0] < needs[1]


@pytest.mark.parametrize("rows", [BATCH_SIZE + 1, None])
def test_samples_have_one_number_of_rows(rows: int | None) -> None:
    x, y = tf.TensorSpec([BATCH_SIZE, DIM]), tf.TensorSpec([rows, DIM])
    with fails(path="pipe", got=sorted([str(BATCH_SIZE), str(rows)])):
        resolve_pipeline(dense(), [x], y, squared_error)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"devices": None}, r"^pipe\.devices\b.*None"),
        ({"splits": 2}, r"^pipe\.splits\b.* 2\b"),
        ({"memory_limit": 100}, r"\bpipe\.memory_limit=100\b"),
        ({"before_tpl": [FCLayer.Params()]}, r"^pipe\.before_tpl\b.*\b1\b"),
    ],
)
def test_problems_name_the_layers_own_path(values: dict[str, Any], words: str) -> None:
    x = tf.ones([BATCH_SIZE, DIM])
    with pytest.raises(UserValueError, match=words):
        resolve_pipeline(dense(**values), [x], x, squared_error)
