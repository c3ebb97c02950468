"""Checks of images and labels against a model's sizes.

Shapes: B images in a batch, of height H and width W, with C channels and N classes.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.sequential import SequentialLayer

# The error of TensorFlow's cross entropy on a CPU.
_BAD_LABEL = re.compile(
    r"(In .*?): Received a label value of (-?\d+) which is outside the valid range of "
    r"\[0, (\d+)\)"
)


class Size(NamedTuple):
    """A size in a model, and the path of the param that declares the size."""

    path: str
    value: int


def check_images(data: Any, taken: Size | None, given: Size | None) -> None:
    """Raises ValueError unless a model takes an input's images and all its classes.

    Images are `[B, H, W, C]`. `taken` is the number of channels that the model's first
    layer takes, which must be C. `given` is the number of the model's outputs, which
    must be at least N. Either is None if unknown.
    """
    spec: Any = getattr(data, "element_spec", {})
    image = spec.get("image")
    is_image = image is not None and image.shape.rank == 4
    if taken and is_image and image.shape[-1] != taken.value:
        raise UserValueError(
            path="input.channels" if "channels" in data.params else "input",
            expected=f"{taken.value}, the channels that {taken.path} takes",
            got=image.shape[-1],
            hint=f"Set input.channels to {taken.value} to convert the images, or "
            "change the model's first layer.",
        )
    names: Sequence[str] = getattr(data, "class_names", ()) if given else ()
    if given and len(names) > given.value:
        raise UserValueError(
            path=given.path,
            expected=f"an output for each of the {len(names)} classes of the input, "
            f"the last of which is {names[-1]!r}",
            got=given.value,
            hint="Give the model more outputs, or set input.labels to fewer classes.",
        )


def declared_size(
    pipeline: InstantiableParams, index: int, names: Sequence[str]
) -> Size | None:
    """Returns the size that the first or the last layer of a pipeline declares.

    The size is in the first of the params `names` that the layer has. Returns None if
    the layer has none of them. `index` is 0 for the first layer and -1 for the last.
    """
    is_before = index == 0 and pipeline.before_tpl
    path = "task.pipeline." + ("before_tpl" if is_before else "cell_tpl")
    layers = pipeline.before_tpl if is_before else pipeline.cell_tpl
    while layers:
        p, path = layers[index], f"{path}[{index % len(layers)}]"
        for name in names:
            if name in p:
                value = p.Get(name)
                is_filter = name == "filter_shape" and len(value) == 4
                value = value[2] if is_filter else value
                return Size(f"{path}.{name}", value) if is_count(value) else None
        layers, path = p.sub if p.cls is SequentialLayer else (), f"{path}.sub"
    return None


@contextlib.contextmanager
def labels_explained(*inputs: Any) -> Iterator[None]:
    """Turns TensorFlow's error about a label without an output into a ValueError."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        match = _BAD_LABEL.search(error.message)
        if match is None:
            raise
        where, label, number = match.groups()
        owners = " or ".join(dict.fromkeys(x.params.cls.__name__ for x in inputs))
        raise UserValueError(
            path="input",
            expected=f"labels from 0 to {int(number) - 1}, since the model has "
            f"{number} outputs, in the batches of {owners}",
            got=int(label),
            hint=f"{where}. Correct the labels there, or give the model's last layer "
            "more outputs.",
        ) from error
