"""PipelinedModel: a Keras model that `fit` trains on several devices as if on one.

    pipelined = PipelinedModel(model, devices=4, num_micro_batches=16)
    pipelined.compile("adam", loss=...)
    pipelined.fit(dataset)          # callbacks, evaluate and predict as in Keras
    pipelined.save("model.keras")   # the plain Keras model

The model's variables live on the devices of their stages from then on; they are the
same variables for Keras, so its weights, checkpoints and callbacks see each step.

Shapes: B examples in the mini-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging
from keras import tree

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.keras.compilation import Compilation, packed_outputs
from lingvo_pipe.keras.keras_cell import first_inputs
from lingvo_pipe.keras.loss import regularization
from lingvo_pipe.keras.mixing import warn_of_mixing
from lingvo_pipe.keras.model_cells import ModelCells, model_cells
from lingvo_pipe.keras.pipelines import Pipelines
from lingvo_pipe.keras.private_names import (
    compute_output_spec,
    graph_of,
)
from lingvo_pipe.keras.refusals import (
    check_compilation,
    check_loss,
    check_model,
)
from lingvo_pipe.keras.stages import with_stages
from lingvo_pipe.keras.step_function import step_function
from lingvo_pipe.keras.summary import summary_lines
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer


class PipelinedModel(keras.Model):
    """Trains a Sequential or functional Keras model by a pipeline."""

    train_function: Callable | None
    test_function: Callable | None
    predict_function: Callable | None
    _cells: ModelCells
    _compilation: Compilation

    def __init__(
        self,
        model: keras.Model,
        devices: int | Sequence[str] = 1,
        num_micro_batches: int = 1,
        batch_size: int | None = None,
        **params: Any,
    ):
        """Moves the model's variables to the devices of their stages.

        Args:
            model: the model; it is shared, not copied.
            devices: number or names of all devices, one for each stage of each replica
                unless `params` say otherwise.
            num_micro_batches: M, micro-batches of a mini-batch.
            batch_size: B, by which stages are chosen if by measured times or memory.
            **params: other params of a `PipeliningLayer`, such as schedule, splits,
                recompute or num_replicas.

        Raises:
            ValueError: if the model cannot be cut, or a param is not valid.
        """
        check_model(model)
        super().__init__(name=model.name)
        self.model = model
        cells = model_cells(model)
        placed = with_stages(params, devices, len(cells.cells))
        self._pipes = Pipelines(graph_of(model), num_micro_batches, batch_size, placed)
        self._cut(cells)
        if hasattr(model, "output_names"):  # Sequential models have none.
            self.output_names = model.output_names
        self.built = True
        if num_micro_batches > 1:
            warn_of_mixing(model)

    @property
    def pipeline(self) -> PipeliningLayer:
        """The pipeline that full mini-batches run through."""
        return self._pipes.of_full_size

    def summary(self, print_fn: Callable[[str], Any] = print) -> None:
        """Prints the cells with their stages, devices, layers and parameters.

        `model.summary` prints the layers.

        Args:
            print_fn: called with each line.
        """
        cells = list(self._cells.cells.values())
        for line in summary_lines(self.name, self.pipeline, cells):
            print_fn(line)

    # What is the model's own.

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Runs the model on one device, without the pipeline."""
        return self.model(inputs, training=training)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Saves the plain Keras model; see keras.Model.save."""
        self.model.save(*args, **kwargs)

    def save_weights(self, *args: Any, **kwargs: Any) -> None:
        """Saves the plain model's weights; see keras.Model.save_weights."""
        self.model.save_weights(*args, **kwargs)

    def load_weights(self, *args: Any, **kwargs: Any) -> None:
        """Loads the plain model's weights; see keras.Model.load_weights."""
        self.model.load_weights(*args, **kwargs)

    # Training.

    def compile(
        self,
        optimizer: Any = "rmsprop",
        *args: Any,
        jit_compile: Any = False,
        **kwargs: Any,
    ) -> None:
        """Sets optimizer, loss and metrics; see keras.Model.compile.

        A built optimizer, such as a loaded model's, is copied with its state, because
        Keras cannot show it that variables have moved.

        Raises:
            ValueError: if an option is not supported, such as steps_per_execution.
        """
        check_compilation(jit_compile, kwargs)
        if self.pipeline.params.num_micro_batches == 1 < self.pipeline.num_stages:
            logging.warning(
                "%s: with num_micro_batches=1 stages wait for one another, and several "
                "devices are no faster than one.",
                self.name,
            )
        if [v.trainable for v in self.model.variables] != self._trained:
            self._cut(model_cells(self.model))
        optimizer = keras.optimizers.get(optimizer)
        if optimizer.built:
            optimizer = _copied(optimizer, self.trainable_variables)
        super().compile(optimizer, *args, jit_compile=False, **kwargs)
        # So that it is saved with the model.
        self.model.compile(self.optimizer, *args, jit_compile=False, **kwargs)
        # Keras tracks attributes that it knows; this one it need not look into.
        self.__dict__["_compilation"] = Compilation(
            graph_of(self.model), self._compile_loss, self._compile_metrics
        )

    def train_step(self, data: Any) -> dict[str, Any]:
        """Trains on a mini-batch; returns the metrics."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        inputs = self._inputs(x)
        num_examples = _num_examples(inputs)
        pipe = self._pipes.for_examples(num_examples)
        scale = self._loss_scale(num_examples)
        targets = (y, sample_weight, scale, self._divisors(data, num_examples))
        with ForwardContext(step=tf.cast(self.optimizer.iterations, tf.int64)):
            loss_fn = self._loss_function(num_examples)
            result = pipe.ComputeGradients(pipe.vars, inputs, targets, loss_fn)
            pipe.PostTrainingStepUpdate(result.accumulated)
        loss = self._apply(pipe, result)
        self._loss_tracker.update_state(loss, sample_weight=num_examples)
        self._compilation.update_metrics(result.metrics, y, sample_weight)
        return self.get_metrics_result()

    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluates a mini-batch; returns the metrics."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        inputs = self._inputs(x)
        num_examples = _num_examples(inputs)
        pipe = self._pipes.for_examples(num_examples)
        targets = (y, sample_weight, None, self._divisors(data, num_examples))
        with ForwardContext(do_eval=True):
            loss_fn = self._loss_function(num_examples)
            metrics = pipe.ComputeMetrics(pipe.vars, inputs, targets, loss_fn)
        loss = _total_loss(metrics)
        for _, penalty, _ in regularization(self.trainable_variables):
            loss += penalty
        self._loss_tracker.update_state(loss, sample_weight=num_examples)
        self._compilation.update_metrics(metrics, y, sample_weight)
        return self.get_metrics_result()

    def predict_step(self, data: Any) -> Any:
        """Returns the model's outputs, `[B, ...]` each."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        inputs = self._inputs(x)
        pipe = self._pipes.for_examples(_num_examples(inputs))
        with ForwardContext(do_eval=True):
            return packed_outputs(graph_of(self.model), pipe.FProp(pipe.vars, *inputs))

    def make_train_function(self, force: bool = False) -> None:
        """Sets `train_function`, which takes an iterator; fit calls this."""
        if self.train_function is None or force:
            self.train_function = step_function(
                self.train_step, self.run_eagerly, self._build_compilation
            )

    def make_test_function(self, force: bool = False) -> None:
        """Sets `test_function`; evaluate calls this."""
        if self.test_function is None or force:
            self.test_function = step_function(
                self.test_step, self.run_eagerly, self._build_compilation
            )

    def make_predict_function(self, force: bool = False) -> None:
        """Sets `predict_function`; predict calls this."""
        if self.predict_function is None or force:
            self.predict_function = step_function(self.predict_step, self.run_eagerly)

    # Private.

    def _cut(self, cells: ModelCells) -> None:
        """Makes the pipeline of cells, cut by what is trainable now."""
        # Keras tracks attributes; these are none of its business.
        self.__dict__["_cells"] = cells
        self.__dict__["_trained"] = [v.trainable for v in self.model.variables]
        self._pipes.make(cells)

    def _build_compilation(self, data: Any) -> None:
        """Makes the state of the optimizer, the loss and the metrics."""
        check_loss(self._compile_loss)
        x, y, sample_weight = tree.map_structure(
            lambda x: None if x is None else keras.KerasTensor(x.shape, x.dtype.name),
            keras.utils.unpack_x_y_sample_weight(data),
        )
        if not self._compile_loss.built or (
            self._compile_metrics is not None and not self._compile_metrics.built
        ):
            outputs = compute_output_spec(self.model, x, training=False)
            compute_output_spec(
                self._compute_loss, x, y, outputs, sample_weight, training=False
            )
            compute_output_spec(self.compute_metrics, x, y, outputs, sample_weight)
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)

    def _inputs(self, x: Any) -> list[Any]:
        """Returns the inputs of the first cell."""
        return first_inputs(graph_of(self.model), x)

    def _divisors(self, data: Any, num_examples: int) -> list[tf.Tensor | None] | None:
        data = keras.utils.unpack_x_y_sample_weight(data)
        number = self._pipes.number_for(num_examples)
        return self._compilation.divisors(self.model, data, num_examples, number)

    def _loss_scale(self, num_examples: int) -> tf.Tensor | None:
        """Returns `[B]`, the optimizer's loss scale for each example, if it has one."""
        if not isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            return None
        scale = self.optimizer.scale_loss(tf.ones([]))
        return tf.fill([num_examples], scale)

    def _loss_function(self, num_examples: int) -> Callable[..., NestedMap]:
        number = self._pipes.number_for(num_examples)
        return self._compilation.loss_function(num_examples, number)

    def _apply(self, pipe: PipeliningLayer, result: NestedMap) -> tf.Tensor:
        """Updates the weights; returns the loss with all that is added to it."""
        scale = self._loss_scale(1)
        loss = _total_loss(result.metrics)
        if scale is not None:
            loss /= scale[0]
        flat = tf.nest.flatten(pipe.vars), tf.nest.flatten(result.gradients)
        gradients = {v.ref(): g for v, g in zip(*flat, strict=True) if g is not None}
        penalties = {}
        for v, penalty, gradient in regularization(self.trainable_variables):
            loss += penalty
            factor = 1.0 if scale is None else scale[0]
            penalties[id(v)] = gradient * tf.cast(factor, gradient.dtype)
        pairs = []
        for v in self.trainable_variables:
            gradient = gradients[v.value.ref()]
            if id(v) in penalties:
                gradient += penalties[id(v)]
            pairs.append((gradient, v))
        self.optimizer.apply_gradients(pairs)
        return loss


def _copied(
    optimizer: keras.Optimizer, variables: Sequence[keras.Variable]
) -> keras.Optimizer:
    """Returns an optimizer for variables with the state of one for the same ones."""
    made = type(optimizer).from_config(optimizer.get_config())
    made.build(variables)
    for new, old in zip(made.variables, optimizer.variables, strict=True):
        new.assign(old)
    return made


def _total_loss(metrics: NestedMap) -> tf.Tensor:
    """Returns the loss with what layers add to it."""
    loss = metrics.loss[0]
    return loss + metrics.keras_losses[0] if "keras_losses" in metrics else loss


def _num_examples(inputs: Sequence[Any]) -> int:
    """Returns B."""
    sizes = {x.shape[0] for x in inputs if x is not None}
    if len(sizes) != 1 or None in sizes:
        raise UserValueError(
            path="inputs",
            expected="inputs with the same number of examples, known before the step",
            got=sorted(sizes, key=str),
        )
    return sizes.pop()
