from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.weight_params import WeightParams
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.evaluation import Evaluation
from lingvo_pipe.training.step_profile import measured_timeline
from lingvo_pipe.training.train_step import TrainStep


class MeanTask(BaseTask):
    """Trains outputs towards zero; metrics are named by `metric`."""

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
    """Has a variable, a layer and an accumulator that the pipeline does not know."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateVariable("w", WeightParams([1]))
        self.RegisterAccumulator("seen", [])
        dense = FCLayer.Params().Set(input_dim=1, output_dim=1, has_bias=False)
        self.CreateChild("dense", dense)


def _batch(weight: float = 1.0) -> NestedMap:
    return NestedMap(x=tf.ones([4, 2]), weight=tf.fill([4], weight))


def _task(cls: Any = MeanTask, **params: Any) -> BaseTask:
    return cls.Params().Set(name="task", **params).Instantiate()


def test_state_outside_the_pipeline_is_refused() -> None:
    """Nothing would train it."""
    words = r"\['task/w', 'task/seen', 'task/dense/w'\] are not"
    with pytest.raises(ValueError, match=words):
        TrainStep(_task(StrayTask))


def test_the_learning_rate_hides_no_metric() -> None:
    step = TrainStep(_task(metric="learning_rate"))
    with pytest.raises(ValueError, match="must not be called 'learning_rate'"):
        step(_batch())
    metrics = TrainStep(_task())(_batch())
    assert float(metrics.learning_rate[0]) == pytest.approx(0.1)
    assert metrics.keys() == {"loss", "extra", "learning_rate"}


def test_a_step_tells_when_its_operations_ran() -> None:
    task = _task()
    step = TrainStep(task)
    assert step.Times() == []
    ends = [0.0]
    for _ in range(2):
        step(_batch())
        timeline = measured_timeline(task.pipeline.schedule, step.Times())
        assert timeline.schedule == task.pipeline.schedule
        ends.append(step.Times()[0].max())
    assert ends == sorted(set(ends))


def test_an_evaluation_in_which_nothing_counts_is_refused() -> None:
    evaluation = Evaluation(_task())
    assert evaluation([_batch()]).keys() == {"loss", "extra"}
    with pytest.raises(ValueError, match=r"total weight of \['extra', 'loss'\] is 0"):
        evaluation([_batch(weight=0.0)])
