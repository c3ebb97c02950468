"""How two checkpoints differ, variable by variable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from lingvo_pipe.training.checkpoint_names import stored_variables


@dataclass(frozen=True)
class Difference:
    """A variable that is not the same in two checkpoints.

    Attributes:
        name: its name.
        what: `float32 [3], only in the second`; or how far the values are apart.
    """

    name: str
    what: str


def differences(
    first: tf.train.CheckpointReader, second: tf.train.CheckpointReader
) -> list[Difference]:
    """All variables whose bytes are not the same, in the order of their names."""
    ours, theirs = stored_variables(first), stored_variables(second)
    found = []
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in theirs:
            what = f"{ours[name]}, only in the first"
        elif name not in ours:
            what = f"{theirs[name]}, only in the second"
        elif ours[name] != theirs[name]:
            what = f"{ours[name]} in the first, {theirs[name]} in the second"
        else:
            what = _distance(first.get_tensor(name), second.get_tensor(name))
        if what:
            found.append(Difference(name, what))
    return found


def _distance(ours: np.ndarray, theirs: np.ndarray) -> str:
    """How far values of one shape and dtype are apart; nothing if in no byte."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.tobytes() == theirs.tobytes():
        return ""
    differ = np.count_nonzero(ours != theirs)
    count = f"{differ:,} of {ours.size:,} differ"
    if ours.dtype.kind in "OSU":
        return count
    # bfloat16 has no arithmetic of its own in NumPy.
    wide = np.complex128 if ours.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):
        apart = np.abs(ours.astype(wide) - theirs.astype(wide))
        sizes = np.abs(ours.astype(wide))
    return f"{count}, by up to {apart.max():.3g}; the largest is {sizes.max():.3g}"
