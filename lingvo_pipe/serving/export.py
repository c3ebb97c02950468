"""Export of a trained model for programs without this library.

    model = tf.saved_model.load("/tmp/digits/export/539")
    model.signatures["serving_default"](image=images)["probabilities"]

In the SavedModel the layers run one after another, on any device, for any number of
examples B.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from lingvo_pipe.core import trees
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.sequential import outputs_in_sequence
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.task.base_task import BaseTask

SIGNATURE = "serving_default"

Predict = Callable[..., dict[str, tf.Tensor]]


def export_model(task: BaseTask, element_spec: NestedMap, path: Path) -> None:
    """Writes a task's current weights and its predictions as a SavedModel.

    Its signature takes the fields of a batch that predictions depend on, by name, such
    as `image` or `source_ids`, and returns the task's `ServingOutputs`.

    `element_spec` has the tf.TensorSpec `[B, ...]` of each field of a batch. Writes the
    directory atomically, in place of an existing one.
    """
    specs = {
        name.replace(".", "_"): tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
        for name, spec in trees.leaves(element_spec)
    }

    def predict(**fields: tf.Tensor) -> dict[str, tf.Tensor]:
        # Predictions do not depend on missing fields.
        flat = [fields.get(name, tf.zeros([], specs[name].dtype)) for name in specs]
        return _predictions(task, tf.nest.pack_sequence_as(element_spec, flat))

    needed = _needed(predict, specs)
    module = tf.Module()
    module.model_variables = list(task.VariablePaths().values())
    signature = _traced(predict, {name: specs[name] for name in needed})
    scratch = path.with_name(f".{path.name}.incomplete")
    shutil.rmtree(scratch, ignore_errors=True)
    tf.saved_model.save(module, str(scratch), signatures={SIGNATURE: signature})
    shutil.rmtree(path, ignore_errors=True)
    os.replace(scratch, path)


def _predictions(task: BaseTask, batch: NestedMap) -> dict[str, tf.Tensor]:
    layers = [*task.pipeline.before, *task.pipeline.cells]
    with ForwardContext(do_eval=True):
        *_, outputs = outputs_in_sequence(
            layers, [layer.theta for layer in layers], task.PipelineInputs(batch)
        )
        return task.ServingOutputs(outputs)


def _traced(predict: Predict, specs: Mapping[str, tf.TensorSpec]) -> Any:
    named = {k: tf.TensorSpec(s.shape, s.dtype, name=k) for k, s in specs.items()}
    return tf.function(predict, autograph=False).get_concrete_function(**named)


def _needed(predict: Predict, specs: Mapping[str, tf.TensorSpec]) -> list[str]:
    """Returns the names of the tensors that predictions depend on."""
    function = _traced(predict, specs)
    pending, seen = list(tf.nest.flatten(function.structured_outputs)), set()
    while pending:
        operation = pending.pop().op
        if operation not in seen:
            seen.add(operation)
            pending += [*operation.inputs]
            pending += [o for c in operation.control_inputs for o in c.outputs]
    _, arguments = function.structured_input_signature
    tensors = zip(sorted(arguments), function.inputs, strict=False)
    return [name for name, tensor in tensors if tensor.op in seen]
