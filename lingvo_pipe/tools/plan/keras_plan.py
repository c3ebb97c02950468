"""A Keras model to plan, from a function that returns it.

The model's loss is not known here. Its costs are taken from a loss that reads each
number of the outputs once, as usual losses do.

Shapes: B rows in a mini-batch.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.keras.cells.model_function import built_model
from lingvo_pipe.models.keras.keras_task import KerasTask
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation
from lingvo_pipe.training.optim.keras_optimizer import (
    OptimizerParams,
    optimizer_classes,
)

_DEFAULT_OPTIMIZER = "Adam"


class PlannedKerasTask(KerasTask):
    """A task whose loss is the sum of the means of a Keras model's outputs."""

    def LossTargets(self, input_batch: NestedMap) -> NestedMap:
        """Returns no targets."""
        return NestedMap()

    def ComputeLoss(self, predictions: Any, targets: NestedMap) -> NestedMap:
        """Returns the `loss`."""
        outputs = tree.flatten(self.Outputs(predictions))
        means = [tf.reduce_mean(tf.cast(x, tf.float32)) for x in outputs]
        return NestedMap(loss=(tf.add_n(means), tf.constant(1.0)))


class SpecInput:
    """An input of which only the shapes are known."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = InstantiableParams(cls)
        p.Define("batch_size", None, "B.")
        p.Define("fields", {}, "Shape and dtype of each field of a batch.")
        return p

    def __init__(self, params: InstantiableParams):
        self.element_spec = NestedMap(
            {k: tf.TensorSpec(*field) for k, field in params.fields.items()}
        )


def function_of(path: str, flag: str) -> Callable[[], keras.Model]:
    """Returns the function `module:function`, from this folder or an installed package.

    Raises:
        ValueError: if there is no such function.
    """
    module, _, name = path.partition(":")
    if not module or not name:
        expected = "a module and its function, such as my_models.vision:make_model"
        raise UserValueError(path=flag, expected=expected, got=path)
    sys.path.insert(0, os.getcwd())
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        expected = f"a function of the module {module}"
        raise UserValueError(path=flag, expected=expected, got=name)
    return function


def keras_params(
    function: Callable[[], keras.Model],
    batch_size: int | None,
    length: int | None,
    prefix: str = "",
) -> Params:
    """Returns params of a Keras model that `function` returns: `task` and `input`.

    The optimizer is of the compiled model's class, or else Adam.

    Args:
        function: function that returns the model, and takes no arguments.
        batch_size: B.
        length: the size of dimensions that the model leaves open, beside the rows.
        prefix: what errors put before the names of the arguments.

    Raises:
        ValueError: if a size is missing, or the model cannot be cut into cells.
    """
    if batch_size is None:
        name = f"{prefix}batch" if prefix else "batch_size"
        raise UserValueError(path=name, expected="rows of a mini-batch", got=None)
    model = built_model(function, {}, None).model
    fields: dict[str, tuple[list[Any], str]] = {}

    def field(x: Any) -> str:
        sizes = [batch_size, *(length if n is None else n for n in x.shape[1:])]
        if None in sizes:
            raise UserValueError(
                path=f"{prefix}length",
                expected=f"the size of open dimensions, as in {x.name!r}: {x.shape}",
                got=None,
            )
        name = f"input_{len(fields)}"
        fields[name] = sizes, x.dtype
        return name

    task = PlannedKerasTask.ParamsOf(function)
    task.inputs = tree.map_structure(field, model.input)
    optimizer = type(model.optimizer).__name__ if model.compiled else ""
    if optimizer not in optimizer_classes():
        optimizer = _DEFAULT_OPTIMIZER
    task.train.Set(optimizer=OptimizerParams(optimizer), learning_rate=1.0)
    p = Params()
    p.Define("task", task, "The task.")
    input_params = SpecInput.Params().Set(batch_size=batch_size, fields=fields)
    p.Define("input", input_params, "The input.")
    return p


def pipelined_model_call(best: Evaluation) -> list[str]:
    """Returns the lines of Python that make a PipelinedModel run this way."""
    values = {"devices": best.candidate.total_devices}
    values |= best.candidate.params(best.boundaries)
    arguments = [f"    {name}={value!r}," for name, value in values.items()]
    return ["model = lp.keras.PipelinedModel(", "    model,", *arguments, ")"]
