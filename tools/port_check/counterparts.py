"""Counterparts of Lingvo's modules and TensorFlow 1's names, found in the real modules.

The tables hold only what the modules themselves cannot tell.
"""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

import tensorflow as tf

import model_registry
from lingvo_pipe import (
    base_layer,
    builder,
    gpipe,
    hyperparams,
    layers,
    nested_map,
    py_utils,
    schedule,
    tshape,
)
from lingvo_pipe.core.errors import UserAttributeError
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.layers import attention, batch_norm, builder_layers, dense
from lingvo_pipe.training.task import base_task, single_task_model_params

_SAME_NAMES = (
    *(base_layer, builder, builder_layers, gpipe, hyperparams, layers, nested_map),
    *(py_utils, schedule, tshape),
)
_MODULES: dict[str, ModuleType] = {
    "lingvo.compat": tf,
    "lingvo.model_registry": model_registry,
    "lingvo.core.activations": dense,
    "lingvo.core.base_model": base_task,
    "lingvo.core.base_model_params": single_task_model_params,
    "lingvo.core.batch_major_attention": attention,
    "lingvo.core.bn_layers": batch_norm,
}
_MODULES |= {f"lingvo.core.{x.__name__.rpartition('.')[2]}": x for x in _SAME_NAMES}
_NO_MODULE = {
    "cluster": "Devices are params of PipeliningLayer.",
    "cluster_factory": "Devices are params of PipeliningLayer.",
    "learner": "task.train has a learner's params.",
    "optimizer": "Name one of Keras's: OptimizerParams('Adam', beta_1=0.9).",
    "recurrent": "Write tf.while_loop or tf.scan in FProp.",
    "summary_utils": "Call self.AddMetric in FProp.",
    "symbolic": "Write numbers.",
    "test_utils": "Derive tests from tf.test.TestCase.",
}
_NO_NAME = {"initializer": "Delete the line: __init__ needs no decorator."}
UNKNOWN = object()
_STATE = "Draw by current_context().uniform in FProp, as DropoutLayer does."
_TF1 = {
    "get_variable": "Call self.CreateVariable in _CreateLayerVariables.",
    "variable_scope": "Delete it: a variable's path is its layer's.",
    "logging": "Use Python's module logging, or tf.print.",
    "placeholder": "Make it an argument of FProp.",
    "GraphKeys": "Collections are an argument of WeightParams; see the guide.",
    "get_collection": "Call self.AddLoss or self.Accumulate in FProp.",
    "add_to_collection": "Call self.AddLoss or self.Accumulate in FProp.",
    "summary": "Call self.AddMetric in FProp.",
    "Session": "Call layers, or run the trainer: there are no sessions.",
    "global_variables_initializer": "Delete it: variables are created with values.",
    "assign": "Call variable.assign in PostTrainingStepUpdate.",
    "assign_add": "Call variable.assign_add in PostTrainingStepUpdate.",
    "get_default_graph": "FProp must be a function of theta and its inputs.",
}
_STATEFUL = re.compile(
    r"(?!.*(stateless|Generator|seed))(.*\b|_)random[._]|nn\.dropout"
)
_UPDATING = re.compile(r"Instructions for updating:\s+(.+?)(?:\n\s*\n|$)", re.DOTALL)
_HOMES = ("math", "linalg", "random", "io", "nn", "debugging", "strings", "image")


def counterpart(module: str) -> ModuleType | None:
    """Returns the module that stands for one of Lingvo's, if any does."""
    return _MODULES.get(module)


def without_module(module: str) -> str:
    """Returns what to do about one of Lingvo's modules that has no counterpart."""
    name = module.rpartition(".")[2]
    return _NO_MODULE.get(name, "Port that module first, or leave out what uses it.")


def find(root: Any, names: list[str]) -> tuple[Any, str]:
    """Returns the value at `root.a.b`, or UNKNOWN, and what to use instead, or ""."""
    value = root
    for i, name in enumerate(names):
        try:
            value = getattr(value, name)
        except AttributeError as error:
            if root is tf:
                return UNKNOWN, _without_tf_name(names[: i + 1], dir(value))
            if not inspect.ismodule(value) and not inspect.isclass(value):
                return UNKNOWN, ""
            # Modules of ours may tell what to use instead.
            is_told = isinstance(error, UserAttributeError)
            near = did_you_mean(name, dir(value)).strip() or "There is no such name."
            return UNKNOWN, str(error) if is_told else _NO_NAME.get(name, near)
    return value, ""


def misplaced(names: list[str]) -> str:
    """Returns what to use instead of a function that a layer must not call, or ""."""
    if _STATEFUL.match(".".join(names)):
        return _STATE
    return _TF1["summary"] if names[0] == "summary" else ""


def bad_arguments(value: Any, num_args: int, keywords: list[str]) -> list[str]:
    """Returns what is wrong about the arguments of a call, for each of them."""
    try:
        parameters = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return []
    kinds = {each.kind for each in parameters.values()}
    problems = []
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        problems = [
            f"it has no argument {name!r}.{did_you_mean(name, parameters)}"
            for name in keywords
            if name not in parameters
        ]
    if inspect.Parameter.VAR_POSITIONAL not in kinds and num_args > len(parameters):
        problems.append(f"it has {len(parameters)} arguments, not {num_args}.")
    return problems


def bad_params(cls: Any, names: list[str]) -> list[str]:
    """Returns what is wrong about names of params of a class, for each of them."""
    known = list(cls.Params().GetKeys())
    return [
        f"{cls.__name__} has no param {name!r}.{did_you_mean(name, known)}"
        for name in names
        if name.partition(".")[0] not in known
    ]


def _without_tf_name(names: list[str], known: list[str]) -> str:
    """Returns what to use instead of a name that TensorFlow 2 does not have."""
    last = names[-1]
    if names[0] in _TF1:
        return _TF1[names[0]]
    if last.endswith("Optimizer"):
        return _NO_MODULE["optimizer"]
    for home in _HOMES:
        if hasattr(getattr(tf, home), last):
            return f"Write tf.{home}.{last}."
    old: Any = tf.compat.v1
    for name in names:
        old = getattr(old, name, None)
    told = _UPDATING.search(inspect.getdoc(old) or "")
    if told:
        return " ".join(told[1].split())
    return f"TensorFlow 2 has no such name.{did_you_mean(last, known)}"
