"""Checks that reject Keras models and options that a pipeline cannot run."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import UserTypeError, UserValueError, Words
from lingvo_pipe.keras.cells.private_names import (
    flat_layers,
    graph_of,
    is_graph,
    remat_mode_of,
    strategy_of,
)

# Layers that a pipeline cannot run, and what it expects instead.
_REFUSED_LAYERS = {
    # Their outputs for an example depend on other examples of the mini-batch.
    **dict.fromkeys(
        ("MixUp", "CutMix", "MelSpectrogram"), "layers that treat examples one by one"
    ),
    **dict.fromkeys(
        (
            *("TextVectorization", "StringLookup", "IntegerLookup"),
            *("Hashing", "HashedCrossing"),
        ),
        "layers without lookup tables",
    ),
}
# Methods that save the arguments of compile, and `loss`, which nothing calls.
_HARMLESS = {"get_compile_config", "compile_from_config", "loss"}
# Methods that KerasHub's tasks extend by preprocessing.
_WRAPPERS = (
    *("compile", "evaluate", "fit", "predict"),
    *("predict_on_batch", "test_on_batch", "train_on_batch"),
)
# Params of a PipeliningLayer that users set.
_PARAMS = (
    *("cell_costs", "jit_compile", "memory_limit", "num_batch_shards", "num_replicas"),
    *("offload", "recompute", "schedule", "splits", "stages_per_device"),
    "state_dtype",
)
_ARGUMENTS = (
    *("devices", "num_micro_batches", "batch_size", "sequence_length"),
    *("exact_losses", "offload_slots"),
)
# Options of compile: allowed values, the same in words, and what to do instead.
_COMPILE_OPTIONS: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "jit_compile": (
        (False, "auto", None),
        "False or 'auto'",
        "Give jit_compile=True to PipelinedModel: XLA then compiles cells.",
    ),
    "steps_per_execution": (
        (1,),
        "1",
        "Raise num_micro_batches, or the size of the mini-batch.",
    ),
    "run_eagerly": (
        (False, None),
        "False, because a pipeline is a graph",
        "To debug layers, fit the plain model, the attribute `model`.",
    ),
}


def check_model(model: Any) -> None:
    """Raises ValueError unless a model can be cut into cells."""
    if not isinstance(model, keras.Model):
        raise UserValueError(
            path="PipelinedModel(model=...)",
            expected="a keras.Model",
            got=model,
            hint="Make one of layers by keras.Sequential([keras.Input(shape), ...]).",
        )
    path = f"model {model.name!r}"
    if not is_graph(model):
        hint = (
            "Write it as keras.Model(inputs, outputs), with what call does in layers."
        )
        if "PipelinedModel" in [cls.__name__ for cls in type(model).__mro__]:
            hint = "Give the plain model, its attribute `model`."
        raise UserValueError(
            path=path,
            expected="a Sequential or functional model, which can be cut into layers",
            got=Words(f"{type(model).__name__}, whose call method is its own"),
            hint=hint,
        )
    if graph_of(model) is None:
        raise UserValueError(
            path=path,
            expected="a Sequential model that Keras can trace",
            got=Words("no input shape, or a layer of unknown outputs"),
            hint="Begin it with keras.Input(shape), and give layers whose call cannot "
            "be traced a compute_output_spec.",
        )
    if methods := _training_methods(model):
        raise UserValueError(
            path=path,
            expected="keras.Model's own methods of training",
            got=Words(", ".join(f"{type(model).__name__}.{x}" for x in methods)),
            hint="Give compile the loss, metrics and optimizer, and use a layer's "
            "add_loss and callbacks for the rest; then pipeline "
            "keras.Model(model.inputs, model.outputs).",
        )
    check_strategy(model)
    for x in graph_of(model).inputs:
        path = f"input {x.name!r}"
        if x.shape and x.shape[0] is not None:
            raise UserValueError(
                path=path,
                expected="any number of examples, which micro-batches have fewer of",
                got=Words(f"a batch size of {x.shape[0]}"),
                hint="Use keras.Input(shape) without batch_size. Stateful layers need "
                "it, so they cannot be pipelined.",
            )
        if x.sparse or x.ragged:
            raise UserValueError(
                path=path,
                expected="a dense tensor, which can be cut into micro-batches",
                got=Words(f"keras.Input({'sparse' if x.sparse else 'ragged'}=True)"),
                hint="Give token ids to an Embedding, or dense rows.",
            )
    for layer in flat_layers(model):
        path, kind = f"layer {layer.name!r}", type(layer).__name__
        if isinstance(layer, keras.Model) and strategy_of(layer) is not None:
            raise _strategy_error(layer, strategy_of(layer))
        if getattr(layer, "renorm", False):
            raise UserValueError(
                path=path,
                expected="batch normalization whose statistics no micro-batch changes",
                got=Words("renorm=True"),
            )
        if is_graph(layer) and layer.activity_regularizer is not None:
            raise UserValueError(
                path=f"model {layer.name!r}",
                expected="a regularizer of a layer's activity, not of a model's",
                got=layer.activity_regularizer,
                hint="Give the model's last layer this activity_regularizer.",
            )
        if layer is not model and is_graph(layer) and layer.supports_masking:
            raise UserValueError(
                path=path,
                expected="a model within that passes no mask on, as Keras's do",
                got=Words("supports_masking, or a compute_mask of its own"),
                hint="Call its layers in the outer model.",
            )
        if remat_mode_of(layer) is not None:
            raise UserValueError(
                path=path,
                expected="a layer made outside of keras.RematScope",
                got=Words(f"one with its mode {remat_mode_of(layer).mode!r}"),
                hint="PipelinedModel(recompute=...) recomputes cells.",
            )
        if kind in _REFUSED_LAYERS:
            raise UserValueError(
                path=path,
                expected=_REFUSED_LAYERS[kind],
                got=Words(kind),
                hint="Apply it to the dataset, before fit.",
            )


def check_strategy(model: keras.Model) -> None:
    """Raises ValueError in the scope of a tf.distribute strategy."""
    if tf.distribute.has_strategy():
        raise _strategy_error(model, tf.distribute.get_strategy())


def _strategy_error(model: keras.Model, strategy: Any) -> UserValueError:
    return UserValueError(
        path=f"model {model.name!r}",
        expected="no tf.distribute strategy",
        got=Words(type(strategy).__name__),
        hint="Use num_replicas for pipelines side by side.",
    )


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
    """Raises ValueError if a model needs what only Keras's optimizers do."""
    for v in model.trainable_variables:
        if v.constraint is not None:
            raise UserValueError(
                path=f"variable {v.path!r}",
                expected="no constraint, which the trainer's learner does not apply",
                got=Words(type(v.constraint).__name__),
                hint="Leave it out, or train by PipelinedModel.fit.",
            )
        if v.overwrite_with_gradient:
            raise UserValueError(
                path=f"variable {v.path!r}",
                expected="a weight that the trainer's learner can update",
                got=Words("a scale of float8, which Keras's optimizers overwrite"),
                hint="Train by PipelinedModel.fit.",
            )
    for layer in flat_layers(model):
        if layer.compute_dtype == "float16":
            raise UserValueError(
                path=f"layer {layer.name!r}",
                expected="a dtype that needs no loss scaling",
                got=layer.dtype_policy.name,
                hint="Use mixed_bfloat16, or train by PipelinedModel.fit.",
            )


def check_params(names: Iterable[str], exact_losses: Any, offload_slots: Any) -> None:
    """Raises TypeError for an unknown name, and ValueError for an invalid argument."""
    allowed = (*_ARGUMENTS, *_PARAMS)
    for name in names:
        if name not in _PARAMS:
            path, expected = f"PipelinedModel({name}=...)", f"one of {list(allowed)}"
            raise UserTypeError(path=path, expected=expected, got=name, names=allowed)
    if not isinstance(exact_losses, bool) and exact_losses != "auto":
        path, expected = "PipelinedModel(exact_losses=...)", "True, False or 'auto'"
        raise UserValueError(path=path, expected=expected, got=exact_losses)
    if not isinstance(offload_slots, bool):
        path, expected = "PipelinedModel(offload_slots=...)", "True or False"
        raise UserValueError(path=path, expected=expected, got=offload_slots)


def check_devices(devices: Any, num_cells: int | None = None) -> None:
    """Raises ValueError unless these are devices, at most one for each cell."""
    number = len(devices) if isinstance(devices, (list, tuple)) else devices
    if not is_count(number):
        raise UserValueError(
            path="PipelinedModel(devices=...)",
            expected="at least 1, or a list of names such as ['gpu:0', 'gpu:1']",
            got=devices,
        )
    if num_cells is not None and number > num_cells:
        raise UserValueError(
            path="PipelinedModel(devices=...)",
            expected=f"at most {num_cells}, one for each cell of the model",
            got=devices,
            hint="Each layer with a kernel starts a cell; summary() shows them.",
        )


def check_gradients(model: keras.Model, num_micro_batches: int) -> None:
    """Raises ValueError if gradients of micro-batches cannot be added up."""
    scales = [v.path for v in model.trainable_variables if v.overwrite_with_gradient]
    if scales and num_micro_batches > 1:
        raise UserValueError(
            path="PipelinedModel(num_micro_batches=...)",
            expected="1 for float8, whose scales follow from a whole mini-batch",
            got=num_micro_batches,
            hint=f"Such as {scales[0]!r}.",
        )


def check_loss(loss: Any, layers_add_losses: bool) -> None:
    """Raises ValueError if neither `compile` nor a layer's call gives a loss."""
    if loss is None and not layers_add_losses:
        expected = "a loss, since no layer adds one in its call"
        raise UserValueError(path="compile(loss=...)", expected=expected, got=None)


def check_compilation(options: Mapping[str, Any]) -> None:
    """Raises ValueError for options of compile that a pipeline cannot follow."""
    for name, (allowed, expected, hint) in _COMPILE_OPTIONS.items():
        value = options.get(name, allowed[0])
        if value not in allowed:
            path = f"compile({name}=...)"
            raise UserValueError(path=path, expected=expected, got=value, hint=hint)


def check_steps(pipelined: keras.Model) -> None:
    """Raises ValueError for overridden methods and options that steps would ignore."""
    names = ("steps_per_execution", "run_eagerly")
    check_compilation({name: getattr(pipelined, name) for name in names})
    for model, kind in ((pipelined, type(pipelined)), (pipelined.model, keras.Model)):
        overridden = [
            x
            for x in ("compute_loss", "compute_metrics")
            if x in vars(model) or getattr(kind, x) is not getattr(keras.Model, x)
        ]
        if overridden:
            raise UserValueError(
                path=f"model {model.name!r}",
                expected="keras.Model's own compute_loss and compute_metrics",
                got=Words(f"its own {' and '.join(overridden)}"),
                hint="Give compile the loss and metrics; a layer's add_loss is for "
                "others.",
            )


@contextlib.contextmanager
def no_other_variables(path: str, hint: str) -> Iterator[None]:
    """Raises ValueError if code that is traced within reads variables from outside."""
    captures = getattr(tf.compat.v1.get_default_graph(), "captures", ())
    before = len(captures)
    yield
    captures = getattr(tf.compat.v1.get_default_graph(), "captures", ())
    if any(outside.dtype == tf.resource for outside, _ in list(captures)[before:]):
        raise UserValueError(
            path=path,
            expected="no variables but the weights of the model's layers",
            got=Words(
                "others, such as a variable of TensorFlow, the state of a metric, or "
                "weights of a layer that is not in the model"
            ),
            hint=hint,
        )


def check_summary(options: Sequence[Any]) -> None:
    """Raises TypeError if options of Keras's summary are given."""
    if options:
        raise UserTypeError(
            path="PipelinedModel.summary",
            expected="no option but print_fn, since it shows stages",
            got=[*options],
            hint="Call pipelined.model.summary(...) for Keras's own table.",
        )
