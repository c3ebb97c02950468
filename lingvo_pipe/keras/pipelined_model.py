"""PipelinedModel: a Keras model that `fit` trains on several devices as if on one.

    pipelined = PipelinedModel(model, devices=4, num_micro_batches=16)
    pipelined.compile("adam", loss=...)
    pipelined.fit(dataset)          # callbacks, evaluate and predict as in Keras
    pipelined.save("model.keras")   # the plain Keras model

From then on, the model's variables are on the devices of their stages. They remain the
model's variables, so its weights, checkpoints and callbacks see each step.

Shapes: B examples in the mini-batch.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.core.errors import UserTypeError
from lingvo_pipe.keras import pipelines
from lingvo_pipe.keras.cells import placement, private_names
from lingvo_pipe.keras.cells.model_cells import ModelCells, model_cells, trainable_flags
from lingvo_pipe.keras.cells.refusals import (
    check_compilation,
    check_gradients,
    check_loss,
    check_model,
    check_params,
    check_steps,
    check_summary,
)
from lingvo_pipe.keras.cells.triples import first_inputs, packed_outputs
from lingvo_pipe.keras.generation import Generation
from lingvo_pipe.keras.loss import (
    apply_gradients,
    loss_scale,
    regularization,
    total_loss,
)
from lingvo_pipe.keras.loss_and_metrics import LossAndMetrics
from lingvo_pipe.keras.mixing.mixing import warn_of_layers, warn_of_normalization
from lingvo_pipe.keras.plain_attributes import PlainAttributes, preprocessing_kind
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.debug.diagnosis import may_be_diagnosed, naming
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer


class PipelinedModel(PlainAttributes):
    """A pipeline that trains a Keras model, `model`. Both share their variables."""

    train_function: Callable | None
    test_function: Callable | None
    predict_function: Callable | None
    _cells: ModelCells
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
            self.compile(**private_names.compile_arguments(model), **sampler)

    @property
    def pipeline(self) -> PipeliningLayer:
        """The pipeline that full mini-batches run through."""
        return self._pipes.of_full_size

    def summary(
        self, *args: Any, print_fn: Callable[[str], Any] = print, **options: Any
    ) -> None:
        """Prints the cells' stages, devices, layers and parameters by `print_fn`.

        Raises:
            TypeError: if other options of Keras's summary are given.
        """
        check_summary([*args, *options])
        cells = list(self._cells.cells.values())
        for line in pipelines.summary_lines(self.name, self.pipeline, cells):
            print_fn(line)

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
        self._cut(model_cells(self.model))  # Settings of layers may have changed.
        # The plain model is compiled too, so that its file contains the compilation.
        # KerasHub's models have defaults of their own.
        self.model.compile(*args, jit_compile=False, **kwargs)
        arguments = private_names.compile_arguments(self.model)
        super().compile(**arguments, jit_compile=False)
        self._place_slots()
        placement.initialize_others([*arguments.values(), kwargs.get("sampler")])
        self.__dict__["_compilation"] = LossAndMetrics(
            private_names.graph_of(self.model),
            self._compile_loss,
            self._compile_metrics,
            self._exact_losses,
        )

    def train_step(self, data: Any) -> dict[str, Any]:
        """Trains on a mini-batch and returns the metrics."""
        self._pipes.warn_of_few(pipelines.num_rows_of(data))
        scale = loss_scale(self.optimizer)
        with ForwardContext(step=tf.cast(self.optimizer.iterations, tf.int64)):
            pipe, *args = self._pipeline_arguments(data, scale)
            result = pipe.ComputeGradients(pipe.vars, *args)
            pipe.PostTrainingStepUpdate(result.accumulated)
        loss = apply_gradients(self.optimizer, self._weights, pipe.vars, result, scale)
        return self._results(data, loss, result.metrics)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluates a mini-batch and returns the metrics."""
        with ForwardContext(do_eval=True):
            pipe, *args = self._pipeline_arguments(data, None)
            metrics = pipe.ComputeMetrics(pipe.vars, *args)
        self._cells.move_seeds()
        loss = total_loss(metrics)
        for _, penalty, _ in regularization(self.model.trainable_variables):
            loss += penalty
        return self._results(data, loss, metrics)

    def predict_step(self, data: Any) -> Any:
        """Returns the model's outputs, `[B, ...]` each."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        inputs = first_inputs(self.model, x)
        pipe = self._pipes.for_examples(pipelines.num_examples_of(inputs))
        with ForwardContext(do_eval=True):
            outputs = pipe.FProp(pipe.vars, *inputs)
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
        self._place_again()
        new = Generation(self.model, num_groups, len({*self.pipeline.devices}))
        key = "generate", num_groups, new.num_groups
        return self._traced.setdefault(key, new)(*args, **options)

    def make_train_function(self, force: bool = False) -> None:
        """Sets `train_function`. It trains what is trainable now. `fit` calls this."""
        if self.train_function is None or force:
            check_gradients(self.model, self.pipeline.params.num_micro_batches)
            if trainable_flags(self.model) != self._trained:
                self._cut(model_cells(self.model))
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

    def _cut(self, cells: ModelCells) -> None:
        weights, flags = self.model.trainable_variables, trainable_flags(self.model)
        ids = set(map(id, self.model.variables))
        # Set so that Keras does not track them.
        self.__dict__.update(_cells=cells, _weights=weights, _trained=flags, _ids=ids)
        self._place()

    def _cut_if_new(self) -> None:
        """Makes new cells if the model's variables were replaced, such as by LoRA."""
        if self._ids != set(map(id, self.model.variables)):
            self._cut(model_cells(self.model))

    def _place(self) -> None:
        """Makes the pipelines. This moves variables to the devices of their stages."""
        variables = [v.variable for v in self._cells.variables]
        before = placement.Storage(variables)
        self._pipes.make(self._cells)
        storage = placement.Storage(variables)
        self.__dict__.update(_traced={}, _storage=storage)
        if before.has_moved:
            placement.forget_functions(self.model)

    def _place_again(self) -> None:
        """Moves the variables back if another PipelinedModel has moved them."""
        if self._storage.has_moved:
            placement.warn_of_turns(self.name)
            self._place()
            if self.compiled:
                self._place_slots()

    def _place_slots(self) -> None:
        placement.place_slots(self.optimizer, self.model.variables, self._offload_slots)

    def _new_function(self, step: Callable[[Any], Any]) -> Callable[..., Any]:
        """Returns a function that runs `step` on the next element of an iterator.

        If `step` was traced before, it is traced anew: settings of layers may differ.
        """
        check_steps(self)
        if any(step in key for key in self._traced):
            self._cut(model_cells(self.model))

        def run(iterator: Iterator[Any]) -> Any:
            data = tree.map_structure(pipelines.as_tensor, next(iter(iterator)))
            self._place_again()
            key, traced = (step, pipelines.text_of_specs(data)), self._traced
            is_new = self.run_eagerly or key not in traced
            if is_new and step != self.predict_step:
                self._build_compilation(data)
            if is_new and step == self.train_step:
                if not self.optimizer.built:  # A callback may have built it.
                    self.optimizer.build(self._weights)
                self._place_slots()
            if self.run_eagerly:
                return step(data)
            if key not in traced:
                # Each shape has its own graph. If one tf.function held them all,
                # TensorFlow would warn of retracing.
                function = tf.function(step, autograph=False)
                traced[key] = function.get_concrete_function(data)
            try:
                return traced[key](data)
            except tf.errors.OpError as error:
                if may_be_diagnosed(error):
                    step(data)  # Run eagerly, the pipeline names the layer that fails.
                with naming("a step"):
                    raise

        return run

    def _build_compilation(self, data: Any) -> None:
        check_loss(self._compile_loss)
        x, y, sample_weight = pipelines.specs_of(data)
        if not self._compilation.is_prepared(y, sample_weight):
            specs = y, self._compilation.outputs(self.model, x), sample_weight
            build = private_names.compute_output_spec
            build(self._compute_loss, x, *specs, training=False)
            build(self.compute_metrics, x, *specs)
            number = self.pipeline.params.num_micro_batches
            self._compilation.choose_exactness(self.model, number, *specs)

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
