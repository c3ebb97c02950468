"""Replacements for modules and names of Lingvo and of TensorFlow 1."""

import inspect
import re
from collections.abc import Sequence
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
MODULES: dict[str, ModuleType] = {
    "lingvo.compat": tf,
    "lingvo.model_registry": model_registry,
    "lingvo.core.activations": dense,
    "lingvo.core.base_model": base_task,
    "lingvo.core.base_model_params": single_task_model_params,
    "lingvo.core.batch_major_attention": attention,
    "lingvo.core.bn_layers": batch_norm,
    **{f"lingvo.core.{x.__name__.rpartition('.')[2]}": x for x in _SAME_NAMES},
}
_OPTIMIZER = "Name one of Keras's: OptimizerParams('Adam', beta_1=0.9)."
RANDOM = "Draw by current_context().uniform in FProp, as DropoutLayer does."
_NAMES = {
    "activation": "Use _AddFetches, or act_fetch_layers.",
    "AddChild": "Create the layer once; PipeliningLayer's param tied shares weights.",
    "_CreateChildrenVariables": "Delete it: children create their own variables.",
    "AddEvalMetric": "Return it from a task's ComputeLoss, as name=(mean, weight), or "
    "call self.AddMetric in a layer's FProp.",
    "AddExtraTheta": "Compute it in FProp, or create a variable that is not trained.",
    "add_to_collection get_collection": "Call self.AddLoss or self.Accumulate.",
    "assign assign_add": "Call this method of the variable in PostTrainingStepUpdate.",
    "base_input_generator input_generator": "Write a class with the members that "
    "lingvo_pipe.input.input_generator lists. PipelineInputs and LossTargets get its "
    "batches.",
    "cluster cluster_factory": "Devices are params of PipeliningLayer.",
    "BatchNormLayerNoPadding": "Use BatchNormLayer, whose paddings are optional.",
    "Disable Enable": "Delete it: an Accumulator has a sum only after the step.",
    "ema": "Leave it out: evaluations use the averages, by task.train.ema_decay.",
    "eval_metrics per_example_tensors": "ComputeLoss returns all metrics.",
    "FeedForwardNet": "List FCLayers in a SequentialLayer.",
    "FromProto ToProto": "Call ToText, whose text FromText reads.",
    "get_default_graph": "FProp must be a function of theta and its inputs.",
    "get_variable": "Call self.CreateVariable in _CreateLayerVariables.",
    "global_variables_initializer": "Delete it: variables are created with values.",
    "gradients": "Use tf.GradientTape, or ComputeGradients of a PipeliningLayer.",
    "GraphKeys": "Collections are an argument of WeightParams; see the guide.",
    "global_step": "Call py_utils.GetGlobalStep(), unless self.do_eval.",
    "initializer": "Delete the line: __init__ needs no decorator.",
    "LayerNorm": "Use LayerNormLayer, whose dim is Lingvo's input_dim.",
    "is_eval": "Ask self.do_eval.",
    "layer_type": "Write type(self).__name__.",
    "learner learners": "task.train has a learner's params.",
    "LinearLayer": "Use FCLayer with input_dim, output_dim and has_bias=False.",
    "logging": "Use Python's module logging, or tf.print.",
    "metrics": "ComputeLoss returns pairs (mean, weight).",
    "name": "Write self.params.name.",
    "optimizer": _OPTIMIZER,
    "placeholder": "Make it an argument of FProp.",
    "_private_theta _private_vars": "Read theta.",
    "ProjectionLayer": "Use FCLayer with activation and has_bias; where it had "
    "batch_norm, FCLayer, BatchNormLayer and ActivationLayer.",
    "recurrent": "Write tf.while_loop or tf.scan in FProp.",
    "Session": "Call layers, or run the trainer: there are no sessions.",
    "SimpleFullSoftmax": "Use FCLayer for logits, and "
    "lingvo_pipe.layers.softmax_cross_entropy in ComputeLoss.",
    "summary summary_utils": "Call self.AddMetric in FProp.",
    "submodules": "Call self.Descendants().",
    "symbolic": "Write numbers.",
    "test_utils": "Derive tests from tf.test.TestCase.",
    "trainable_variables variables": "Call self.VariablePaths(), a dict by path.",
    "variable_scope": "Delete it: a variable's path is its layer's.",
}
_IN_FPROP = {
    "AddFunction AddVariable CreateChild CreateChildren CreateVariable "
    "RegisterAccumulator": "Call it in __init__ or _CreateLayerVariables.",
    "FPropDefaultTheta theta vars": "Read FProp's argument theta.",
}
# What to write instead of Lingvo's and TensorFlow 1's names, and of members in FProp.
INSTEAD = {x: text for names, text in _NAMES.items() for x in names.split()}
IN_FPROP = {x: text for names, text in _IN_FPROP.items() for x in names.split()}
# Classes here in place of classes of Lingvo that have another name.
CLASSES = {
    "BatchNormLayerNoPadding": batch_norm.BatchNormLayer,
    "LayerNorm": layers.LayerNormLayer,
    **dict.fromkeys(("LinearLayer", "ProjectionLayer"), layers.FCLayer),
}
# Layers that by default do more in Lingvo than here.
MORE_IN_LINGVO = {
    "FCLayer": "It has no RELU here: set activation='RELU'.",
    **dict.fromkeys(
        ("Conv2DLayer", "DepthwiseConv2DLayer", "SeparableConv2DLayer"),
        "It has neither batch norm nor a RELU here: put BatchNormLayer and "
        "ActivationLayer after it.",
    ),
}
# Methods that Lingvo calls in classes derived from these, and that nothing calls here.
UNCALLED = {
    base_layer.BaseLayer: (
        *("PostEmaUpdate", "_CreateChildrenVariables"),
        "_child_variable_scope_override",
    ),
    base_task.BaseTask: (
        *("AdjustGradients", "BProp", "CreateDecoderMetrics", "DecodeFinalize"),
        *("DecodeWithTheta", "Export", "FilterPerExampleTensors", "FPropTower"),
        *("Inference", "InferenceEager", "PostProcessDecodeOut", "PostTrainingLoop"),
        "ProcessFPropResults",
    ),
}
_STATEFUL = re.compile(
    r"(?!.*(stateless|Generator|seed))(.*\b|_)random[._]|nn\.dropout"
)
# The first sentence of a docstring's instructions for updating.
_UPDATING = re.compile(r"Instructions for updating:\s+(.+?)(\.\s|\n\n|$)", re.S)
_SUBMODULES = ("math", "linalg", "random", "io", "nn", "debugging", "strings", "image")


def UNKNOWN(*args: Any, **kwargs: Any) -> None:
    """Stands for a value that is not known, and accepts any arguments."""


def find(root: Any, names: Sequence[str]) -> tuple[Any, str]:
    """Returns (value at `root.a.b`, ""), or (UNKNOWN, hint) if there is no such value.

    `names` are a and b. The hint says what to use instead, or is "" if this is unknown.
    """
    path = ".".join(names)
    if root is tf and _STATEFUL.match(path):
        return UNKNOWN, RANDOM
    if root is tf and names and names[0] in ("gradients", "summary"):
        return UNKNOWN, INSTEAD[names[0]]
    value = root
    for name in names:
        try:
            value = getattr(value, name)
        except AttributeError as error:
            if root is tf:
                return UNKNOWN, _without_tf_name(path, dir(value))
            if not inspect.ismodule(value) and not inspect.isclass(value):
                return UNKNOWN, ""
            # The error of our modules may say what to use instead.
            is_ours = isinstance(error, UserAttributeError)
            hint = str(error).partition(". ")[2] if is_ours else ""
            near = did_you_mean(name, dir(value)).strip() or "It is not here."
            return UNKNOWN, hint or INSTEAD.get(name, near)
    return value, ""


def bad_call(
    value: Any, num_args: int, keywords: Sequence[str], are_all: bool = False
) -> str:
    """Returns text about what is wrong with a call's arguments, or "".

    Unless `are_all` is True, the call may have further arguments.
    """
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    try:
        bind = signature.bind if are_all else signature.bind_partial
        bind(*[None] * num_args, **dict.fromkeys(keywords))
    except TypeError as error:
        unknown = [x for x in keywords if x not in signature.parameters][:1]
        near = [did_you_mean(x, signature.parameters) for x in unknown]
        return f"It takes {signature}: {error}.{''.join(near)}"
    return ""


def _without_tf_name(path: str, names: list[str]) -> str:
    """Returns what to use instead of `path`. `names` are of its last known module."""
    first, last = path.partition(".")[0], path.rpartition(".")[2]
    if first in INSTEAD:
        return INSTEAD[first]
    if last.endswith("Optimizer"):
        return _OPTIMIZER
    for module in _SUBMODULES:
        if hasattr(getattr(tf, module), last):
            return f"Write tf.{module}.{last}."
    old: Any = tf.compat.v1
    for name in path.split("."):
        old = getattr(old, name, None)
    if hint := _UPDATING.search(inspect.getdoc(old) or ""):
        return " ".join(hint[1].split()).removesuffix(".") + "."
    return f"TensorFlow 2 has no such name.{did_you_mean(last, names)}"
