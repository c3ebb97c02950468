"""What a layer's params take from its parent's: dtypes, seed, rule of first values."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.weight_init import WeightInit

_DEFAULT_SEED = 0


def resolve_params(params: InstantiableParams, parent: Any) -> InstantiableParams:
    """Copies params, fills in what is inherited and freezes the copy.

    A dtype that the layer states itself is kept, and is what it computes in, whatever
    the parent's fprop_dtype.

    Raises:
        ValueError: if a dtype is not one of floating-point numbers.
    """
    p = params.Copy()
    inherited = parent.params if parent is not None else None
    dtype, fprop_dtype = map(_floating, (p.dtype, p.fprop_dtype))
    if fprop_dtype is None:
        if dtype is not None or inherited is None:
            fprop_dtype = dtype or tf.float32
        else:
            fprop_dtype = inherited.fprop_dtype
    if dtype is None:
        dtype = inherited.dtype if inherited is not None else tf.float32
    p.Set(dtype=dtype, fprop_dtype=fprop_dtype)
    if p.random_seed is None:
        p.random_seed = inherited.random_seed if inherited else _DEFAULT_SEED
    if p.params_init is None:
        p.params_init = inherited.params_init if inherited else WeightInit.Xavier()
    p.Freeze()
    return p


def hand_down(
    params: InstantiableParams, parent: InstantiableParams
) -> InstantiableParams:
    """A copy of a layer's params that states what it would inherit from `parent`.

    So it can be created without that parent, and be the same. Neither is resolved yet.
    """
    p = params.Copy()
    inherited = ["random_seed", "params_init"]
    if p.dtype is None:
        # A dtype of its own would be what it computes in; see `resolve_params`.
        inherited += ["dtype", "fprop_dtype"]
    for name in inherited:
        if p.Get(name) is None:
            p.Set(**{name: parent.Get(name)})
    return p


def _floating(dtype: Any) -> Any:
    """A param's dtype, which may be a name, as a tf.DType; None stays None."""
    if dtype is None:
        return None
    dtype = tf.as_dtype(dtype)
    if not dtype.is_floating:
        raise ValueError(
            "A layer's dtype and fprop_dtype must be of floating-point numbers; got "
            f"{dtype.name}. A single variable's dtype is set in its WeightParams."
        )
    return dtype
