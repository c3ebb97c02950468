"""Functions that Lingvo's layers call most.

Other names of Lingvo's py_utils raise an error that says what to use instead. A rank or
shape that is known to be wrong when a layer is traced raises a ValueError. Other checks
are TensorFlow's assertions, which XLA omits.

Shapes: B sequences, T positions, D features. Paddings are `[B, T]`: 1 marks a position
before or after the sequence, 0 a position of the sequence.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.checks import is_integer
from lingvo_pipe.core.errors import UserAttributeError, UserValueError
from lingvo_pipe.core.trees import same_structure
from lingvo_pipe.hyperparams import (
    InstantiableParams as InstantiableParams,
    Params as Params,
)
from lingvo_pipe.layers.core.forward_context import current_context
from lingvo_pipe.layers.core.weights import (
    SKIP_LP_REGULARIZATION as SKIP_LP_REGULARIZATION,
    WeightInit as WeightInit,
    WeightParams as WeightParams,
)
from lingvo_pipe.nested_map import NestedMap as NestedMap
from lingvo_pipe.tshape import Shape

assert_equal = tf.debugging.assert_equal
assert_greater = tf.debugging.assert_greater
assert_greater_equal = tf.debugging.assert_greater_equal
assert_less = tf.debugging.assert_less
assert_less_equal = tf.debugging.assert_less_equal
clip_by_value = tf.clip_by_value
Flatten = tf.nest.flatten
IsCompatible = same_structure
Pack = tf.nest.pack_sequence_as
Transform = tf.nest.map_structure

_INSTEAD = {
    "AddTpuSummaryTensor TpuSummaryTensorContext": "Call self.AddMetric in FProp.",
    "AddVN DefaultVN DeterministicVN VariationalNoiseParams": "Add noise in FProp, "
    "by current_context().uniform.",
    "AddEvalMetric": "Return it from a task's ComputeLoss, as name=(mean, weight), or "
    "call self.AddMetric in a layer's FProp.",
    "AppendDims": "Write x[..., tf.newaxis].",
    "ArgMax": "Call tf.argmax(x, -1).",
    "assert_between": "Call assert_greater_equal and assert_less.",
    "AuxLossContext": "Call self.AddLoss in FProp.",
    "BATCH_NORM_UPDATES FindRelevantBatchNormUpdates UpdateBatchNormVars": "Pass sums "
    "to self.Accumulate in FProp, and write averages in PostTrainingStepUpdate.",
    "CallDefun": "Call the function; for a gradient of its own, tf.custom_gradient.",
    "ConcatRecursively": "Call py_utils.Transform with tf.concat.",
    "CreateVariable": "Call self.CreateVariable in _CreateLayerVariables.",
    "Debug Log": "Call tf.print.",
    "DefaultParamInit IsDefaultParamInit": "None stands for the parent's params_init.",
    "DeterministicDropout GenerateSeedFromName GenerateStepSeedPair GetIncStepSeed "
    "GetStepSeed ResetStepSeed StepSeedIncrementContext": "Use layers.DropoutLayer, or "
    "draw numbers by current_context().uniform in FProp.",
    "DivideNoNan": "Call tf.math.divide_no_nan.",
    "ForLoop WhileLoop": "Call tf.while_loop or tf.scan.",
    "GetOrCreateGlobalStepVar GlobalStepContext": "Use ForwardContext(step=...).",
    "NameScopeDecorator": "Write with tf.name_scope.",
    "PadOrTrimTo": "Slice, and call PadSequenceDimension.",
    "RematerializeFn": "The param recompute of PipeliningLayer recomputes layers.",
    "SumSquared": "Add up tf.reduce_sum(x**2).",
    "ToStaticShape": "Leave it out: shapes hold no symbols.",
    "testonly_skip_norm_layers tpu_compat use_xla": "It would be False.",
}


def __getattr__(name: str) -> Any:
    hint = next((hint for names, hint in _INSTEAD.items() if name in names.split()), "")
    names = () if hint else globals()
    raise UserAttributeError(
        f"py_utils has no {name} here.", got=name, names=names, hint=hint
    )


def GetRank(tensor: Any) -> Any:
    """Returns a tensor's rank: an int, or a scalar tensor if the rank is not static."""
    tensor = tf.convert_to_tensor(tensor)
    return tf.rank(tensor) if tensor.shape.rank is None else tensor.shape.rank


def GetShape(
    tensor: Any, ndims: int | None = None, optimize_for_reshape: bool = False
) -> Any:
    """Returns a tensor's sizes: ints, and scalar tensors for sizes that are not static.

    Args:
        tensor: a tensor. If its rank is not static and `ndims` is None, the result is
            tf.shape(tensor).
        ndims: number of leading dimensions to return. If None, all are returned.
        optimize_for_reshape: True for -1 in place of the first size that is not static.
    """
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank is None:
        dynamic = tf.shape(tensor)
        return dynamic if ndims is None else [dynamic[i] for i in range(ndims)]
    sizes: list[Any] = tensor.shape.as_list()[:ndims]
    for i, size in enumerate(sizes):
        if size is None:
            sizes[i] = -1 if optimize_for_reshape else tf.shape(tensor)[i]
            optimize_for_reshape = False
    return sizes


def HasRank(tensor: Any, expected_rank: Any) -> tf.Tensor:
    """Checks a tensor's rank, and returns the tensor."""
    tensor = tf.convert_to_tensor(tensor)
    rank = tensor.shape.rank
    if rank is None or not is_integer(expected_rank):
        check = tf.debugging.assert_equal(tf.rank(tensor), expected_rank)
        return with_dependencies([check], tensor)
    if rank != expected_rank:
        raise _shape_error(f"rank {expected_rank}", tensor.shape)
    return tensor


def HasShape(tensor: Any, expected_shape: Any, ndims: int | None = None) -> tf.Tensor:
    """Checks the `ndims` leading dimensions of a tensor, and returns the tensor.

    In `expected_shape`, -1 stands for any size.
    """
    tensor = tf.convert_to_tensor(tensor)
    check = assert_shape_match(GetShape(tensor, ndims), expected_shape)
    return with_dependencies([check], tensor)


def CheckShapes(shapes: tuple) -> None:
    """Raises ValueError unless `shapes` is a tuple of Shapes or NestedMaps of them."""
    leaves = NestedMap(x=list(shapes) if isinstance(shapes, tuple) else None).Flatten()
    if not all(isinstance(x, Shape) for x in leaves):
        raise _shape_error("a tuple of tshape.Shape, or NestedMaps of them", shapes)


def with_dependencies(dependencies: Sequence[Any], output_tensor: Any) -> tf.Tensor:
    """Returns `output_tensor`, computed after all of `dependencies`."""
    with tf.control_dependencies([x for x in dependencies if x is not None]):
        return tf.identity(output_tensor)


def assert_shape_match(shape: Any, expected_shape: Any) -> Any:
    """Checks a shape against an expected shape, in which -1 stands for any size.

    Returns an operation that checks the sizes that are not static, or None if all are.
    """
    actual, expected = _dimensions(shape), _dimensions(expected_shape)
    if isinstance(actual, list) and isinstance(expected, list):
        pairs = zip(actual, expected, strict=False)
        static_pairs = [pair for pair in pairs if all(map(is_integer, pair))]
        if len(actual) != len(expected) or any(
            b not in (a, -1) for a, b in static_pairs
        ):
            raise _shape_error(expected, actual)
        if len(static_pairs) == len(actual):
            return None
    actual, expected = (tf.cast(x, tf.int32) for x in (actual, expected))
    with tf.control_dependencies([assert_equal(tf.size(actual), tf.size(expected))]):
        matches = (actual == expected) | (expected == -1)
        return tf.debugging.Assert(tf.reduce_all(matches), [actual, expected])


def CheckNumerics(values: Any, message: str = "") -> Any:
    """Returns nested tensors, with a check that floating-point values are finite."""
    check = tf.debugging.check_numerics
    return tf.nest.map_structure(
        lambda x: check(x, message) if x.dtype.is_floating else x, values
    )


def ApplyPadding(
    padding: tf.Tensor,
    x: tf.Tensor,
    padded: Any = None,
    use_select: bool = True,
    ensure_shape: bool = True,
) -> tf.Tensor:
    """Returns `x` where the padding is 0, and other values where the padding is 1.

    Args:
        padding: zeros and ones, of a shape that broadcasts to `x`, such as `[B, T, 1]`.
        x: a tensor, such as `[B, T, D]`.
        padded: values where the padding is 1. If None, these are zeros.
        use_select: False to multiply `x` by 1 - padding. Values of `x` that are not
            finite then remain not finite.
        ensure_shape: False if the padding may make the result larger than `x`.
    """
    padding = tf.cast(padding, tf.float32)
    is_bit = (padding == 0.0) | (padding == 1.0)
    check = tf.debugging.Assert(tf.reduce_all(is_bit), [padding])
    padding = with_dependencies([check], padding)
    fill = tf.zeros([], x.dtype) if padded is None else padded
    if use_select:
        result = tf.where(padding == 1.0, fill, x)
    else:
        padding = tf.cast(padding, x.dtype)
        result = x * (1 - padding) + fill * padding
    return tf.ensure_shape(result, x.shape) if ensure_shape else result


def LengthsFromPaddings(paddings: tf.Tensor, dtype: Any = tf.int32) -> tf.Tensor:
    """Returns lengths, `[B]`: the positions up to the last one that is not padding."""
    is_item = 1 - tf.cast(HasRank(paddings, 2), dtype)
    positions = tf.range(1, tf.shape(paddings)[1] + 1)
    # Without positions, the maximum would be the smallest number.
    return tf.maximum(tf.reduce_max(is_item * tf.cast(positions, dtype), 1), 0)


def PaddingsFromLengths(lengths: tf.Tensor, maxlen: Any = None) -> tf.Tensor:
    """Returns the paddings, float32 `[B, T]`, of sequences of `lengths`, `[B]`.

    Sequences begin at position 0. T is `maxlen` or, if None, the largest length.
    """
    lengths = HasRank(lengths, 1)
    if maxlen is not None:
        maximum = tf.cast(maxlen, lengths.dtype)
        lengths = with_dependencies([assert_less_equal(lengths, maximum)], lengths)
    return 1.0 - tf.sequence_mask(lengths, maxlen, tf.float32)


def PadSequenceDimension(
    x: tf.Tensor,
    length: int,
    pad_val: Any,
    shape: Sequence[int] | None = None,
    axis: int = 1,
) -> tf.Tensor:
    """Returns `x` padded to `length` at the end of an axis. Checks `shape` if given."""
    pads = [[0, 0] for _ in x.shape]
    pads[axis][1] = length - GetShape(x)[axis]
    x = tf.pad(x, pads, constant_values=pad_val)
    return x if shape is None else tf.ensure_shape(x, shape)


def FPropDtype(params: InstantiableParams) -> tf.DType:
    """Returns the dtype in which a layer with these params computes FProp."""
    return params.fprop_dtype or params.dtype


def GetGlobalStep() -> Any:
    """Returns the training step of the current forward pass, `[]` int64.

    Raises:
        ValueError: if the step is not known.
    """
    step = current_context().step
    if step is None:
        raise UserValueError(
            path="GetGlobalStep", expected="a call within ForwardContext(step=...)"
        )
    return step


def use_tpu() -> bool:
    """Returns False, because FProp is traced once for all kinds of devices."""
    return False


def Matmul(x: tf.Tensor, y: tf.Tensor, **kwargs: Any) -> tf.Tensor:
    """Returns tf.matmul of two tensors that are checked to be matrices."""
    return tf.matmul(HasRank(x, 2), HasRank(y, 2), **kwargs)


def ProjectLastDim(
    inputs: tf.Tensor, weight: tf.Tensor, input_dim: int, output_dim: int
) -> tf.Tensor:
    """Multiplies by `weight`: `[..., input_dim]` -> `[..., output_dim]`."""
    return tf.tensordot(inputs, HasShape(weight, [input_dim, output_dim]), 1)


def Softmax(logits: tf.Tensor, axis: int = -1, extra_logit: Any = None) -> tf.Tensor:
    """Returns the softmax of `logits`.

    `extra_logit`, `[]`, is one more logit of which the result has no probability.
    """
    if extra_logit is None:
        return tf.nn.softmax(logits, axis)
    totals = tf.reduce_logsumexp(logits, axis, keepdims=True)
    extra = tf.cast(extra_logit, logits.dtype) + tf.zeros_like(totals)
    totals = tf.reduce_logsumexp(tf.stack([totals, extra]), 0)
    return tf.exp(logits - totals)


def _dimensions(shape: Any) -> Any:
    """Returns sizes as ints and scalar tensors, or `shape` if its length is unknown."""
    if isinstance(shape, tf.Tensor):
        if not shape.shape.is_fully_defined():
            return shape
        static = tf.get_static_value(shape)
        shape = tf.unstack(shape) if static is None else static.tolist()
    sizes = [-1 if size is None else size for size in shape]
    static_sizes = [tf.get_static_value(size) for size in sizes]
    return [
        a if b is None else int(b) for a, b in zip(sizes, static_sizes, strict=True)
    ]


def _shape_error(expected: Any, got: Any) -> UserValueError:
    return UserValueError(
        path="Shape of a tensor",
        expected=str(expected),
        got=got,
        hint="Check the inputs of the layer, and its params.",
    )
