"""A Keras model to plan, from a function that returns it.

The model's loss is not known here. Its costs are taken from a loss that reads each
number of the outputs once, as usual losses do.

Shapes: B rows in a mini-batch.
"""

from __future__ import annotations

import collections
import importlib
import math
import os
import sys
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.keras.cells.model_function import built_model
from lingvo_pipe.keras.cells.private_names import flat_layers, graph_of, is_graph
from lingvo_pipe.models.keras.keras_task import KerasTask
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation
from lingvo_pipe.planner.search.plan_report import device_names
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams

# Arguments of optimizers on which the number of slots depends.
_SLOT_ARGUMENTS = ("momentum", "centered", "amsgrad", "gradient_accumulation_steps")
# Ours has smaller slots. Keras's also keeps the second moment of each weight.
_COUNTED_AS = {"Adafactor": "RMSprop"}


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

    @classmethod
    def CheckModel(cls, model: keras.Model) -> None:
        """Accepts all, since Keras's optimizers train the model."""

    @property
    def fprop_dtype(self) -> tf.DType:
        """The dtype in which the most weights are used."""
        sizes: collections.Counter[str] = collections.Counter()
        for layer in flat_layers(self._model):
            if not is_graph(layer):
                number = sum(math.prod(v.shape) for v in layer.weights)
                sizes[layer.compute_dtype] += number
        ((dtype, _),) = sizes.most_common(1)
        return tf.as_dtype(dtype)


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
    if not all(map(str.isidentifier, module.split("."))):
        expected = "a module's name, such as my_models.vision, and no file's"
        raise UserValueError(path=flag, expected=expected, got=module)
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # The module imports what is missing.
        expected = "a module in this folder, or an installed package"
        raise UserValueError(path=flag, expected=expected, got=module) from error
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

    The optimizer has the slots of the compiled model's, or else Adam's. `length` is the
    size of dimensions that the model leaves open, beside the rows. Errors put `prefix`
    before the names of the arguments.

    Raises:
        ValueError: if a size is missing or has no use, the model cannot be cut into
            cells, or its optimizer is not Keras's.
    """
    if not callable(function) or isinstance(function, keras.Model):
        expected = "a function that returns a Keras model"
        raise UserValueError(path="model", expected=expected, got=function)
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
    task.inputs = tree.map_structure(field, graph_of(model).input)
    if length is not None and all(None not in x.shape[1:] for x in model.inputs):
        expected = "None, since no input has open dimensions beside the rows"
        raise UserValueError(path=f"{prefix}length", expected=expected, got=length)
    optimizer = model.optimizer if model.compiled else keras.optimizers.Adam()
    _set_optimizer(task.train, getattr(optimizer, "inner_optimizer", optimizer))
    p = Params()
    p.Define("task", task, "The task.")
    input_params = SpecInput.Params().Set(batch_size=batch_size, fields=fields)
    p.Define("input", input_params, "The input.")
    return p


def _set_optimizer(train: Params, optimizer: keras.optimizers.Optimizer) -> None:
    """Sets params of an optimizer that has as many slots as Keras's."""
    name = type(optimizer).__name__
    if type(optimizer) is not getattr(keras.optimizers, name, None):
        raise UserValueError(
            path="compile(optimizer=...)",
            expected="one of keras.optimizers, whose slots are known",
            got=Words(name),
            hint="For the plan, compile with one that has as many slots.",
        )
    config = optimizer.get_config()
    arguments = {x: config[x] for x in _SLOT_ARGUMENTS if config.get(x)}
    train.Set(
        optimizer=OptimizerParams(_COUNTED_AS.get(name, name), **arguments),
        learning_rate=1.0,
        ema_decay=config["ema_momentum"] if config["use_ema"] else 0.0,
        ema_decay_moving_vars=False,  # Keras averages trainable variables alone.
    )


def pipelined_model_call(best: Evaluation, offloads_slots: bool) -> list[str]:
    """Returns the lines of Python that make a PipelinedModel run this way."""
    values = {"devices": device_names(best) or best.candidate.total_devices}
    values |= best.candidate.params(best.boundaries)
    values |= {"offload_slots": True} if offloads_slots else {}
    arguments = [f"    {name}={value!r}," for name, value in values.items()]
    return ["model = lp.keras.PipelinedModel(", "    model,", *arguments, ")"]
