"""Construction of a layer: parent, name, inherited params, and the final checks.

`make_child` announces the parent. The metaclass assigns the parent to the child before
the child's `__init__` runs. After `__init__` the metaclass calls
`_CreateLayerVariables`, freezes the params and closes the layer, so that no subclass
needs a call at the end of its own `__init__`.

A layer's name is part of its variables' paths and of a TensorFlow name scope. The name
of a part, such as a child or a variable, is a key of a NestedMap such as `theta`.
"""

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.activity import set_detail
from lingvo_pipe.core.checks import is_integer
from lingvo_pipe.core.errors import (
    UserAttributeError,
    UserNameError,
    UserValueError,
    Words,
)
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.accumulators import with_step_sums
from lingvo_pipe.layers.core.weights import WeightInit
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.tshape import on_shapes

# A slice's name ends with its number; see `slicing`.
_LAYER_NAME = re.compile(r"_*[A-Za-z0-9][A-Za-z0-9_.-]*(>\d+)?")
_DEFAULT_SEED = 0
_NO_SCOPES = (
    "Leave it out: layers' names make the paths of variables. For another model's "
    "checkpoint, --init_names maps its names."
)
_NOT_SHARDED = "In Lingvo it shards weights. Leave it out: they are not sharded here."
_announced = threading.local()


class LayerType(type):
    """Metaclass of layers: wraps construction, FProp, FPropMeta and step updates."""

    # The hint of errors about stateful operations. If "", a hint for FProp in general.
    STATE_HINT: str = ""
    # Hints of errors about params that only Lingvo's layers have.
    PARAM_HINTS: Mapping[str, str] = {
        "activation_split_dims_mapping": _NOT_SHARDED,
        "add_name_to_theta": "Leave it out: variables have names, and theta has none.",
        "allow_implicit_capture": "Leave it out: FProp must not capture tensors.",
        "child_variable_scope_override": _NO_SCOPES,
        "device_mesh": _NOT_SHARDED,
        "inference_driver_name": "Leave it out: exported models have no drivers.",
        "is_inference": "Leave it out, and ask self.do_eval.",
        "nested_map_fprop": "Leave it out: maps pass between layers as they are.",
        "vn": "In Lingvo it adds noise to weights. Leave it out, or add noise by "
        "current_context().uniform in FProp.",
        "weight_split_dims_mapping": _NOT_SHARDED,
    }

    def __new__(mcs, name: str, bases: tuple, namespace: dict, **kwargs: Any) -> Any:
        if "_child_variable_scope_override" in namespace:
            path = f"{name}._child_variable_scope_override"
            expected = "no such method"
            raise UserNameError(path=path, expected=expected, hint=_NO_SCOPES)
        if "FProp" in namespace:
            namespace["FProp"] = _in_name_scope(namespace["FProp"])
        meta = namespace.get("FPropMeta")
        if isinstance(meta, (classmethod, staticmethod)):
            namespace["FPropMeta"] = type(meta)(on_shapes(meta.__func__))
        if "PostTrainingStepUpdate" in namespace:
            update = with_step_sums(namespace["PostTrainingStepUpdate"])
            namespace["PostTrainingStepUpdate"] = update
        return super().__new__(mcs, name, bases, namespace, **kwargs)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        layer: Any = cls.__new__(cls)  # type: ignore[arg-type, call-arg]
        layer._parent = getattr(_announced, "parent", None)
        _announced.parent = None
        layer._under_construction = True
        layer.__init__(*args, **kwargs)
        layer._CreateLayerVariables()
        layer._params.Freeze()
        layer._under_construction = False
        _check_finished(layer)
        return layer


def _in_name_scope(fprop: Callable) -> Callable:
    @functools.wraps(fprop)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Not params.name, which would record a read of the name; see `place_reads`.
        # A scope of TensorFlow must not start with an underscore.
        with tf.name_scope(self._path.rpartition("/")[2].lstrip("_")):
            return fprop(self, *args, **kwargs)

    return wrapped


def make_child(
    parent: Any, name: str, params: InstantiableParams, taken: set[str]
) -> Any:
    """Creates a layer below `parent`. Adds its name to `taken`, its siblings' names."""
    if not isinstance(params, InstantiableParams):
        raise UserValueError(
            path=f"{parent.path}/{name}", expected="TheLayer.Params()", got=params
        )
    params = params.Copy()
    params.name = params.name or name
    if params.name in taken:
        expected = "a child's name that no sibling has"
        raise UserNameError(path=parent.path, expected=expected, got=params.name)
    taken.add(params.name)
    _announced.parent = parent
    try:
        return params.Instantiate()
    finally:
        _announced.parent = None


def make_children(
    parent: Any,
    name: str,
    params: Any,
    taken: set[str],
    devices: Sequence[str] | None = None,
) -> Any:
    """Creates a layer for each Params of a nest. See `BaseLayer.CreateChildren`."""
    if not isinstance(params, (list, tuple, Mapping)):
        return make_child(parent, name, params, taken)
    is_map, children = isinstance(params, Mapping), {}
    for key in sorted(params) if is_map else range(len(params)):
        if devices:  # A pipeline's cells, which may be a thousand.
            set_detail(f"{name} {key + 1:,} of {len(params):,}")
        with tf.device(devices[key]) if devices else contextlib.nullcontext():
            children[key] = make_children(parent, f"{name}_{key}", params[key], taken)
    return NestedMap(children) if is_map else [*children.values()]


def resolve_params(params: InstantiableParams, parent: Any) -> InstantiableParams:
    """Returns a copy of `params` with inherited values and defaults.

    Raises:
        ValueError: if a dtype is not floating-point, or the seed is no integer.
    """
    p = params.Copy()
    if parent is not None:
        p = parent.CopyBaseParams(parent.params, p)
    for name in ("dtype", "fprop_dtype"):
        if p.Get(name) is not None:
            dtype = tf.as_dtype(p.Get(name))
            if not dtype.is_floating:
                raise UserValueError(
                    path=f"{p.name}.{name}",
                    expected="a floating-point dtype",
                    got=dtype.name,
                    hint="WeightParams set a single variable's dtype.",
                )
            p.Set(**{name: dtype})
    p.dtype = p.dtype or tf.float32
    p.fprop_dtype = p.fprop_dtype or p.dtype
    if p.random_seed is None:
        p.random_seed = _DEFAULT_SEED
    if not is_integer(p.random_seed):
        path = f"{p.name}.random_seed"
        raise UserValueError(path=path, expected="an integer", got=p.random_seed)
    if p.params_init is None:
        p.params_init = WeightInit.Xavier()
    return p


def check_layer_name(name: Any, layer: Any, parent: Any) -> None:
    """Raises ValueError unless `layer`, a child of `parent`, may be called `name`."""
    if isinstance(name, str) and _LAYER_NAME.fullmatch(name):
        return
    below = f" below {parent.path!r}" if parent is not None else ""
    raise UserValueError(
        path=f"{type(layer).__name__}.name{below}",
        expected="letters, digits, '_', '-' and '.', a letter or digit first",
        got=name,
        hint="Write params.Set(name='...').",
    )


def check_key(name: Any, layer: Any) -> None:
    """Raises ValueError unless `name` can be a key of a NestedMap."""
    try:
        NestedMap.CheckKey(name)
    except UserValueError as error:
        expected = f"a part's name: {error.expected}"
        raise UserNameError(path=layer.path, expected=expected, got=name) from None


def check_new_part(name: Any, taken: Iterable[str], layer: Any) -> None:
    """Raises ValueError if `layer` is complete, or has a part called `name`."""
    if not layer._under_construction and layer._disable_create_child:
        raise UserValueError(
            path=f"{layer.path}/{name}",
            expected="a call in the layer's __init__, where it creates its parts",
        )
    check_key(name, layer)
    if name in taken or hasattr(type(layer), name):
        expected = "a part's name that no other part or method has"
        raise UserNameError(path=layer.path, expected=expected, got=name)


def unknown_attribute(layer: Any, name: str) -> UserAttributeError:
    """Returns the error for a name that a layer does not have."""
    if "_children" not in vars(layer):
        return UserAttributeError(
            "A layer's __init__ must call super().__init__(params) first; "
            f"{type(layer).__name__} uses {name!r} before."
        )
    return UserAttributeError(
        f"{type(layer).__name__} has neither an attribute nor a child {name!r}; "
        f"its children are {sorted(layer._children)}.",
        got=name,
        names=layer._children,
    )


def check_devices(devices: Any, params: Any, path: str) -> None:
    """Raises ValueError unless `devices` is None or as long as the list `params`."""
    if devices is not None and (
        not isinstance(params, (list, tuple)) or len(devices) != len(params)
    ):
        count, kind = len(tf.nest.flatten(params)), type(params).__name__
        raise UserValueError(
            path=f"{path}.devices",
            expected="a device for each layer of a list",
            got=Words(f"{len(devices)} for {count} layers in a {kind}"),
        )


def _check_finished(layer: Any) -> None:
    """Checks that the name is unchanged, and that attributes hold only child layers."""
    name = layer._path.rpartition("/")[2]
    if layer._params.name != name:
        expected = f"the name {name!r} until the layer is complete"
        got = layer._params.name
        raise UserValueError(path=layer._path, expected=expected, got=got)
    child_ids = set(map(id, tf.nest.flatten(list(layer._children.values()))))
    for name, value in vars(layer).items():
        path = f"{layer._path}.{name}"
        if name in layer._children:
            expected = "a child or an attribute"
            raise UserValueError(path=path, expected=expected, got=Words("both"))
        if name in ("_parent", "_children"):
            continue
        for inner in _layers_in(value):
            if id(inner) not in child_ids:
                expected = "layers that CreateChild or CreateChildren made"
                got = Words(f"{type(inner).__name__} {inner.path!r}")
                raise UserValueError(path=path, expected=expected, got=got)


def _layers_in(value: Any) -> Iterator[Any]:
    if isinstance(type(value), LayerType):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _layers_in(item)
