"""KerasTask: a Keras model as a task, so that the trainer can train it.

    def Task(self):
        task = KerasTask.ParamsOf(digits_cnn, width=16)
        task.Set(loss="SparseCategoricalCrossentropy", metrics=["..."])
        task.pipeline.Set(splits=2, num_micro_batches=4)
        task.train.Set(learning_rate=0.01, max_steps=1000)
        return task

Shapes: B examples in a batch, b in a micro-batch.
"""

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import present
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.hyperparams.frozen_values import copy_value
from lingvo_pipe.keras.cells.model_function import (
    built_model,
    fingerprint,
    free_values,
)
from lingvo_pipe.keras.cells.placement import is_scratch_graph
from lingvo_pipe.keras.cells.private_names import get_mask, graph_of
from lingvo_pipe.keras.cells.refusals import check_for_learner
from lingvo_pipe.keras.cells.triples import first_inputs, packed_outputs
from lingvo_pipe.keras.keras_cell import KerasCell
from lingvo_pipe.keras.mixing.mixing import warn_of_mixing
from lingvo_pipe.layers.softmax_cross_entropy import weighted_means
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.image_checks import Size, check_images

_Values = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
_warn_once = functools.cache(warn_of_mixing)  # A model has several tasks.


class KerasTask(BaseTask):
    """A task that trains a Keras model in a pipeline. `ParamsOf` makes its params.

    The loss is the weighted mean of a Keras loss's values. Padding, masked values and
    an ignored class have weight 0. Regularizers and losses that layers add are added to
    the loss. A model with several outputs, or with another loss, needs a subclass that
    defines LossTargets and ComputeLoss.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params of the task, without the cells, which `ParamsOf` sets."""
        p = super().Params()
        p.Define(
            "loss",
            None,
            "Name of a class or function of keras.losses, such as mse; or a function "
            "of a module's top level, (targets, outputs) -> values `[b, ...]`.",
        )
        meaning = "Arguments of the class or function, such as {'from_logits': True}."
        p.Define("loss_arguments", {}, meaning)
        p.Define(
            "metrics",
            [],
            "Names of functions of keras.metrics whose means are reported, such as "
            "mae or accuracy, which Keras chooses by the shapes.",
        )
        p.Define(
            "inputs",
            "image",
            "Fields of a batch that the model takes, in the structure of its inputs: a "
            "name, a list or a dict.",
        )
        p.Define("targets", "label", "Field of a batch that the loss takes.")
        p.Define(
            "weights",
            "weight",
            "Field with a weight for each example, or each of its targets, 0 for "
            "padding; if None, all are 1.",
        )
        p.Define(
            "model_fingerprint",
            None,
            "Digest of the model's layers and their settings, from `ParamsOf`: a run "
            "is resumed only with the same one.",
        )
        return p

    @classmethod
    def ParamsOf(
        cls, model: Callable[..., keras.Model], /, **arguments: Any
    ) -> InstantiableParams:
        """Returns params of a task that trains a Keras model.

        Args:
            model: function of a module that returns a Sequential or functional model.
            **arguments: arguments of `model`. Each must have a text form.

        Raises:
            ValueError: if the model cannot be cut into cells.
        """
        built, cells, _ = built_model(model, arguments, None)
        cls.CheckModel(built)
        p, cell = cls.Params(), KerasCell.Params().Set(model=model, arguments=arguments)
        p.pipeline.Set(
            cell_tpl=[
                cell.Copy().Set(name=name, index=i)
                for i, name in enumerate(cells.cells)
            ],
            tied=cells.tied,
        )
        return p.Set(model_fingerprint=fingerprint(built))

    def __init__(self, params: InstantiableParams):
        first = _first_cell(params)
        if first is None:
            raise UserValueError(
                path=f"{params.name}.pipeline.cell_tpl",
                expected="the cells of a Keras model",
                got=params.pipeline.cell_tpl,
                hint=f"Make the params by {type(self).__name__}.ParamsOf(function).",
            )
        super().__init__(params)
        p = self.params
        seed = self.pipeline.cells[0].params.random_seed
        self._model = built_model(first.model, first.arguments, seed).model
        self.CheckModel(self._model)
        if p.pipeline.num_micro_batches != 1:
            _warn_once(self._model)
        self._values: dict[str, _Values] = {}
        if p.loss is not None:
            path = f"{self.path}.loss"
            self._values["loss"] = _loss(p.loss, dict(p.loss_arguments), path)
        for name in p.metrics:
            self._values[name] = _named(keras.metrics, name, f"{self.path}.metrics")
        if not is_scratch_graph():
            free_values()  # The task's variables have them.

    @classmethod
    def CheckModel(cls, model: keras.Model) -> None:
        """Raises ValueError if a model needs what only Keras's optimizers do."""
        check_for_learner(model)

    @classmethod
    def CheckInput(cls, p: InstantiableParams, input_generator: Any) -> None:
        """Raises ValueError if the images' channels or classes do not fit the model."""
        first = _first_cell(p)
        if first is None:
            return  # The constructor refuses it.
        model = built_model(first.model, first.arguments, None).model
        takes, gives = (
            Size(f"the Keras model's {x[0].name}", x[0].shape[-1])
            if x[0].shape[-1] is not None
            else None
            for x in (model.inputs, model.outputs)
        )
        is_sparse = "sparsecategorical" in str(p.loss).replace("_", "").lower()
        check_images(
            input_generator,
            takes if p.inputs == "image" else None,
            gives if is_sparse else None,
        )

    def PipelineInputs(self, input_batch: NestedMap) -> list[Any]:
        """Returns the model's inputs in the form that the first cell takes."""
        fields = tree.map_structure(input_batch.GetItem, copy_value(self.params.inputs))
        return first_inputs(self._model, fields)

    def LossTargets(self, input_batch: NestedMap) -> NestedMap:
        """Returns the batch's `targets`, and its `weights` or None."""
        p = self.params
        weights = None if p.weights is None else input_batch.GetItem(p.weights)
        return NestedMap(targets=input_batch.GetItem(p.targets), weights=weights)

    def OnlyInTraining(self) -> list[str]:
        """Returns what the loss includes in training and not in evaluations."""
        cells = (x for x in self.pipeline.Descendants() if isinstance(x, KerasCell))
        variables = (v for cell in cells for v in cell.params.calls.variables)
        is_random = any(v.draws[True] > v.draws[False] for v in variables)
        return ["random layers, such as dropout"] if is_random else []

    def Outputs(self, predictions: Any) -> Any:
        """Returns the last cell's outputs in the structure of the model's outputs."""
        return packed_outputs(graph_of(self._model), predictions)

    def ServingOutputs(self, predictions: Any) -> dict[str, tf.Tensor]:
        """Returns a dict of outputs, by the name of the Keras layer that makes each.

        Further outputs of the layer `head` are `head_1`, `head_2` and so on.
        """
        outputs: dict[str, tf.Tensor] = {}
        values = tree.flatten(self.Outputs(predictions))
        for name, value in zip(graph_of(self._model).output_names, values, strict=True):
            numbered = (f"{name}_{i}" for i in itertools.count(1))
            names = itertools.chain([name], numbered)
            outputs[next(x for x in names if x not in outputs)] = value
        return outputs

    def ComputeLoss(self, predictions: Any, targets: NestedMap) -> NestedMap:
        """Returns the weighted means of the `loss` and of the metrics, by name."""
        outputs = self.Outputs(predictions)
        if "loss" not in self._values or not tf.is_tensor(outputs):
            raise UserValueError(
                path=f"{self.path}.loss",
                expected="a loss of a model with one output",
                got=Words(
                    f"{self.params.loss!r} for {len(tree.flatten(outputs))} outputs"
                ),
                hint="Name one of keras.losses, or define ComputeLoss in a subclass.",
            )
        original_outputs = outputs
        outputs = tf.cast(outputs, tf.as_dtype(keras.config.floatx()))
        y = targets.targets
        if y.shape.rank == outputs.shape.rank - 1 and outputs.shape[-1] == 1:
            y = y[..., None]
        metrics = NestedMap()
        for name, function in self._values.items():
            raw = function(y, outputs)  # Has a mask if it ignores a class.
            values = tf.cast(raw, outputs.dtype)
            if not values.shape.rank and self.pipeline.params.num_micro_batches != 1:
                raise self._one_value_error(name)
            # Shaped by targets: the engine may need the weights' sum before outputs.
            weights = targets.weights
            weights = tf.ones(tf.shape(y)[:1]) if weights is None else weights
            weights = _repeated(weights, values)
            for mask in present([get_mask(original_outputs), get_mask(raw)]):
                weights *= _repeated(mask, values)
            metrics[name] = weighted_means(weights, value=values).value
        return metrics

    def _one_value_error(self, name: str) -> UserValueError:
        param, function = "metrics", name
        if name == "loss":
            param, function = "loss", self.params.loss
        return UserValueError(
            path=f"{self.path}.{param}",
            expected="functions with a value for each example, since they are given "
            "micro-batches",
            got=Words(f"{function}, whose value is one for all"),
            hint="Set num_micro_batches to 1, or use PipelinedModel.",
        )


def _first_cell(p: InstantiableParams) -> InstantiableParams | None:
    first = next(iter(p.pipeline.cell_tpl), None)
    is_keras = first is not None and first.cls is KerasCell and first.model is not None
    return first if is_keras else None


def _loss(loss: Any, arguments: dict[str, Any], path: str) -> _Values:
    if "reduction" in arguments:
        raise UserValueError(
            path=f"{path}_arguments['reduction']",
            expected="none, as the loss is the mean by the task's weights",
            got=arguments["reduction"],
        )
    resolved: Any = _named(keras.losses, loss, path) if isinstance(loss, str) else loss
    is_class = inspect.isclass(resolved)
    bound = functools.partial(resolved, **arguments)
    return bound().call if is_class else bound


def _named(module: Any, name: Any, path: str) -> Any:
    choices: dict[str, Any] = {
        key: x
        for key, x in vars(module).items()
        if inspect.isfunction(x) and key not in ("get", "serialize", "deserialize")
    }
    if module is keras.losses:
        choices |= {key: x for key, x in vars(module).items() if inspect.isclass(x)}
    else:
        choices |= {"accuracy": _accuracy, "acc": _accuracy}
    with contextlib.suppress(ValueError):  # Raised unless it abbreviates, such as mse.
        choices.setdefault(name, keras.losses.get(str(name)))
    if name not in choices:
        expected = f"a name of {module.__name__}, one of {sorted(choices)}"
        raise UserValueError(path=path, expected=expected, got=name, names=choices)
    return choices[name]


def _accuracy(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Returns the accuracy that Keras uses for targets and outputs of these shapes."""
    if outputs.shape[-1] == 1:
        return keras.metrics.binary_accuracy(y, outputs)
    if y.shape.rank < outputs.shape.rank or y.shape[-1] == 1:
        return keras.metrics.sparse_categorical_accuracy(y, outputs)
    return keras.metrics.categorical_accuracy(y, outputs)


def _repeated(x: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Repeats weights, of examples or of targets, to the shape of `values`."""
    x, sizes = tf.cast(x, values.dtype), values.shape[x.shape.rank :]
    return x[(..., *[None] * len(sizes))] * tf.ones(sizes, values.dtype)
