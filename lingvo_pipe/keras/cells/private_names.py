"""The private names of Keras that this package uses. A test covers each of them."""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter, methodcaller
from typing import Any

import keras
import tensorflow as tf
from keras import tree
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.models import functional
from keras.src.models.functional import Functional, operation_fn
from keras.src.random import seed_generator

get_mask = backend.get_keras_mask
set_mask = backend.set_keras_mask
compute_output_spec = backend.compute_output_spec
unpack_singleton = functional.unpack_singleton  # The item of a list of one.
output_structure = attrgetter("_outputs_struct")  # How a model's outputs are nested.
flat_layers = methodcaller("_flatten_layers")  # A layer and all layers below it.
remat_mode_of = attrgetter("_remat_mode")  # Of the RematScope of a layer, or None.
forget_losses = methodcaller("_clear_losses")  # Losses that its calls added.
stored_variable = attrgetter("_value")  # A variable's tf.Variable, or None.
initialize_variable = methodcaller("_deferred_initialize")  # On the current device.
attribute_metrics = attrgetter("_metrics")  # Metrics that are attributes of a model.
trainer_metrics = methodcaller("_get_own_metrics")  # Compiled ones, and attributes.
strategy_of = attrgetter("_distribute_strategy")  # Its scope when made, or None.


def own_variables(layer: keras.Layer) -> list[keras.Variable]:
    """Returns the variables of a layer itself, without the layers below it."""
    seeds = [x.state for x in layer._seed_generators]
    return [*layer._trainable_variables, *layer._non_trainable_variables, *seeds]


def metric_function(metric: keras.Metric) -> tuple[Callable | None, dict[str, Any]]:
    """Returns the function that a metric averages, or None, and its options."""
    return getattr(metric, "_fn", None), getattr(metric, "_fn_kwargs", {})


def get_logits(x: Any) -> Any:
    """Returns the logits whose softmax or sigmoid a tensor is, or None."""
    return getattr(x, "_keras_logits", None)


def set_logits(x: Any, logits: Any) -> None:
    """Makes Keras's crossentropies use these logits in place of a tensor's values."""
    x._keras_logits = logits


_GRAPH_CALLS = (Functional.call, keras.Sequential.call, keras.Model.call)


def is_graph(operation: Any) -> bool:
    """Returns True if a call of a model only runs the graph of its layers."""
    return (
        isinstance(operation, (Functional, keras.Sequential))
        and type(operation).call in _GRAPH_CALLS
    )


def graph_of(model: keras.Model) -> Functional:
    """Returns the functional model that a Sequential or functional model runs."""
    return model._functional if isinstance(model, keras.Sequential) else model


def nodes_in_order(graph: Functional) -> Iterator[Any]:
    """Yields the nodes in the order in which Keras runs them, without the inputs."""
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        yield from (n for n in graph._nodes_by_depth[depth] if not n.is_input)


def standardized_inputs(graph: Functional, inputs: Any) -> list[Any]:
    """Returns inputs flat, in the order, dtypes and ranks that the model expects."""
    return graph._standardize_inputs(inputs)


def convert_inputs_as(model: keras.Model, other: keras.Model) -> None:
    """Makes calls of `other` convert inputs as calls of a model do."""
    for name in ("_convert_input_args", "_allow_non_tensor_positional_args"):
        setattr(other, name, getattr(model, name))


def rounds(model: keras.Model, dtype: str) -> bool:
    """Returns whether Keras rounds inputs of a dtype for a model."""
    is_float = model.autocast and backend.is_float_dtype(dtype)
    return bool(model._convert_input_args and is_float and dtype != model.input_dtype)


def check_inputs(model: keras.Model, inputs: Any) -> None:
    """Raises ValueError if a call of the model would refuse the inputs' shapes."""
    model._assert_input_compatibility(inputs)


def rounded_inputs(model: keras.Model, inputs: Any) -> Any:
    """Returns inputs in the dtype to which Keras converts them for a model."""
    if not model._convert_input_args:  # A functional model takes them as they are.
        return inputs
    convert, policy = model.dtype_policy.convert_input, model.input_dtype
    return tree.map_structure(lambda x: convert(x, model.autocast, policy), inputs)


def run_operation(
    operation: Any,
    training: bool,
    args: Any,
    kwargs: Any,
    models: Sequence[keras.Model] = (),
) -> Any:
    """Calls a layer or another operation of a graph, as `models` around it do."""
    # Keras calls layers in their model's scope. Outside of any, TensorFlow refuses the
    # name of a class that begins with "_", and Keras then never leaves its own scope.
    with tf.name_scope("layer"), _autocast_scope(models):
        return operation_fn(operation, training=training)(*args, **kwargs)


def _autocast_scope(models: Sequence[keras.Model]) -> AbstractContextManager:
    """Returns the scope that calls of models open, the outermost first.

    In it, a layer with `autocast=False` takes its weights as they are.
    """
    scope = None
    for x in models:
        if scope is None and x.compute_dtype != x.variable_dtype:
            scope = backend.AutocastScope(x.compute_dtype)
        elif scope is not None:
            casts = x.autocast and backend.is_float_dtype(x.compute_dtype)
            scope = backend.AutocastScope(x.compute_dtype if casts else None)
    return contextlib.nullcontext() if scope is None else scope


def global_seed() -> keras.Variable:
    """Returns the state from which draws without a SeedGenerator take their seeds."""
    state = random.getstate()  # Keras's initializers draw their seeds from it, too.
    try:
        return seed_generator.global_seed_generator().state
    finally:
        random.setstate(state)


def place_variable(variable: keras.Variable, value: Any) -> None:
    """Makes a tf.Variable the storage of a Keras variable.

    The tf.Variable gets the id of the old storage. Optimizers know the variable by it.
    """
    if variable._value is not None:
        value._unique_id = variable._value._unique_id
    variable._value = value


def set_initial_value(variable: keras.Variable, value: tf.Tensor) -> None:
    """Sets the initial value of an uninitialized variable."""
    variable._initializer = lambda shape, dtype: value


def set_initializer(variable: keras.Variable, value: Callable[[], Any]) -> None:
    """Makes a variable uninitialized. A function returns its initial value."""
    variable._value = None
    variable._initializer = lambda shape, dtype: value()


def uninitialized_variables() -> list[keras.Variable]:
    """Returns Keras's list of variables to initialize when a StatelessScope ends."""
    name = "uninitialized_variables"
    return global_state.get_global_attribute(name, [], set_to_default=True)


@contextlib.contextmanager
def stored_if_given(scope: keras.StatelessScope) -> Iterator[None]:
    """Stores variables that are made from values, which Keras refuses in a scope.

    An optimizer has such variables, such as the number of its steps.
    """
    name, kind = "stateless_scope", backend.Variable

    def initialize(variable: Any, initializer: Any, *args: Any, **options: Any) -> None:
        is_value = not callable(initializer) and not isinstance(initializer, str)
        leaves = is_value and global_state.get_global_attribute(name) is scope
        if leaves:
            global_state.set_global_attribute(name, None)
        try:
            original(variable, initializer, *args, **options)
        finally:
            if leaves:
                global_state.set_global_attribute(name, scope)

    original, kind.__init__ = kind.__init__, initialize
    try:
        yield
    finally:
        kind.__init__ = original


def flat_losses(compiled: Any) -> list[Any]:
    """Returns the losses of a compiled loss, one for each output that has one."""
    return [entry.loss for entry in compiled._flat_losses]


def with_losses(compiled: Any, losses: Sequence[Callable]) -> Any:
    """Returns a compiled loss with other losses in place of `flat_losses`."""
    pairs = zip(compiled._flat_losses, losses, strict=True)
    entries = [entry._replace(loss=loss) for entry, loss in pairs]
    return shallow_copy(compiled, _flat_losses=entries)


def shallow_copy(original: Any, **attributes: Any) -> Any:
    """Returns a shallow copy with other attributes, of what copy.copy cannot copy."""
    copy = object.__new__(type(original))
    vars(copy).update(vars(original), **attributes)
    return copy


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Returns a model's `compile` arguments, except options about how steps are run.

    Unlike `compile_from_config`, this allows lambdas. The optimizer scales the loss
    already, if it has to.
    """
    arguments = dict(model._compile_config.config, optimizer=model.optimizer)
    arguments["auto_scale_loss"] = False
    for name in ("steps_per_execution", "jit_compile", "run_eagerly"):
        arguments.pop(name, None)
    return arguments


def kept_arguments(model: keras.Model) -> dict[str, Any]:
    """Returns `compile_arguments`, with a loss and metrics of an earlier `compile`.

    Keras keeps them if a later call gives none.
    """
    arguments = compile_arguments(model)
    if (loss := model._compile_loss) is not None:
        weights = loss._user_loss_weights
        arguments.update(loss=loss._user_loss, loss_weights=weights)
    if (metrics := model._compile_metrics) is not None:
        weighted = metrics._user_weighted_metrics
        arguments.update(metrics=metrics._user_metrics, weighted_metrics=weighted)
    return arguments
