"""Checks of Keras models and compilations that a pipeline cannot run."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import UserTypeError, UserValueError
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.keras.private_names import flat_layers, graph_of, is_graph

# What they make of an example depends on others of the mini-batch.
_MIXING = ("MixUp", "CutMix", "MelSpectrogram")
# Methods that save what compile was given, and one that nothing calls.
_HARMLESS = {"get_compile_config", "compile_from_config", "loss"}
# Methods that KerasHub's tasks extend by preprocessing.
_WRAPPERS = (
    *("compile", "evaluate", "fit", "predict"),
    *("predict_on_batch", "test_on_batch", "train_on_batch"),
)
# Params of a PipeliningLayer that the model does not settle.
_PARAMS = (
    *("cell_costs", "jit_compile", "memory_limit", "num_batch_shards", "num_replicas"),
    *("recompute", "schedule", "splits", "stages_per_device", "state_dtype"),
)
_ARGUMENTS = ("devices", "num_micro_batches", "batch_size", "exact_losses")
_LOOKUPS = (
    "TextVectorization",
    "StringLookup",
    "IntegerLookup",
    "Hashing",
    "HashedCrossing",
)


def check_model(model: Any) -> None:
    """Raises ValueError unless a model can be cut into cells."""
    if not isinstance(model, keras.Model):
        raise UserValueError(
            f"PipelinedModel: expected a keras.Model, got {type(model).__name__!r}. "
            "Make one of layers by keras.Sequential([keras.Input(shape), ...])."
        )
    if not is_graph(model):
        raise UserValueError(
            f"model {model.name!r}: expected a Sequential or functional model, whose "
            f"layers can be told apart, got {type(model).__name__} with a call method "
            "of its own. Write it as keras.Model(inputs, outputs), or put what call "
            "does into layers of a functional model."
        )
    if graph_of(model) is None:
        raise UserValueError(
            f"model {model.name!r}: expected a Sequential model that Keras can trace, "
            "got one without an input shape, or with a layer whose outputs Keras "
            "cannot tell. Begin it with keras.Input(shape), and give layers a "
            "compute_output_spec if their call cannot be traced."
        )
    if methods := _training_methods(model):
        shown = ", ".join(f"{type(model).__name__}.{name}" for name in methods)
        raise UserValueError(
            f"model {model.name!r}: expected keras.Model's own methods of training, "
            f"got {shown}. Express them by the loss, add_loss, metrics and the "
            "optimizer, or make a keras.Model of the same inputs and outputs."
        )
    if tf.distribute.has_strategy():
        raise UserValueError(
            "PipelinedModel: expected no tf.distribute strategy, got "
            f"{type(tf.distribute.get_strategy()).__name__!r}. Use num_replicas for "
            "pipelines side by side."
        )
    fixed = [
        x.name for x in graph_of(model).inputs if x.shape and x.shape[0] is not None
    ]
    if fixed:
        raise UserValueError(
            f"inputs {fixed}: expected any number of examples, got a fixed batch size. "
            "Use keras.Input(shape) without batch_size: micro-batches are smaller than "
            "the mini-batch."
        )
    for x in graph_of(model).inputs:
        if x.sparse or x.ragged:
            raise UserValueError(
                path=f"input {x.name!r}",
                expected="a dense tensor, which can be cut into micro-batches",
                got=f"keras.Input({'sparse' if x.sparse else 'ragged'}=True)",
                hint="Give token ids to an Embedding, or dense rows.",
            )
    for layer in flat_layers(model):
        _check_layer(layer)


def _training_methods(model: keras.Model) -> list[str]:
    """Returns the names of the training methods that a model or its class overrides."""
    trainers = [x for x in keras.Model.__mro__ if x.__module__.endswith(".trainer")]
    names = {name for x in trainers for name in vars(x) if not name.startswith("__")}
    names -= _HARMLESS
    overridden = names & {name for name, x in vars(model).items() if callable(x)}
    for kind in type(model).__mro__:
        package = kind.__module__.partition(".")[0]
        if package != "keras":
            wrappers = _WRAPPERS if package == "keras_hub" else ()
            overridden |= names & set(vars(kind)) - set(wrappers)
    return sorted(overridden)


def check_for_learner(model: keras.Model) -> None:
    """Raises ValueError for what Keras's optimizers do and the trainer's do not."""
    for v in model.trainable_variables:
        if v.constraint is not None:
            raise UserValueError(
                f"variable {v.path!r}: expected no constraint, which the trainer's "
                f"learner does not apply, got {type(v.constraint).__name__!r}. Leave "
                "it out, or train by PipelinedModel.fit."
            )
    for layer in flat_layers(model):
        if layer.compute_dtype == "float16":
            raise UserValueError(
                f"layer {layer.name!r}: expected a dtype that needs no loss scaling, "
                f"got {layer.dtype_policy.name!r}. Use mixed_bfloat16, or train by "
                "PipelinedModel.fit."
            )


def check_params(names: Iterable[str]) -> None:
    """Raises TypeError unless all are names of params that a user may give."""
    for name in names:
        if name not in _PARAMS:
            raise UserTypeError(
                path=f"PipelinedModel({name}=...)",
                expected=f"one of {', '.join((*_ARGUMENTS, *_PARAMS))}",
                got=name,
                hint=did_you_mean(name, (*_ARGUMENTS, *_PARAMS)).strip(),
            )


def check_devices(devices: Any, num_cells: int | None = None) -> None:
    """Raises ValueError unless these are devices, for at most as many as cells."""
    is_list = isinstance(devices, (list, tuple))
    number = len(devices) if is_list else devices
    if not is_count(number):
        raise UserValueError(
            "PipelinedModel(devices=...): expected the number of devices, at least 1, "
            f"or a list of their names, got {devices!r}. Give devices=2, or "
            "devices=['gpu:0', 'gpu:1']."
        )
    if num_cells is not None and number > num_cells:
        raise UserValueError(
            f"PipelinedModel(devices=...): expected at most {num_cells}, one for each "
            f"cell of the model, got {devices!r}. Use fewer. Each layer with a kernel "
            "starts a cell; summary() shows them."
        )


def check_exactness(exact_losses: Any) -> None:
    """Raises ValueError unless this is a setting of exact losses."""
    if not isinstance(exact_losses, bool) and exact_losses != "auto":
        raise UserValueError(
            path="PipelinedModel(exact_losses=...)",
            expected="True, False or 'auto'",
            got=exact_losses,
        )


def check_summary(options: list[Any]) -> None:
    """Raises TypeError if options of Keras's summary are given."""
    if options:
        raise UserTypeError(
            path="PipelinedModel.summary",
            expected="no option but print_fn, since it shows stages",
            got=options,
            hint="Call pipelined.model.summary(...) for Keras's own table.",
        )


def check_loss(compiled: Any) -> None:
    """Raises ValueError unless a model is compiled with a loss."""
    if compiled is None:
        raise UserValueError(
            "compile(loss=...): expected a loss, besides what layers add, got None. "
            "Give the loss or losses of the outputs. predict needs none."
        )


def check_compilation(jit_compile: Any, options: Mapping[str, Any]) -> None:
    """Raises ValueError for options of compile that a pipeline cannot follow."""
    if jit_compile not in (False, "auto", None):
        raise UserValueError(
            f"compile(jit_compile=...): expected False or 'auto', got {jit_compile!r}. "
            "Give jit_compile=True to PipelinedModel: XLA then compiles cells."
        )
    if options.get("steps_per_execution", 1) != 1:
        raise UserValueError(
            "compile(steps_per_execution=...): expected 1, got "
            f"{options['steps_per_execution']!r}. Raise num_micro_batches, or the size "
            "of the mini-batch."
        )
    if options.get("run_eagerly"):
        raise UserValueError(
            "compile(run_eagerly=...): expected False, because a pipeline is a graph, "
            "got True. To debug layers, fit the plain model, the attribute `model`."
        )


def _check_layer(layer: keras.Layer) -> None:
    name, hint = type(layer).__name__, "Apply it to the dataset, before fit."
    if getattr(layer, "renorm", False):
        expected, got = "batch normalization without renorm", "renorm=True"
        hint = "It normalizes by statistics that each micro-batch would change."
    elif name in _MIXING:
        expected = "layers that treat examples one by one"
        got = f"{name}, which looks at the whole mini-batch"
    elif name in _LOOKUPS:
        expected, got = "layers without lookup tables", name
    else:
        return
    path = f"layer {layer.name!r}"
    raise UserValueError(path=path, expected=expected, got=got, hint=hint)


@contextlib.contextmanager
def no_other_variables(path: str, hint: str) -> Iterator[None]:
    """Raises ValueError if what is traced uses variables that it is not given."""
    captures = getattr(tf.compat.v1.get_default_graph(), "captures", ())
    before = len(captures)
    yield
    captures = getattr(tf.compat.v1.get_default_graph(), "captures", ())
    if any(outside.dtype == tf.resource for outside, _ in list(captures)[before:]):
        raise UserValueError(
            path=path,
            expected="no variables but the weights of the model's layers",
            got="others, such as a variable of TensorFlow, the state of a metric, or "
            "weights of a layer that is not in the model",
            hint=hint,
        )
