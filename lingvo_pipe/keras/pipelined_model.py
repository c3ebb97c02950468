"""PipelinedModel: a Keras model that `fit` trains on several devices as if on one.

    pipelined = PipelinedModel(model, devices=4, num_micro_batches=16)
    pipelined.compile("adam", loss=...)
    pipelined.fit(dataset)          # callbacks, evaluate and predict as in Keras
    pipelined.save("model.keras")   # the plain Keras model

From then on, the model's variables are on the devices of their stages. They remain the
model's variables, so its weights, checkpoints and callbacks see each step.

Shapes: B examples in the mini-batch.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.core.errors import UserTypeError
from lingvo_pipe.keras import pipelines
from lingvo_pipe.keras.cells import placement, private_names
from lingvo_pipe.keras.cells.model_cells import model_cells
from lingvo_pipe.keras.cells.refusals import (
    check_compilation,
    check_gradients,
    check_loss,
    check_model,
    check_params,
    check_steps,
)
from lingvo_pipe.keras.cells.triples import first_inputs, packed_outputs
from lingvo_pipe.keras.cut_model import CutModel
from lingvo_pipe.keras.generation import Generation
from lingvo_pipe.keras.loss import (
    apply_gradients,
    loss_scale,
    regularization,
    total_loss,
)
from lingvo_pipe.keras.loss_and_metrics import LossAndMetrics
from lingvo_pipe.keras.mixing.mixing import warn_of_layers, warn_of_normalization
from lingvo_pipe.keras.plain_attributes import preprocessing_kind
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.debug.diagnosis import may_be_diagnosed, naming


class PipelinedModel(CutModel):
    """A pipeline that trains a Keras model, `model`. Both share their variables."""

    train_function: Callable | None
    test_function: Callable | None
    predict_function: Callable | None
    _compilation: LossAndMetrics

    def __init__(
        self,
        model: keras.Model,
        devices: int | Sequence[str] | None = None,
        num_micro_batches: int = 1,
        batch_size: int | None = None,
        sequence_length: int | None = None,
        exact_losses: bool | str = "auto",
        offload_slots: bool = False,
        **params: Any,
    ):
        """Moves the model's variables to the devices of their stages.

        If the model is compiled, the pipelined model is compiled with the same
        arguments and optimizer state, except for options about how steps are run.

        Args:
            model: the model; it is shared, not copied.
            devices: the number of devices, or their names. Each stage of each replica
                has one device, unless `params` say otherwise. If None, `splits` decides
                the number. If `splits` is not given or is "auto", there is one device.
            num_micro_batches: M, the number of micro-batches in a mini-batch.
            batch_size: B. Required if stages are chosen by measured times or memory.
            sequence_length: the size of inputs' unknown dimensions, used to choose
                stages. If None, the length to which a KerasHub task pads its inputs.
            exact_losses: whether to compute losses from the outputs of the whole
                mini-batch, by one more forward pass. "auto" does so if a loss needs it.
            offload_slots: whether the optimizer's slots are in the memory of their
                devices' hosts, which then update the weights.
            **params: other params of a `PipeliningLayer`, such as schedule or splits.

        Raises:
            ValueError: if the model cannot be cut into cells, or a param is invalid.
            TypeError: if a param does not exist.
        """
        check_params(params, exact_losses, offload_slots)
        check_model(model)
        super().__init__(name=model.name, dtype=model.dtype_policy)
        self.__class__ = preprocessing_kind(type(self), type(model))
        private_names.global_seed()  # Made at its first use, which may be in a graph.
        self.model, self._exact_losses = model, exact_losses
        private_names.convert_inputs_as(model, self)
        self._offload_slots = offload_slots
        cells = model_cells(model)
        placed = pipelines.with_stages(params, devices, len(cells.cells))
        self._pipes = pipelines.Pipelines(
            model, num_micro_batches, batch_size, sequence_length, placed
        )
        self._cut(cells)
        placement.check_slots(model, offload_slots)
        if hasattr(model, "output_names"):  # Sequential models have none.
            self.output_names = model.output_names
        self.built = True
        warn_of_layers(model, num_micro_batches)
        if model.compiled:
            sampler = {"sampler": model.sampler} if hasattr(model, "sampler") else {}
            self.compile(**private_names.kept_arguments(model), **sampler)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Runs the model on one device, without the pipeline."""
        return self.model(inputs, training=training)

    def get_config(self) -> dict[str, Any]:
        """Raises TypeError, because only the plain model can be saved and cloned."""
        hint = "Use its attribute `model`; `save` writes that, too."
        raise UserTypeError("A PipelinedModel cannot be cloned or saved.", hint=hint)

    def compile(self, *args: Any, jit_compile: Any = False, **kwargs: Any) -> None:
        """Compiles as the model does. A built optimizer's state moves to the devices.

        Raises:
            ValueError: if an option is not supported.
        """
        bound = inspect.signature(self.model.compile).bind(*args, **kwargs)
        check_compilation({"jit_compile": jit_compile, **bound.arguments, **kwargs})
        self._pipes.warn_of_waiting(self.name)
        if self.pipeline.params.num_micro_batches > 1:
            warn_of_normalization(self.model)
        self._cut_again()  # Settings of layers may have changed.
        # The plain model is compiled too, so that its file contains the compilation.
        # KerasHub's models have defaults of their own.
        self.model.compile(*args, jit_compile=False, **kwargs)
        arguments = private_names.compile_arguments(self.model)
        super().compile(**arguments, jit_compile=False)
        self._place_slots()
        owners = *arguments.values(), kwargs.get("sampler"), self.metrics
        placement.initialize_others(owners)
        self.__dict__["_compilation"] = LossAndMetrics(
            self._compile_loss, self._compile_metrics, self._exact_losses
        )

    @tf.autograph.experimental.do_not_convert
    def train_step(self, data: Any) -> dict[str, Any]:
        """Trains on a mini-batch and returns the metrics."""
        data, optimizer = self._prepared(data, trains=True), self.optimizer
        scale, dtype = loss_scale(optimizer), self._compilation.dtype
        with self._context(trains=True):
            pipe, inputs, *args = self._pipeline_arguments(data, scale)
            self._pipes.warn_of_few(pipelines.num_examples_of(inputs))
            result = pipe.ComputeGradients(pipe.vars, inputs, *args)
            pipe.PostTrainingStepUpdate(result.accumulated)
        loss = apply_gradients(
            optimizer, self._weights, pipe.vars, result, scale, dtype
        )
        return self._results(data, loss, result.metrics)

    @tf.autograph.experimental.do_not_convert
    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluates a mini-batch and returns the metrics."""
        data = self._prepared(data, trains=False)
        with self._context(trains=False):
            pipe, *args = self._pipeline_arguments(data, None)
            metrics = pipe.ComputeMetrics(pipe.vars, *args)
        self._cells.move_seeds()
        loss = total_loss(metrics, self._compilation.dtype)
        for _, penalty, _ in regularization(self.model.trainable_variables):
            loss += tf.cast(penalty, loss.dtype)
        return self._results(data, loss, metrics)

    @tf.autograph.experimental.do_not_convert
    def predict_step(self, data: Any) -> Any:
        """Returns the model's outputs, `[B, ...]` each."""
        with tf.init_scope():
            self._cut_if_new()
        outputs = self._outputs(data)
        self._cells.move_seeds()
        return packed_outputs(private_names.graph_of(self.model), outputs)

    def generate(
        self, *args: Any, num_groups: int | None = None, **options: Any
    ) -> Any:
        """Generates as the model's own `generate` does, and on all devices at once.

        The tokens do not depend on `num_groups`. See `Generation` for its default.

        Raises:
            TypeError: if the model is no CausalLM or Seq2SeqLM of KerasHub.
            ValueError: if several groups would change its tokens, as in beam search.
        """
        self._cut_if_new()
        new = Generation(self.model, num_groups, len({*self.pipeline.devices}))
        key = "generate", num_groups, new.num_groups
        return self._made_for_cells.setdefault(key, new)(*args, **options)

    def make_train_function(self, force: bool = False) -> None:
        """Sets `train_function`. It trains what is trainable now. `fit` calls this."""
        is_new = self.train_function is None or force
        self._cut_if_new(trains=is_new)
        if is_new:
            self.train_function = self._new_function(self.train_step)

    def make_test_function(self, force: bool = False) -> None:
        """Sets `test_function`. `evaluate` calls this."""
        self._cut_if_new()
        if self.test_function is None or force:
            self.test_function = self._new_function(self.test_step)

    def make_predict_function(self, force: bool = False) -> None:
        """Sets `predict_function`. `predict` calls this."""
        self._cut_if_new()
        if self.predict_function is None or force:
            self.predict_function = self._new_function(self.predict_step)

    def _new_function(self, step: Callable[[Any], Any]) -> Callable[..., Any]:
        """Returns a function that runs `step` on the next element of an iterator.

        If `step` was traced before, it is traced anew: settings of layers may differ.
        """
        check_steps(self)
        if any(step in key for key in self._made_for_cells):
            self._cut_again()

        def run(iterator: Iterator[Any]) -> Any:
            data = tree.map_structure(pipelines.as_tensor, next(iter(iterator)))
            self._place_again()
            key = step, pipelines.text_of_specs(data)
            if key not in self._made_for_cells:
                # If the step made variables, tf.function would trace it twice.
                if step != self.predict_step:
                    self._prepared(data, trains=step == self.train_step)
                # Each shape has its own graph. If one tf.function held them all,
                # TensorFlow would warn of retracing.
                function = tf.function(step, autograph=False)
                traced = function.get_concrete_function(data)
                self._made_for_cells[key] = traced
            try:
                return self._made_for_cells[key](data)
            except tf.errors.OpError as error:
                if may_be_diagnosed(error):
                    with contextlib.suppress(FloatingPointError):
                        self._diagnose(step, data)
                with naming("a step"):
                    raise

        return run

    def _diagnose(self, step: Callable[[Any], Any], data: Any) -> None:
        """Reruns the layers and the loss of a failed step, to name the one that fails.

        Changes no variable, because the failed step may have changed them.
        """
        if step == self.predict_step:
            self._outputs(data)
            return
        trains = step == self.train_step
        scale = loss_scale(self.optimizer) if trains else None
        with self._context(trains):
            with keras.StatelessScope():  # For the metrics that track single losses.
                pipe, *args = self._pipeline_arguments(data, scale)
            pipe.Diagnose(pipe.vars, *args)

    def _context(self, trains: bool) -> ForwardContext:
        if not trains:
            return ForwardContext(do_eval=True)
        return ForwardContext(step=tf.cast(self.optimizer.iterations, tf.int64))

    def _prepared(self, data: Any, trains: bool) -> Any:
        """Returns a step's data as tensors. Builds what the step needs, the first time.

        The step may be called by a user's own loop, also in a tf.function.
        """
        data = tree.map_structure(pipelines.as_tensor, data)
        loss_key, slots_key = ("loss", pipelines.text_of_nesting(data)), ("slots",)
        with tf.init_scope():
            self._cut_if_new(trains and self.train_function is None)
            if trains and slots_key not in self._made_for_cells:
                check_gradients(self.model, self.pipeline.params.num_micro_batches)
                if not self.optimizer.built:  # A callback may have built it.
                    self.optimizer.build(self._weights)
                self._place_slots()
                self._made_for_cells[slots_key] = True
            if loss_key not in self._made_for_cells:
                self._build_compilation(data)
                self._made_for_cells[loss_key] = True
        return data

    def _build_compilation(self, data: Any) -> None:
        x, y, sample_weight = pipelines.specs_of(data)
        compilation, build = self._compilation, private_names.compute_output_spec
        specs = y, compilation.outputs(self.model, x), sample_weight
        check_loss(self._compile_loss, compilation.layers_add_losses)
        if self._compile_loss is not None:
            build(self._compute_loss, x, *specs, training=False)
        build(self.compute_metrics, x, *specs)
        number = self.pipeline.params.num_micro_batches
        compilation.choose_exactness(self.model, number, *specs)

    def _outputs(self, data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        inputs = first_inputs(self.model, x)
        pipe = self._pipes.for_examples(pipelines.num_examples_of(inputs))
        with self._context(trains=False):
            return pipe.FProp(pipe.vars, *inputs)

    def _pipeline_arguments(self, data: Any, scale: tf.Tensor | None) -> tuple:
        data = x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        inputs = first_inputs(self.model, x)
        num_examples = pipelines.num_examples_of(inputs)
        pipe, divisors, losses = self._pipes.for_examples(num_examples), None, None
        number = pipe.params.num_micro_batches
        compilation = self._compilation
        if compilation.is_exact:
            outputs = pipe.FProp(pipe.vars, *inputs)
            losses = compilation.whole(outputs, y, sample_weight)
        else:
            divisors = compilation.divisors(self.model, data, num_examples, number)
        scales = None if scale is None else tf.fill([num_examples], scale)
        targets = y, sample_weight, scales, divisors, losses
        return pipe, inputs, targets, compilation.loss_function(num_examples, number)

    def _results(self, data: Any, loss: tf.Tensor, sums: NestedMap) -> dict[str, Any]:
        _, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        self._loss_tracker.update_state(loss, sample_weight=pipelines.num_rows_of(data))
        self._compilation.update_metrics(sums, y, sample_weight)
        return self.get_metrics_result()
