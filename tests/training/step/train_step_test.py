from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserNumberError
from lingvo_pipe.core.nests import spec_of
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.weights import SKIP_LP_REGULARIZATION, WeightParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.eval.evaluation import Evaluation
from lingvo_pipe.training.profiling.step_profile import measured_timeline
from lingvo_pipe.training.step.train_state import TrainState
from lingvo_pipe.training.step.train_step import TrainStep
from lingvo_pipe.training.task.base_task import BaseTask
from tests.layers.lingvo_layers import Norm
from tests.support.cases import exhaustive
from tests.support.errors import fails
from tests.training.toy_run import batch as toy_batch, published_params


class MeanTask(BaseTask):
    """A task that trains outputs towards 0, with a second metric."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("metric", "extra", "Name of a second metric.")
        p.pipeline.cell_tpl = [FCLayer.Params().Set(input_dim=2, output_dim=1)]
        p.train.learning_rate = 0.1
        return p

    def PipelineInputs(self, input_batch: NestedMap) -> list[tf.Tensor]:
        return [input_batch.x]

    def LossTargets(self, input_batch: NestedMap) -> NestedMap:
        return NestedMap(weight=input_batch.weight)

    def ComputeLoss(self, predictions: tf.Tensor, targets: NestedMap) -> NestedMap:
        loss = (tf.reduce_mean(predictions**2), tf.reduce_sum(targets.weight))
        return NestedMap({"loss": loss, self.params.metric: loss})


class StrayTask(MeanTask):
    """A task with a variable, a layer and an accumulator outside its pipeline."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("w", WeightParams([1]))
        self.RegisterAccumulator("seen", [])
        dense = FCLayer.Params().Set(input_dim=1, output_dim=1, has_bias=False)
        self.CreateChild("dense", dense)


class SkippingLayer(FCLayer):
    """A layer with a weight that declares that it does not decay."""

    def _CreateLayerVariables(self) -> None:
        skipped = WeightParams([2], collections=["any", SKIP_LP_REGULARIZATION])
        self.CreateVariable("scale", skipped)


def _batch() -> NestedMap:
    return NestedMap(x=tf.ones([4, 2]), weight=tf.ones([4]))


def _task(cls: Any = MeanTask, **params: Any) -> BaseTask:
    return cls.Params().Set(name="task", **params).Instantiate()


def test_state_outside_the_pipeline_is_rejected() -> None:
    """Nothing would train it."""
    with fails(path="task") as info:
        TrainStep(_task(StrayTask))
    assert info.value.got.startswith("['task/w', 'task/seen', 'task/dense/w']")


@pytest.mark.parametrize("by_stage", [False, True])
def test_weights_that_a_layer_excludes_do_not_decay(by_stage: bool) -> None:
    p = MeanTask.Params().Set(name="task", **{"train.l2_regularizer_weight": 0.5})
    p.pipeline.cell_tpl = [SkippingLayer.Params().Set(input_dim=2, output_dim=1)]
    task = p.Instantiate()
    before = {path: v.numpy() for path, v in task.VariablePaths().items()}
    (learner,) = TrainState(task, by_stage).learners.values()
    learner.Apply({path: tf.zeros(v.shape) for path, v in before.items()})
    for path, variable in task.VariablePaths().items():
        kept = 1.0 if path.endswith("scale") else 1.0 - 0.1 * 0.5
        np.testing.assert_allclose(variable, kept * before[path], rtol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["learning_rate", "gradient_norm"])
def test_a_steps_own_metrics_hide_no_other(name: str) -> None:
    step = TrainStep(_task(metric=name))
    with fails(path="ComputeLoss", got=[name]):
        step(_batch())
    metrics = TrainStep(_task())(_batch())
    assert float(metrics.learning_rate[0]) == pytest.approx(0.1)
    assert metrics.keys() == {"loss", "extra", "learning_rate", "gradient_norm"}


def test_a_name_that_cannot_be_logged_is_refused_before_the_first_step() -> None:
    task, spec = _task(metric="step"), tf.nest.map_structure(spec_of, _batch())
    for trace in (Evaluation(task).Trace, TrainStep(task).Trace):
        with fails(path="metrics", got=["step"]):
            trace(spec)


def test_a_step_has_the_times_of_its_operations() -> None:
    task = _task()
    step = TrainStep(task)
    assert step.Times() == []
    boundaries = [0.0]
    for _ in range(2):
        step(_batch())
        timeline = measured_timeline(task.pipeline.schedule, step.Times())
        assert timeline.schedule == task.pipeline.schedule
        boundaries.append(step.Times()[0].max())
    assert boundaries == sorted(set(boundaries))


def test_a_lingvo_layer_updates_its_state_after_each_step() -> None:
    """Its update takes no argument; it reads the sums from its accumulators."""
    p = MeanTask.Params().Set(name="task")
    p.pipeline.Set(cell_tpl=[Norm.Params().Set(dim=2)], num_micro_batches=2)
    task = p.Instantiate()
    step = TrainStep(task)
    for value in (3.0, 5.0):
        step(NestedMap(_batch(), x=tf.fill([4, 2], value)))
        moving = task.pipeline.cells[0].vars.moving_mean
        np.testing.assert_array_equal(moving, [value, value])


def test_frozen_variables_keep_their_values_and_have_no_slots() -> None:
    p = published_params()
    p.train.bprop_variable_exclusion = "/(in|norm)/"
    task = p.Instantiate()
    step = TrainStep(task)
    before = {path: v.numpy() for path, v in task.VariablePaths().items()}
    step(toy_batch(0))
    step(toy_batch(1))
    changed = {
        path.removeprefix("task/pipeline/")
        for path, v in task.VariablePaths().items()
        if not np.array_equal(v, before[path])
    }
    moving = {"norm/moving_mean", "norm/moving_variance"}
    assert changed == {"mid/w", "mid/b", "out/w", "out/b"} | moving
    of_others = {"global_step", *before}
    slots = [name for name in step.State() if name not in of_others]
    assert not [name for name in slots if "_in_w" in name or "gamma" in name]
    # Two slots and an average of each trained variable; two moving averages; the count.
    assert len(slots) == 3 * 4 + 2 + 1


@functools.cache
def _published_step(num_stages: int) -> tuple[TrainStep, dict[str, np.ndarray]]:
    """Returns a step of the published training, and the state before the first one."""
    step = TrainStep(published_params(num_stages=num_stages).Instantiate())
    return step, {name: np.array(v.numpy()) for name, v in step.State().items()}


def _restarted(num_stages: int) -> TrainStep:
    """Returns a step that several tests use, in its first state."""
    step, start = _published_step(num_stages)
    for name, variable in step.State().items():
        with tf.device(variable.device):
            variable.assign(start[name])
    return step


def test_evaluation_uses_the_averages() -> None:
    step = _restarted(2)
    task = step.task
    for seed in range(4):
        step(toy_batch(seed))
    data = [toy_batch(9)]
    got = Evaluation(task, step.EvalValues)(data)
    plain = Evaluation(task)
    assert plain(data) != got
    state = step.State()
    for path, variable in task.VariablePaths().items():
        variable.assign(state[f"{path}/ema"])
    assert plain(data) == got


def test_early_evaluations_agree_with_training() -> None:
    """Batch norm's moments are averaged over the same steps as the weights."""
    p = published_params()
    p.pipeline.cell_tpl[1].decay = 0.9997
    p.pipeline.num_micro_batches = 1
    p.train.Set(ema_decay=0.9999, ema_decay_moving_vars=False)
    task = p.Instantiate()
    step, data = TrainStep(task), toy_batch(1, scale=10.0)
    evaluation = Evaluation(task, step.EvalValues)
    for n in range(12):
        step(data)
        with ForwardContext(step=tf.constant(n, tf.int64)):
            metrics = task.ComputeMetrics(step.EvalValues(), data)
        expected = float(metrics.loss[0])
        assert n < 8 or evaluation([data])["loss"] == pytest.approx(expected, rel=0.2)


def _state(step: TrainStep) -> dict[str, bytes]:
    return {name: v.numpy().tobytes() for name, v in step.State().items()}


def bad_batches(example: int, value: float) -> NestedMap:
    batch = toy_batch(7)
    batch.image[example] = value
    return batch


@pytest.mark.parametrize("num_stages", [exhaustive(1), 2, exhaustive(4)])
def test_a_step_that_is_not_finite_changes_nothing(num_stages: int) -> None:
    """With weight decay, clipping, RMSProp, moving averages and batch norm."""
    step = _restarted(num_stages)
    for seed in range(2):
        step(toy_batch(seed))
    expected = _state(step)
    step = _restarted(num_stages)
    step(toy_batch(0))
    before = _state(step)
    pattern = r"step 2\b.*\bnan\b.*input\[0\].*\bnan\b"
    with pytest.raises(UserNumberError, match=pattern):
        step(bad_batches(3, np.nan))
    assert _state(step) == before
    step(toy_batch(1))
    assert int(step.global_step) == 2
    assert _state(step) == expected


class SteepTask(MeanTask):
    """A task with a finite loss whose slope is infinite at an output of 0."""

    def ComputeLoss(self, predictions: tf.Tensor, targets: NestedMap) -> NestedMap:
        mean = tf.reduce_mean(tf.sqrt(tf.abs(predictions)))
        return NestedMap(loss=(mean, tf.reduce_sum(targets.weight)))


def test_gradients_that_are_not_finite_are_an_error() -> None:
    task = _task(SteepTask)
    step = TrainStep(task)
    step(_batch())
    batch = NestedMap(_batch(), x=tf.zeros([4, 2]))
    pattern = (
        r"step 2\b.*\bgradient\b.*\b0\b.*\(stage 0\).*micro-batch 0\b.*"
        r"\b(inf|nan)\b.*\b4 of 4\.$"
    )
    task.vars.pipeline.cells[0].b.assign([0.0])
    before = _state(step)
    with pytest.raises(UserNumberError, match=pattern):
        step(batch)
    assert _state(step) == before
