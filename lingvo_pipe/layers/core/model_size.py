"""Size of a model from only its Params: parameters, flops and outputs of its layers.

Variables are declared and not created, so the count is quick for a model of any size.
The flops of a training step's forward pass come from its graph, which is traced and not
run. Equal layers are measured once.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

import tensorflow as tf
from absl import logging
from tensorflow.python.framework.func_graph import FuncGraph

from lingvo_pipe.core.equality_cache import cached_by_equality
from lingvo_pipe.core.errors import UserLayerError, UserValueError, Words
from lingvo_pipe.core.nests import as_args, map_present, present, spec_of
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import (
    ForwardContext,
    current_context,
    row_dim,
)
from lingvo_pipe.layers.core.graph_flops import (
    graph_flops,
    multiply_adds,
    unknown_loops,
)
from lingvo_pipe.layers.core.own_flops import TRACE_ERRORS, OwnFlops, reason
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.tshape import as_shapes, as_specs

# The most tries with some inputs as integers: all 16 for 4 inputs of unknown dtype.
_MAX_CHOICES = 16
_Size = TypeVar("_Size")
_warned: set[type] = set()


class LayerSize(NamedTuple):
    """The size of one layer and the layers below it."""

    num_parameters: int  # trained
    multiply_adds: int  # in products and convolutions
    flops: int
    outputs: tuple[Any, ...]  # structures of tf.TensorSpec, or None

    @property
    def output_elements(self) -> int:
        """The number of elements of the outputs."""
        return sum(math.prod(x.shape) for x in present(self.outputs))


def parameter_counts(layers: Sequence[InstantiableParams]) -> list[int]:
    """Returns the number of trained parameters of each layer."""
    count = cached_by_equality(_parameter_count)
    return [count(p.Copy().Set(name="")) for p in layers]


def trained_paths(layer: InstantiableParams) -> list[str]:
    """Returns the paths of a layer's trained variables, relative to the layer."""
    with _declared(layer) as declared:
        return [
            path.removeprefix(f"{declared.path}/")
            for path, variable in declared.VariablePaths().items()
            if variable.trainable
        ]


def num_parameters(layer: BaseLayer) -> int:
    """Returns the number of a layer's trained parameters."""
    variables = layer.VariablePaths().values()
    return sum(math.prod(v.shape) for v in variables if v.trainable)


def layer_sizes(
    layers: Sequence[InstantiableParams],
    *inputs: Any,
    path: str = "layers",
    batch_dim: int | None = None,
) -> list[LayerSize]:
    """Returns the sizes of layers that each take the outputs of the previous layer.

    A class that defines FPropMeta, as in Lingvo, gives the flops of its layers. The
    `inputs` of the first layer are structures of tf.TensorSpec, or None. A shape stands
    for floating-point numbers or, if the layers refuse them, int32. As few inputs as
    possible are integers. `batch_dim` is the dimension of the inputs' rows. If None, it
    is the current ForwardContext's.

    Raises:
        UserValueError: if a layer cannot be traced for its inputs.
        UserLayerError: if a layer's FPropMeta is wrong, or an output's shape unknown.
    """
    if not layers:
        return []
    rows = _rows_of(inputs, batch_dim)
    measure = cached_by_equality(functools.partial(_measured, rows=rows))
    unnamed = {id(p): p.Copy().Set(name="") for p in layers}  # Some are listed twice.

    def measure_all(specs: Any) -> list[LayerSize]:
        sizes: list[LayerSize] = []
        for i, p in enumerate(layers):
            with _naming(f"{path}[{i}], {p.cls.__name__} {p.name!r}", specs):
                sizes.append(measure(unnamed[id(p)], specs))
            specs = sizes[-1].outputs
        return sizes

    return _with_dtypes(measure_all, inputs, layers[0])


def traced_meta(p: InstantiableParams, *shapes: Any) -> NestedMap:
    """Returns NestedMap(flops, out_shapes) of a layer, found by tracing the layer."""

    def measure(specs: Any) -> LayerSize:
        with _naming(f"{p.cls.__name__} {p.name!r}", specs):
            return _measured(p, specs, _rows_of(shapes), uses_own_meta=False)

    size = _with_dtypes(measure, shapes, p)
    return NestedMap(flops=size.flops, out_shapes=size.outputs)


class _Rows(NamedTuple):
    batch_dim: int
    num_rows: int | None


def _rows_of(inputs: Sequence[Any], batch_dim: int | None = None) -> _Rows:
    if batch_dim is None:
        batch_dim = current_context().batch_dim
    first = next(
        iter(present(as_specs(tuple(map(as_shapes, inputs)), tf.float32))), None
    )
    if first is None or not first.shape.rank:
        return _Rows(batch_dim, None)
    return _Rows(batch_dim, first.shape[row_dim(first.shape.rank, batch_dim)])


def _with_dtypes(
    measure: Callable[[Any], _Size], shapes: Sequence[Any], p: InstantiableParams
) -> _Size:
    """Returns `measure(specs)` for the fewest int32 inputs with which it succeeds."""
    default = p.fprop_dtype or p.dtype or tf.float32
    inputs = tuple(map(as_shapes, shapes))
    floats, integers = (as_specs(inputs, dtype) for dtype in (default, tf.int32))
    pairs = [*zip(*map(tf.nest.flatten, (floats, integers)), strict=True)]
    unknown = [i for i, (a, b) in enumerate(pairs) if a != b]
    choices = _subsets(unknown)
    errors: list[UserValueError] = []
    for chosen in itertools.islice(choices, _MAX_CHOICES):
        flat = [b if i in chosen else a for i, (a, b) in enumerate(pairs)]
        try:
            return measure(tf.nest.pack_sequence_as(floats, flat))
        except UserValueError as error:
            errors.append(error)
    for of_layer in errors:
        if isinstance(of_layer, UserLayerError):
            raise of_layer
    if next(choices, None) is not None:
        _ask_for_dtypes(errors[0])
    raise errors[0]


def _subsets(items: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(len(items) + 1):
        yield from itertools.combinations(items, size)


def _ask_for_dtypes(error: UserValueError) -> NoReturn:
    hint = "If some inputs are integers, set input_dtypes, or pass tf.TensorSpecs."
    raise UserValueError(
        path=error.path,
        expected=error.expected,
        got=error.got,
        hint=f"{error.hint} {hint}",
    ) from error


@contextlib.contextmanager
def _naming(path: str, specs: Any) -> Iterator[None]:
    """Adds a layer's path and inputs to the errors that the layer raises."""
    try:
        yield
    except UserLayerError as error:
        raise error.within(path) from error
    except TRACE_ERRORS as error:
        raise UserValueError(
            path=path,
            expected="a layer that takes its inputs",
            got=Words(", ".join(map(_text, tf.nest.flatten(specs))) or "no input"),
            hint=reason(error),
        ) from error


def _text(spec: tf.TensorSpec | None) -> str:
    return "None" if spec is None else f"{spec.dtype.name} {[*spec.shape]}"


def _parameter_count(p: InstantiableParams) -> int:
    with _declared(p) as layer:
        return num_parameters(layer)


def _measured(
    p: InstantiableParams,
    inputs: tuple[Any, ...],
    rows: _Rows,
    uses_own_meta: bool = True,
) -> LayerSize:
    with _declared(p) as layer, _training_context(rows):
        own_flops = OwnFlops(layer, uses_own_meta)
        theta = layer.CastTheta(tf.nest.map_structure(_placeholder, layer.vars))
        outputs = as_args(layer.FProp(theta, *map_present(_placeholder, inputs)))
        outputs = map_present(tf.convert_to_tensor, outputs)
        _check_known(inputs, outputs)
        operations = tf.compat.v1.get_default_graph().get_operations()
        return LayerSize(
            num_parameters(layer),
            multiply_adds(operations),
            own_flops.other_flops + forward_flops(p.cls, operations, own_flops),
            map_present(spec_of, outputs),
        )


def forward_flops(
    layer_class: type, operations: Sequence[tf.Operation], own_flops: OwnFlops
) -> int:
    """Returns the flops of a forward pass. Warns of `unknown_loops` once per class."""
    if any(unknown_loops(operations, own_flops.flops)):
        _warn_of_loop(layer_class)
    return graph_flops(operations, own_flops.flops)


def _check_known(inputs: Any, outputs: Any) -> None:
    if not all(x.shape.is_fully_defined() for x in present(inputs)):
        raise UserValueError(path="inputs", expected="known shapes")
    if not all(x.shape.is_fully_defined() for x in present(outputs)):
        raise UserLayerError(
            path="outputs",
            expected="known shapes",
            got=Words(", ".join(map(_text, tf.nest.flatten(outputs)))),
            hint="Set them by tf.ensure_shape.",
        )


def _warn_of_loop(layer_class: type) -> None:
    if layer_class not in _warned:
        _warned.add(layer_class)
        logging.warning(
            "%s has a loop whose number of iterations is unknown, so the flops of the "
            'loop\'s body count once. Set cell_costs="measured", or define FPropMeta.',
            layer_class.__name__,
        )


class _DeclaredVariable:
    def __init__(self, shape: Any, dtype: tf.DType, trainable: bool):
        self.shape = tf.TensorShape(shape)
        self.dtype = tf.as_dtype(dtype)
        self.trainable = trainable

    def ref(self) -> _DeclaredVariable:
        return self


class _Declarations(FuncGraph):
    """A graph in which variables are only declared."""


def declares_variables() -> bool:
    """Returns True while a layer is created only to be measured."""
    return isinstance(tf.compat.v1.get_default_graph(), _Declarations)


@contextlib.contextmanager
def _declared(p: InstantiableParams) -> Iterator[BaseLayer]:
    def declare(next_creator: Any, **kwargs: Any) -> Any:
        return _DeclaredVariable(kwargs["shape"], kwargs["dtype"], kwargs["trainable"])

    # In other graphs TensorFlow logs assertions whose result is unused. A tf.function
    # would initialize the devices.
    with _Declarations("layer").as_default(), tf.variable_creator_scope(declare):
        yield p.Copy().Set(name="layer").Instantiate()


def _training_context(rows: _Rows) -> ForwardContext:
    """Returns a context in which all parts of a layer run, as in a training step."""
    zero, one = tf.constant(0.0), tf.constant(1.0)
    return ForwardContext(
        step=tf.constant(0, tf.int64),
        first_example=tf.constant(0, tf.int64),
        batch_dim=rows.batch_dim,
        num_rows=rows.num_rows,
        compute_loss=lambda outputs: {"loss": (zero, one)},
    )


def _placeholder(like: Any) -> tf.Tensor:
    return tf.compat.v1.placeholder(like.dtype, like.shape)
