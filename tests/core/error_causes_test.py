"""Errors of TensorFlow, provoked, have a likely cause and something to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.error_causes import likely_cause
from lingvo_pipe.core.error_text import plain_message
from lingvo_pipe.pipeline.debug.diagnosis import naming
from tests.support.cases import exhaustive

ABSENT = "/absent/data.txt"


def call(function: Callable[..., Any], *values: Any) -> None:
    """Runs a function as a graph whose shapes are unknown before it runs."""
    given = [tf.convert_to_tensor(value) for value in values]
    spec = [tf.TensorSpec(None, x.dtype) for x in given]
    tf.function(function, autograph=False, input_signature=spec)(*given)


def read(value: Any, parse: Callable[[Any], Any]) -> None:
    list(tf.data.Dataset.from_tensors(value).map(parse))


def damaged(folder: Path) -> None:
    (folder / "data").write_bytes(b"x" * 100)
    list(tf.data.TFRecordDataset(str(folder / "data")))


def asserts(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_positive(x)]):
        return tf.identity(x)


def extract(x: tf.Tensor) -> tf.Tensor:
    return tf.image.extract_patches(x, [2, 1, 1, 1], [1] * 4, [1] * 4, "SAME")


def past_the_end() -> None:
    options = {"output_types": [tf.int64], "output_shapes": [[]]}
    iterator = iter(tf.data.Dataset.range(0))
    tf.raw_ops.IteratorGetNext(iterator=iterator._iterator_resource, **options)


def cancel() -> None:
    queue = tf.queue.FIFOQueue(1, [tf.int32])
    queue.close()
    queue.enqueue(1)


INT_FEATURE = {"a": tf.io.FixedLenFeature([], tf.int64)}
ZEROS = np.zeros([2, 3], np.float32)
CASES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "memory": ("memory", lambda _: call(lambda n: tf.zeros([n, n]), 2**21)),
    "label": (
        "number of classes",
        lambda _: call(
            lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits(x, ZEROS), [1, 3]
        ),
    ),
    "id": ("index", lambda _: call(lambda i: tf.gather(ZEROS, i), [0, 2])),
    "slice": ("index", lambda _: call(lambda i: tf.constant(ZEROS)[i], 5)),
    "sum": ("shapes", lambda _: call(tf.add, ZEROS, np.zeros([2, 4], np.float32))),
    "product": ("shapes", lambda _: call(tf.matmul, ZEROS, ZEROS)),
    "concat": ("shapes", lambda _: call(lambda *x: tf.concat(x, 1), ZEROS, ZEROS[:1])),
    "reshape": ("shapes", lambda _: call(lambda x: tf.reshape(x, [5, -1]), ZEROS)),
    "convolution": (
        "shapes",
        lambda _: call(
            lambda x: tf.nn.conv2d(x, tf.zeros([1, 1, 5, 5]), 1, "SAME"),
            tf.zeros([1, 3, 3, 4]),
        ),
    ),
    "nan": (
        "not finite",
        lambda _: call(lambda x: tf.debugging.check_numerics(x, "x"), np.nan),
    ),
    "assertion": ("assertion", lambda _: call(asserts, -1.0)),
    "division": ("0", lambda _: call(lambda x: 5 // x, 0)),
    "inverse": ("0", lambda _: call(tf.linalg.inv, tf.zeros([2, 2]))),
    "image": ("image", lambda _: call(tf.io.decode_image, b"no image")),
    "png": ("image", lambda _: call(tf.io.decode_png, b"\x89PNG\r\n\x1a\n..")),
    "file": ("not there", lambda _: list(tf.data.TextLineDataset(ABSENT))),
    "read": ("not there", lambda _: read(ABSENT, tf.io.read_file)),
    "folder": ("not there", lambda path: list(tf.data.TextLineDataset(str(path)))),
    "record": ("damaged", damaged),
    "feature": (
        "form",
        lambda _: read(b"", lambda x: tf.io.parse_single_example(x, INT_FEATURE)),
    ),
    "number": ("form", lambda _: read("x", tf.strings.to_number)),
    "fields": ("form", lambda _: read("1,2", lambda x: tf.io.decode_csv(x, [[1]]))),
    "batch": (
        "one batch",
        lambda _: list(
            tf.data.Dataset.range(1, 4).map(lambda n: tf.zeros([n])).batch(2)
        ),
    ),
    "unimplemented": ("device", lambda _: extract(tf.zeros([2, 2, 3, 1]))),
    "kernel": (
        "device",
        lambda _: tf.raw_ops.NcclAllReduce(
            input=[1.0], reduction="sum", num_devices=1, shared_name="a"
        ),
    ),
    "end": ("ended", lambda _: past_the_end()),
    "cancelled": ("failed first", lambda _: cancel()),
}


@pytest.mark.parametrize(
    ("cause", "provoke"),
    # TensorFlow waits ten seconds for memory to become free.
    [exhaustive(*x) if name == "memory" else x for name, x in CASES.items()],
    ids=CASES,
)
def test_a_provoked_error_has_its_cause(
    cause: str, provoke: Callable[[Path], Any], tmp_path: Path
) -> None:
    with pytest.raises(tf.errors.OpError) as found, naming("layer a/b"):
        provoke(tmp_path)
    first, *_, likely, remedy = str(found.value).splitlines()
    assert first.startswith("In layer a/b: ")
    assert re.fullmatch(rf"Likely cause: .*\b{cause}\b.*\.", likely)
    assert re.fullmatch(r"What to do: .*\.", remedy)


@pytest.mark.parametrize(
    ("kind", "message", "cause"),
    [
        ("UnavailableError", "Socket closed", "worker was lost"),
        ("DeadlineExceededError", "Deadline exceeded", "in time"),
        ("FailedPreconditionError", "Table not initialized.", "before it has a value"),
        ("InternalError", "CUDA_ERROR_ILLEGAL_ADDRESS", "GPU"),
        ("ResourceExhaustedError", "/x; No space left on device", "disk"),
        ("PermissionDeniedError", "/x; Permission denied", "user"),
    ],
)
def test_an_error_of_a_machine_has_its_cause(
    kind: str, message: str, cause: str
) -> None:
    assert f" {cause}" in likely_cause(kind, message)


def test_other_errors_and_those_of_python_have_none() -> None:
    assert likely_cause("UnknownError", "odd") == ""

    def divides(x: tf.Tensor) -> float:
        return 1 / 0 * x

    with pytest.raises(tf.errors.OpError) as found:
        call(lambda x: tf.py_function(divides, [x], tf.float32), 1.0)
    message = plain_message(found.value.message)
    assert "division by zero" in message
    assert likely_cause(type(found.value).__name__, message) == ""
