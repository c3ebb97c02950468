"""The variables in a checkpoint, compared with a model's or another checkpoint's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.training.optim.keras_optimizer import LEARNING_RATE_NAME

# Variables of the run itself, not of a model or an optimizer.
NAMES_OF_RUNS = frozenset({"global_step", "input_place", "skipped_steps"})

_MAX_SHOWN = 8


def describe(dtype: tf.DType, shape: Iterable[Any]) -> str:
    """Returns dtype and shape of a variable as text, such as `float32 [3, 4]`."""
    return f"{dtype.name} {list(shape)}"


def stored_variables(reader: tf.train.CheckpointReader) -> dict[str, str]:
    """Returns the text of `describe` for each variable in a checkpoint, by name."""
    dtypes = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    return {name: describe(dtypes[name], shapes[name]) for name in dtypes}


def check_names(
    checkpoint: str,
    reader: tf.train.CheckpointReader,
    variables: Mapping[str, tf.Variable],
) -> None:
    """Raises ValueError unless a checkpoint has exactly the given variables."""
    stored = stored_variables(reader)
    unexpected = stored.keys() - variables.keys() - {LEARNING_RATE_NAME}
    problems = mismatches(variables, stored, unexpected)
    problems += _lines("unexpected", unexpected, lambda name: f"{name}, {stored[name]}")
    raise_mismatches(checkpoint, problems, "use another --logdir")


def raise_mismatches(checkpoint: str, problems: Sequence[str], remedy: str) -> None:
    """Raises a ValueError that lists `problems` with a checkpoint, if there are any."""
    if problems:
        raise UserValueError(
            path=checkpoint,
            expected="the variables of the model",
            got=Words("\n".join(["", *problems, ""])),
            hint=f"Use the params it was saved with, those in params.txt, or {remedy}.",
        )


def mismatches(
    variables: Mapping[str, tf.Variable],
    stored: Mapping[str, str],
    near: Collection[str] = (),
    sources: Mapping[str, str] | None = None,
) -> list[str]:
    """Returns lines about variables missing in `stored`, or of another shape or dtype.

    `near` are names to suggest in place of a missing name. `sources` has the variables'
    names in the checkpoint, by path, if these are not the paths.
    """
    here = {path: describe(v.dtype, v.shape) for path, v in variables.items()}
    names = sources or {path: path for path in here}
    missing = [path for path in here if names[path] not in stored]
    present = here.keys() - missing
    mismatched = [path for path in present if stored[names[path]] != here[path]]

    def missing_text(path: str) -> str:
        use = "" if sources is None else f", for {path}"
        near_text = did_you_mean(names[path], near)
        return f"{names[path]}, {here[path]}{use}.{near_text}"

    def mismatched_text(path: str) -> str:
        return f"{path}, here {here[path]}, in the checkpoint {stored[names[path]]}"

    return [
        *_lines("missing", missing, missing_text),
        *_lines("mismatched", mismatched, mismatched_text),
    ]


def _lines(
    title: str, names: Iterable[str], text_of: Callable[[str], str]
) -> list[str]:
    names = sorted(names)
    lines = [f"    {text_of(name)}" for name in names[:_MAX_SHOWN]]
    if len(names) > _MAX_SHOWN:
        lines.append(f"    and {len(names) - _MAX_SHOWN} more")
    return [f"  {title} ({len(names)}):", *lines] if names else []


def differences(
    first: tf.train.CheckpointReader, second: tf.train.CheckpointReader
) -> dict[str, str]:
    """Returns, by name, a text about each variable that differs in two checkpoints."""
    left, right = stored_variables(first), stored_variables(second)
    text_by_name = {}
    for name in sorted(left.keys() | right.keys()):
        if name not in right:
            text = f"{left[name]}, only in the first"
        elif name not in left:
            text = f"{right[name]}, only in the second"
        elif left[name] != right[name]:
            text = f"{left[name]} in the first, {right[name]} in the second"
        else:
            text = _distance(first.get_tensor(name), second.get_tensor(name))
        if text:
            text_by_name[name] = text
    return text_by_name


def _distance(first: np.ndarray, second: np.ndarray) -> str:
    first, second = np.asarray(first), np.asarray(second)
    if first.tobytes() == second.tobytes():
        return ""
    count = f"{np.count_nonzero(first != second):,} of {first.size:,} differ"
    if first.dtype.kind in "OSU":
        return count
    # NumPy has no arithmetic for bfloat16.
    wide = np.complex128 if first.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):
        apart = np.abs(first.astype(wide) - second.astype(wide))
        sizes = np.abs(first.astype(wide))
    return f"{count}, by up to {apart.max():.3g}; the largest is {sizes.max():.3g}"
