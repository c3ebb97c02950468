"""Results that are read often are in this process, wherever the stages are.

Each read of a tensor on a worker took 2 KiB of it: a step's metrics 10 KiB a step.
"""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.training.eval.evaluation import Evaluation
from lingvo_pipe.training.step.several_steps import SeveralSteps
from lingvo_pipe.training.step.train_step import TrainStep
from lingvo_pipe.training.task.base_task import BaseTask
from tests.training.toy_run import batch, published_params

SPEC = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), batch(0))


def _steps(task: BaseTask) -> Any:
    return TrainStep(task)._function.get_concrete_function(SPEC)


def _loop(task: BaseTask) -> Any:
    return SeveralSteps(task)._concrete(SPEC)


def _evaluation(task: BaseTask) -> Any:
    return Evaluation(task)._function.get_concrete_function(SPEC)


def _predictions(task: BaseTask) -> Any:
    return Evaluation(task)._predictions.get_concrete_function(SPEC)


@pytest.mark.parametrize("trace", [_steps, _loop, _evaluation, _predictions])
def test_results_are_on_this_host(trace: Any) -> None:
    p = published_params()
    p.pipeline.Set(devices=["cpu:1", "cpu:2"], splits=2)
    p.train.clip_gradient_norm_to_value = None
    graph = trace(p.Instantiate()).graph
    found = tf.nest.pack_sequence_as(graph.structured_outputs, graph.outputs)
    results = found[0] if isinstance(found, tuple) else found
    # TensorFlow ends a function with identities that have no device of their own.
    ends = [x if x.device else x.op.inputs[0] for x in tf.nest.flatten(results)]
    devices = {tf.DeviceSpec.from_string(x.device) for x in ends}
    assert {(each.device_type, each.device_index) for each in devices} == {("CPU", 0)}
