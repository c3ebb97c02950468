"""How a layer comes to be: its parent, and when it is finished.

`make_child` announces the parent, the metaclass hands it to the child before its
`__init__` runs and closes the layer afterwards, so that no sub-class has to remember to
call anything at the end of its own `__init__`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.names import check_sibling_name

_announced = threading.local()


class LayerType(type):
    """Metaclass of layers: surrounds their construction and their FProp."""

    def __new__(mcs, name: str, bases: tuple, namespace: dict, **kwargs: Any) -> Any:
        """Makes a class of layers; the operations of its FProp carry a layer's name."""
        if "FProp" in namespace:
            namespace["FProp"] = _in_name_scope(namespace["FProp"])
        return super().__new__(mcs, name, bases, namespace, **kwargs)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Makes a layer: parent first, then `__init__`, then the checks."""
        layer: Any = cls.__new__(cls)  # type: ignore[arg-type, call-arg]
        layer._parent = getattr(_announced, "parent", None)
        _announced.parent = None
        layer._under_construction = True
        layer.__init__(*args, **kwargs)
        layer._under_construction = False
        _check_finished(layer)
        return layer


def _in_name_scope(fprop: Callable) -> Callable:
    @functools.wraps(fprop)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        with tf.name_scope(self.params.name):
            return fprop(self, *args, **kwargs)

    return wrapped


def make_child(
    parent: Any, name: str, params: InstantiableParams, siblings: Iterable[Any]
) -> Any:
    """Makes a layer below `parent`, called `name` if it has no name of its own.

    Raises:
        ValueError: if `params` are no Params, or a sibling has the same name.
    """
    if not isinstance(params, InstantiableParams):
        raise ValueError(
            f"A child is created from a layer's Params; {parent.path}/{name} was to be "
            f"created from a {type(params).__name__}. Pass TheLayer.Params()."
        )
    params = params.Copy()
    params.name = params.name or name
    check_sibling_name(params.name, siblings, parent)
    _announced.parent = parent
    try:
        return params.Instantiate()
    finally:
        _announced.parent = None


def check_devices(devices: Any, params: Any, where: str) -> None:
    """Raises ValueError unless `devices` is None or one for each params of a list."""
    if devices is None:
        return
    if isinstance(params, Mapping) or len(devices) != len(params):
        raise ValueError(
            f"devices must be one for each layer of a list; {where} has {len(params)} "
            f"layers in a {type(params).__name__} and {len(devices)} devices."
        )


def check_under_construction(layer: Any, name: str) -> None:
    """Raises ValueError if the layer's `__init__` is over."""
    if not layer._under_construction:
        raise ValueError(
            f"A layer's parts are made in its __init__; {layer.path} was asked for "
            f"{name!r} afterwards. Move the call into __init__."
        )


def check_initialized(layer: Any, name: str) -> None:
    """Raises AttributeError if BaseLayer's `__init__` did not run."""
    if "_children" not in vars(layer):
        raise AttributeError(
            "A layer's __init__ must call super().__init__(params) first; that of "
            f"{type(layer).__name__} used {name!r} before."
        )


def _check_finished(layer: Any) -> None:
    """Raises ValueError if an attribute hides a child or keeps a layer that is none."""
    known = set(map(id, tf.nest.flatten(list(layer._children.values()))))
    for name, value in vars(layer).items():
        if name in layer._children:
            raise ValueError(
                f"A layer's attributes must not hide its children; {layer.path} has "
                f"both called {name!r}. Rename one."
            )
        if name in ("_parent", "_children"):
            continue
        for held in _layers_in(value):
            if id(held) not in known:
                raise ValueError(
                    "A layer within a layer must be made by CreateChild or "
                    f"CreateChildren; {layer.path} keeps {type(held).__name__} "
                    f"{held.path!r} in {name!r}. Its variables would not be trained."
                )


def _layers_in(value: Any) -> Iterator[Any]:
    """The layers that an attribute's value is or holds."""
    if isinstance(type(value), LayerType):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _layers_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _layers_in(item)
