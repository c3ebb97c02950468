"""How a layer comes to be: its parent, what it inherits, and when it is finished.

`CreateChild` announces the parent, the metaclass hands it to the child before its
`__init__` runs and closes the layer afterwards, so that no sub-class has to remember to
call anything at the end of its own `__init__`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.weight_init import WeightInit

_DEFAULT_SEED = 0
_announced = threading.local()


@contextlib.contextmanager
def parent_of_next(layer: Any) -> Iterator[None]:
    """Within, the next layer to be instantiated is a child of `layer`."""
    _announced.parent = layer
    try:
        yield
    finally:
        _announced.parent = None


class LayerType(type):
    """Metaclass of layers: surrounds the construction of each."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Makes a layer: parent first, then `__init__`, then the checks."""
        layer: Any = cls.__new__(cls)
        layer._parent = getattr(_announced, "parent", None)
        _announced.parent = None
        layer._under_construction = True
        layer.__init__(*args, **kwargs)
        layer._under_construction = False
        _check_all_created(layer)
        return layer


def _check_all_created(layer: Any) -> None:
    """Raises ValueError if the layer keeps a layer that is not its child."""
    known = set(map(id, tf.nest.flatten(list(layer._children.values()))))
    for name, value in vars(layer).items():
        if name in ("_parent", "_children"):
            continue
        held = value if isinstance(value, (list, tuple)) else [value]
        for item in held:
            if isinstance(type(item), LayerType) and id(item) not in known:
                raise ValueError(
                    f"A layer within a layer must be made by CreateChild or "
                    f"CreateChildren; {layer.path} keeps {type(item).__name__} "
                    f"{item.path!r} in {name!r}. Its variables would not be trained."
                )


def resolve_params(params: InstantiableParams, parent: Any) -> InstantiableParams:
    """Copies params, fills in what is inherited and freezes the copy.

    A dtype that the layer states itself is kept, and is what it computes in, whatever
    the parent's fprop_dtype.
    """
    p = params.Copy()
    inherited = parent.params if parent is not None else None
    if p.fprop_dtype is None:
        if p.dtype is not None or inherited is None:
            p.fprop_dtype = p.dtype or tf.float32
        else:
            p.fprop_dtype = inherited.fprop_dtype
    if p.dtype is None:
        p.dtype = inherited.dtype if inherited is not None else tf.float32
    if p.random_seed is None:
        p.random_seed = inherited.random_seed if inherited else _DEFAULT_SEED
    if p.params_init is None:
        p.params_init = inherited.params_init if inherited else WeightInit.Xavier()
    p.Freeze()
    return p
