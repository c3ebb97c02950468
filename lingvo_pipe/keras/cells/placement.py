"""Storage of Keras variables on the devices of their stages.

deferred  A Keras model's variables have no values yet.
placed    A Keras model's variables move to the devices of a pipeline's stages.
created   A task makes its own variables, with the values of a Keras model's.
"""

import collections
import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging
from keras import tree

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.keras.cells import private_names
from lingvo_pipe.layers.core.model_size import declares_variables
from lingvo_pipe.pipeline.execution.host_slots import check_host_slots, slot_device

# The shape of storage that is no longer used. It fits no variable.
_MOVED = [0, 7919]


class _DeferredScope(keras.StatelessScope):
    """A scope that records the values assigned to variables, in `assigned` by id."""

    def __init__(self) -> None:
        super().__init__(initialize_variables=False)
        self.assigned: dict[int, tuple[keras.Variable, Any]] = {}

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update
        # A tensor that is made from a NumPy array keeps the array in memory as well.
        value = tf.identity(value)
        super().add_update((variable, value))
        self.assigned[id(variable)] = variable, value


@contextlib.contextmanager
def deferred_variables() -> Iterator[None]:
    """Builds Keras models whose variables are on no device until they are pipelined.

        with lp.keras.deferred_variables():
            model = build_model()
            model.load_weights("model.weights.h5")
        pipelined = lp.keras.PipelinedModel(model, devices=8)

    PipelinedModel computes the initial values on the devices of the variables' stages.
    They are the same as Keras's. Values that are loaded or set wait in the host's
    memory, and then move to these devices one by one. Until then, the model cannot run.
    """
    uninitialized = private_names.uninitialized_variables()
    before = len(uninitialized)
    try:
        with (
            tf.device("/CPU:0"),
            _DeferredScope() as scope,
            private_names.stored_if_given(scope),
        ):
            yield
    except AttributeError as error:
        if error.name == "_unique_id":  # Of a weight's storage.
            error.add_note(
                "In deferred_variables, an optimizer cannot have slots: call "
                "load_model with compile=False."
            )
        raise
    finally:
        # Else Keras would make them on the first device when another scope ends.
        del uninitialized[before:]
    for variable, value in scope.assigned.values():
        if private_names.stored_variable(variable) is None:
            private_names.set_initial_value(variable, value)
        else:
            variable.assign(value)


def placed(variable: keras.Variable, unused_path: str = "") -> tf.Variable:
    """Returns the tf.Variable that stores a Keras variable on the current device.

    If the variable is stored on another device, it moves: Keras reads and writes the
    new tf.Variable from now on. The old one takes the shape `_MOVED`, so that functions
    that were traced with it fail. A deferred variable is initialized here.
    """
    stored = private_names.stored_variable(variable)
    if is_scratch_graph():
        return _variable(variable, lambda: _zeros(variable), variable.name, stored)
    if stored is None:
        # The scope that Keras uses, for optimizers that go by TensorFlow's names.
        with tf.name_scope(f"{variable.path.rpartition('/')[0]}/"):
            private_names.initialize_variable(variable)
        return private_names.stored_variable(variable)
    with tf.init_scope():
        device = tf.zeros([]).device  # Where a new variable would be.
        if stored.device == device:
            return stored
        replacement = _variable(variable, stored, stored.name.partition(":")[0], stored)
        private_names.place_variable(variable, replacement)
        with tf.device(stored.device):
            value = tf.zeros(_MOVED, stored.dtype)
            tf.raw_ops.AssignVariableOp(resource=stored.handle, value=value)
    return replacement


def check_slots(model: keras.Model, on_host: bool) -> None:
    """Raises ValueError if the slots of placed weights cannot be on their hosts."""
    if on_host:
        devices = [v.value.device for v in model.trainable_variables]
        check_host_slots(devices, "PipelinedModel(offload_slots=...)")


def place_slots(
    optimizer: keras.Optimizer | None,
    variables: Sequence[keras.Variable],
    on_host: bool,
) -> None:
    """Moves a built optimizer's variables to the devices of their variables.

    If `on_host`, moves them to the hosts of these devices, where `in_place` updates.
    Does nothing without an optimizer, for models that are only evaluated.
    """
    if optimizer is None:
        return
    optimizer.has_host_slots = on_host
    if not optimizer.built:
        return
    owners = collections.defaultdict(list)
    for v in variables:
        owners[f"{v.path.replace('/', '_')}_"].append(v)
    alike: collections.Counter[str] = collections.Counter()
    without_path: list[keras.Variable] = []
    for slot in optimizer.variables:
        # A slot's name is its variable's path. Other variables may have the same path.
        names = [x for x in owners if slot.name.startswith(x)]
        if not names:
            without_path.append(slot)
            continue
        same = owners[max(names, key=len)]
        owner = same[min(alike[slot.name], len(same) - 1)]
        alike[slot.name] += 1
        # Before it, Adafactor makes slots that have only the name of the variable.
        slots = [x for x in without_path if x.name == owner.name]
        without_path.clear()
        with tf.device(slot_device(owner.value.device, on_host)):
            for x in (*slots, slot):
                placed(x)


def initialize_others(owners: Iterable[Any]) -> None:
    """Initializes deferred variables of optimizers, metrics and samplers."""
    variables = (getattr(x, "variables", ()) for x in tree.flatten(owners))
    for variable in itertools.chain.from_iterable(variables):
        if private_names.stored_variable(variable) is None:
            private_names.initialize_variable(variable)


class Storage:
    """A record of where variables are stored, to notice later that they have moved."""

    def __init__(self, variables: Sequence[keras.Variable]):
        self._stored = [(v, private_names.stored_variable(v)) for v in variables]

    @property
    def has_moved(self) -> bool:
        """True if another tf.Variable stores one of the variables now."""
        return any(private_names.stored_variable(v) is not x for v, x in self._stored)


def warn_of_turns(name: str) -> None:
    """Logs a warning that another PipelinedModel has moved a model's weights."""
    logging.warning(
        "%s: a PipelinedModel that shares layers has moved their weights. They move "
        "back now, and again whenever the models take turns. Give both the same "
        "devices for these layers.",
        name,
    )


def forget_functions(model: keras.Model) -> None:
    """Makes a model and the models in it forget functions traced with old storage.

    Evaluation, prediction and generation are traced again. Training raises an error
    until the model is compiled again, since other variables may be trainable now.
    """
    for x in private_names.flat_layers(model):
        if isinstance(x, keras.Model):
            x.test_function = x.predict_function = None
            if "generate_function" in vars(x):  # KerasHub's tasks have one.
                x.generate_function = None
            if x.train_function is not None:
                x.train_function = functools.partial(_refuse_to_train, x.name)


def _refuse_to_train(name: str, unused_iterator: Any) -> None:
    raise UserValueError(
        path=f"model {name!r}",
        expected="a model that is compiled after its weights have moved",
        got=Words("one that trained them before a PipelinedModel moved them"),
        hint="Compile it again.",
    )


def created(variable: keras.Variable, path: str) -> tf.Variable:
    """Returns a new tf.Variable with a Keras variable's value, computed on the host."""

    def initial() -> tf.Tensor:
        if is_scratch_graph():  # It is never run, and constants cannot enter it.
            return _zeros(variable)
        with tf.device("/CPU:0"):
            return tf.convert_to_tensor(variable.value)

    return _variable(variable, initial, path)


def _variable(
    variable: keras.Variable, value: object, name: str, like: Any = None
) -> tf.Variable:
    return tf.Variable(
        value,
        # Keras may have frozen the variable since its storage was made.
        trainable=(variable if like is None else like).trainable,
        name=name,
        shape=variable.shape,
        dtype=variable.dtype,
    )


def _zeros(variable: keras.Variable) -> tf.Tensor:
    return tf.zeros(variable.shape, variable.dtype)


def is_scratch_graph() -> bool:
    """Returns True if the current graph is never run. Its variables take no memory."""
    is_plain_graph = not tf.executing_eagerly() and not tf.inside_function()
    return is_plain_graph or declares_variables()
