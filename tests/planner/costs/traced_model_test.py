"""The traced costs of a model equal the costs of its pipeline and its learner."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import tensorflow as tf

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.tracing.phases import Compilation, compilation
from lingvo_pipe.planner.costs import traced_model
from lingvo_pipe.planner.costs.device_needs import DeviceNeeds
from lingvo_pipe.planner.costs.model_costs import ModelCosts, at_rows
from lingvo_pipe.planner.costs.traced_model import ModelTracer, flops_models
from lingvo_pipe.planner.measured.measured_models import MeasuredModels
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.known_devices import DEVICES
from lingvo_pipe.training.optim.exponential_moving_average import make_averages
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from lingvo_pipe.training.optim.learner import Learner
from lingvo_pipe.training.task.base_task import BaseTask
from tests.registered_models.reduced_models import batches, reduced_params
from tests.support.cases import exhaustive
from tests.support.errors import fails

BATCH_SIZE, NUM_MICRO_BATCHES = 4, 2
TEXT, IMAGES = "lm.text.TransformerTiny", "image.digits.AmoebaNetDigits"


@functools.cache
def reduced(name: str) -> Any:
    return reduced_params(name)


Cells = str | tuple[int, ...]


@functools.cache
def reduced_costs(name: str) -> ModelCosts:
    params = reduced(name)
    spec = params.input.Instantiate().element_spec
    return ModelTracer(params.task, spec).trace(BATCH_SIZE // NUM_MICRO_BATCHES).costs


@pytest.mark.parametrize(
    ("name", "schedule", "recompute", "offload"),
    [
        (TEXT, "zero_bubble", "never", "never"),
        (TEXT, "gpipe", (0,), (1, 2)),
        exhaustive(TEXT, "1f1b", (0, 2), "never"),
        exhaustive(IMAGES, "gpipe", "never", (1,)),
        exhaustive(TEXT, "gpipe", "always", "never"),
        exhaustive(IMAGES, "1f1b", "always", "never"),
        exhaustive(TEXT, "gpipe", "never", "never"),
        exhaustive(TEXT, "1f1b", "always", "never"),
        exhaustive(IMAGES, "gpipe", "always", "never"),
        exhaustive(IMAGES, "gpipe", "never", "never"),
        exhaustive(IMAGES, "zero_bubble", "never", "never"),
    ],
)
def test_memory_is_that_of_the_pipeline(
    name: str, schedule: str, recompute: Cells, offload: Cells
) -> None:
    costs = reduced_costs(name)
    boundaries = [costs.num_cells - 2, costs.num_cells]
    params = reduced(name)
    p = params.task.Copy().Set(name="task")
    candidate = Candidate(1, 2, 1, NUM_MICRO_BATCHES, schedule, recompute, offload)
    p.pipeline.Set(**candidate.params(boundaries))
    task, batch = p.Instantiate(), next(batches(params))
    pipeline = task.pipeline
    arguments = task.PipelineInputs(batch), task.LossTargets(batch), task.ComputeLoss
    with ForwardContext(step=tf.constant(0, tf.int64)):
        expected = pipeline.PeakBytes(*arguments)
        sent = pipeline.BoundaryBytes(*arguments)
    found = DeviceNeeds(candidate, costs, pipeline.schedule).by_device(boundaries)
    stages = list(itertools.pairwise([0, *boundaries]))
    slots = [sum(costs.slot_bytes[a:b]) for a, b in stages]
    assert found == [sum(each) for each in zip(expected, slots, strict=True)]
    forward = sent[pipeline.devices[0], pipeline.devices[1]]
    assert costs.boundary_bytes[boundaries[0] - 1] * NUM_MICRO_BATCHES == forward


@pytest.mark.parametrize(
    ("optimizer", "averages"),
    [
        (OptimizerParams("SGD"), {}),
        exhaustive(OptimizerParams("SGD", momentum=0.9), {}),
        exhaustive(OptimizerParams("Adam"), {}),
        exhaustive(OptimizerParams("RMSpropFromOnes", momentum=0.9), {}),
        exhaustive(
            OptimizerParams("SGD"), {"ema_decay": 0.9, "ema_decay_moving_vars": True}
        ),
        (OptimizerParams("Adam"), {"ema_decay": 0.9, "ema_decay_moving_vars": False}),
    ],
)
@pytest.mark.parametrize("name", [TEXT, exhaustive(IMAGES)])
def test_slots_are_those_of_a_learner_and_averages(
    name: str, optimizer: Params, averages: dict[str, Any]
) -> None:
    p = reduced(name).task.Copy().Set(name="task")
    p.train.Set(optimizer=optimizer, **{"ema_decay": 0.0, **averages})
    task = p.Instantiate()
    trained = task.TrainedVariables()
    state = list(Learner(p.train, trained).State().values())
    if averages:
        own = make_averages(p.train, trained, task.VariablePaths())
        assert own is not None
        state += own.State().values()
    expected = sum(v.shape.num_elements() * v.dtype.size for v in state if v.shape.rank)
    spec = reduced(name).input.Instantiate().element_spec
    costs = ModelTracer(p, spec).trace(2).costs
    assert sum(costs.slot_bytes) == expected
    assert sum(costs.host_slot_bytes) == 0
    assert (expected == 0) == (optimizer == OptimizerParams("SGD") and not averages)
    numbers = [v.shape.num_elements() for v in trained.values()]
    assert sum(costs.num_parameters) == sum(numbers)


def test_slots_on_the_host_leave_only_averages_on_the_device() -> None:
    p, spec = reduced(TEXT).task.Copy(), reduced(TEXT).input.Instantiate().element_spec
    p.train.Set(ema_decay=0.9, ema_decay_moving_vars=False)
    p.train.optimizer = OptimizerParams("Adam")
    on_devices = ModelTracer(p, spec).trace(2).costs
    p.train.offload_slots = True
    tracer = ModelTracer(p, spec)
    costs = tracer.trace(2).costs
    assert costs.without_host.slot_bytes == on_devices.slot_bytes
    # Adam has two moments of each weight.
    assert costs.host_slot_bytes == [2 * n for n in costs.slot_bytes]
    assert sum(costs.slot_bytes) > 0
    on_cpu = MeasuredModels(tracer, "/job:localhost/replica:0/task:0/device:CPU:0")
    assert on_cpu.trace(2).costs.slot_bytes == on_devices.slot_bytes
    with fails(path="task.train.offload_slots"):
        flops_models(tracer, [DEVICES["T4"], DEVICES["TPUv4"]])


# Models, some with tied weights, and rows. With one row some tensors of an AmoebaNet
# have the shape of others.
MODELS = {
    "image.digits.AmoebaNetDigits": (4, 5),
    "lm.text.TransformerTiny": (1, 4, 5),
    "lm.giant.L3": (1, 4, 5),
    "mt.cldr.TransformerTiny": (1, 4, 5),
    "mt.wmt.TransformerBig": (1, 4, 5),
}


def whole(name: str) -> Any:
    return model_registry.GetParams(name, "Train")


def tracer_of(params: Any) -> ModelTracer:
    return ModelTracer(params.task, params.input.Instantiate().element_spec)


@pytest.mark.parametrize(
    ("make_params", "name"),
    [(reduced, TEXT), *(exhaustive(whole, name) for name in MODELS)],
)
def test_costs_of_other_rows_lie_on_a_line(make_params: Any, name: str) -> None:
    tracer = tracer_of(make_params(name))
    costs = {rows: tracer.trace(rows).costs for rows in {1, 2, 3, 5, *MODELS[name]}}
    single, a, b, many = (costs[rows] for rows in (1, 2, 3, 5))
    assert at_rows(a, b, 2) == a
    assert at_rows(a, b, 3) == b
    for num_rows in MODELS[name]:
        assert at_rows(a, b, num_rows) == costs[num_rows]
    assert minima(at_rows(a, b, 1)) == pytest.approx(minima(single), rel=0.01)
    assert minima(at_rows(single, many, 2)) == pytest.approx(minima(a), rel=0.01)


def minima(costs: ModelCosts) -> list[int]:
    """Returns what each cell and the loss need at least."""
    return [costs.memory.minimum(i, i + 1) for i in range(costs.num_cells + 1)]


@pytest.mark.parametrize(
    ("name", "parameters"), [exhaustive("L3", 282_178_816), ("L13", 785_761_536)]
)
def test_parameters_are_the_published_ones(name: str, parameters: int) -> None:
    """GPipe, table 1. Equal layers are traced once, and no weight is allocated."""
    costs = tracer_of(whole(f"lm.giant.{name}")).trace(1).costs
    assert sum(costs.num_parameters) == parameters
    layers = costs.calls[1:-3]  # The last one normalises what it makes.
    assert len(layers) == int(name[1:]) - 1
    assert len({(call.weights, call.residuals) for call in layers}) == 1


def test_layers_before_the_cells_are_refused() -> None:
    params = reduced("image.digits.AmoebaNetDigits").Copy()
    cells = params.task.pipeline.cell_tpl
    params.task.pipeline.Set(before_tpl=cells[:1], cell_tpl=cells[1:])
    with pytest.raises(ValueError, match=r"task\.pipeline\.before_tpl\b.*\b1\b"):
        ModelTracer(params.task, params.input.Instantiate().element_spec)


def unnamed_task(tied: dict[str, str]) -> InstantiableParams:
    """Returns a task of unnamed dense layers, the last one with another width."""
    params = model_registry.GetParams("image.digits.AmoebaNetDigits", "Train")
    cells = [
        FCLayer.Params().Set(input_dim=28 * 28, output_dim=6),
        *(FCLayer.Params().Set(input_dim=6, output_dim=6) for _ in range(4)),
        FCLayer.Params().Set(input_dim=6, output_dim=10),
    ]
    task = DigitsTask.Params().Set(train=params.task.train.Copy())
    task.pipeline.Set(cell_tpl=cells, tied=tied)
    return task


class DigitsTask(BaseTask):
    """A classifier of digits, from rows of numbers."""

    def PipelineInputs(self, batch: Any) -> tuple[tf.Tensor]:
        return (batch.rows,)

    def LossTargets(self, batch: Any) -> tf.Tensor:
        return batch.labels

    def ComputeLoss(self, outputs: tf.Tensor, targets: tf.Tensor) -> Any:
        picked = tf.gather(outputs, targets, axis=1, batch_dims=1)
        return NestedMap(loss=(tf.reduce_mean(picked), float(outputs.shape[0])))


DIGITS = NestedMap(
    rows=tf.TensorSpec([4, 28 * 28], tf.float32), labels=tf.TensorSpec([4], tf.int32)
)


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 4), exhaustive(1, 3), exhaustive(2, 3), exhaustive(2, 4)],
)
def test_cells_without_names_can_be_tied(first: int, second: int) -> None:
    """They are tied by their names in the whole pipeline; others do not change."""
    task = unnamed_task({f"cells_{second}/w": f"cells_{first}/w"})
    costs = ModelTracer(task, DIGITS).trace(2).costs
    whole = ModelTracer(unnamed_task({}), DIGITS).trace(2).costs
    numbers = list(whole.num_parameters)
    numbers[second] -= 6 * 6
    assert list(costs.num_parameters) == numbers
    model = task.Copy().Set(name="task").Instantiate()
    trained = model.TrainedVariables().values()
    assert sum(numbers) == sum(v.shape.num_elements() for v in trained)
    assert [cell.name for cell in task.pipeline.cell_tpl] == [""] * 6


@pytest.mark.parametrize(
    ("kind", "jit_compile"),
    [
        ("CPU", True),
        ("GPU", False),
        ("TPU", False),
        *[exhaustive("CPU", False), exhaustive("GPU", True), exhaustive("TPU", True)],
    ],
)
def test_cells_are_compiled_if_the_device_requires_it(
    kind: str, jit_compile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, str]] = []

    def spy(by_xla: bool, device: str) -> Compilation:
        asked.append((by_xla, device))
        return compilation(by_xla, device)

    monkeypatch.setattr(traced_model, "compilation", spy)
    name = f"/job:localhost/replica:0/task:0/device:{kind}:1"
    task = unnamed_task({})
    task.pipeline.jit_compile = jit_compile
    ModelTracer(task, DIGITS, name).trace(2)
    assert asked == [(jit_compile or kind == "TPU", name)]


class CheckedLayer(FCLayer):
    """A dense layer that only computes in bfloat16."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        assert self.fprop_dtype == tf.bfloat16
        return super().FProp(theta, x)


def test_flops_are_traced_in_the_dtype_of_the_model() -> None:
    task = unnamed_task({}).Set(fprop_dtype="bfloat16")
    task.pipeline.cell_tpl[1].cls = CheckedLayer
    costs = ModelTracer(task, DIGITS).trace(2).costs
    assert costs.flops[1] >= 2 * 2 * 6 * 6


def test_blocks_with_local_losses_are_refused() -> None:
    task = unnamed_task({})
    task.local.scheme = "greedy"
    with fails(path="task.local.scheme", got="greedy"):
        ModelTracer(task, DIGITS)


def test_a_frozen_layer_among_equal_ones_has_no_slots() -> None:
    params = model_registry.GetParams(TEXT, "Train")
    p = params.task.Set(name="task")
    p.train.bprop_variable_exclusion = "/layer_1/"
    spec = params.input.Instantiate().element_spec
    tracer = ModelTracer(p, spec)
    trained = p.Instantiate().TrainedVariables().values()
    assert tracer.num_parameters == sum(v.shape.num_elements() for v in trained)
