"""An error says where it came up, and stays what it is."""

from __future__ import annotations

import re
import traceback
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.tracing.named_errors import named_errors, specs_text

WHERE = "FProp of the FCLayer at model/dense (stage 0)"


class OddError(LookupError):
    """One that is not made of a message."""

    def __init__(self, code: int, name: str):
        super().__init__(f"{name}: {code}")


class OddValueError(ValueError):
    """Likewise."""

    def __init__(self, code: int, name: str):
        super().__init__(f"{name}: {code}")


def _decoding() -> None:
    b"\xff".decode()


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (AttributeError("odd"), AttributeError),
        (TypeError("odd"), TypeError),
        (ValueError("odd"), ValueError),
        (KeyError("odd"), KeyError),
        (IndexError("odd"), IndexError),
        (NotImplementedError("odd"), NotImplementedError),
        (ZeroDivisionError("odd"), ZeroDivisionError),
        (AssertionError("odd"), AssertionError),
        (RuntimeError("odd"), RuntimeError),
        (OddError(3, "odd"), LookupError),
        (OddValueError(3, "odd"), ValueError),
        (UnicodeDecodeError("odd", b"", 0, 1, ""), ValueError),
        (tf.errors.OpError(None, None, "odd", 2), RuntimeError),
        (tf.errors.OutOfRangeError(None, None, "odd"), tf.errors.OutOfRangeError),
    ],
)
def test_errors_of_every_kind_are_named(error: Exception, kind: type) -> None:
    specs = [tf.TensorSpec([2, 3]), None, {"a": tf.TensorSpec([], tf.int32)}]
    with pytest.raises(kind) as found, named_errors(WHERE, specs, "Look there."):
        _raise(error)
    assert type(found.value) is kind
    text = str(found.value)
    assert re.search(rf"{re.escape(WHERE)}.*float32 \(2, 3\), a int32 \(\)", text)
    assert "odd" in text
    assert "Look there." in text
    # Whoever reads it sees what raised it.
    assert traceback.extract_tb(found.value.__traceback__)[-1].name == "_raise"


def test_what_is_named_already_is_left_alone() -> None:
    error = KeyError(f"{WHERE} has none")
    with pytest.raises(KeyError) as found, named_errors(WHERE, []):
        raise error
    assert found.value is error


def test_the_cause_of_an_error_stays() -> None:
    cause = ValueError("the cause")
    named = rf"{re.escape(WHERE)}.*\bodd$"
    with pytest.raises(TypeError, match=named) as found, named_errors(WHERE, None):
        raise TypeError("odd") from cause
    assert found.value.__cause__ is cause


@pytest.mark.parametrize(
    ("structure", "text"),
    [
        (tf.TensorSpec([2]), "float32 (2,)"),
        (
            [tf.TensorSpec([2]), None, tf.TensorSpec([], tf.int32)],
            "float32 (2,), int32 ()",
        ),
        ({"x": [tf.TensorSpec([2])], "y": None}, "x[0] float32 (2,)"),
        ((None, {"x": tf.TensorSpec([2])}), "x float32 (2,)"),
        (
            ([tf.TensorSpec([1]), tf.TensorSpec([2])],),
            "[0] float32 (1,), [1] float32 (2,)",
        ),
        (None, ""),
    ],
)
def test_tensors_are_named_by_their_places(structure: Any, text: str) -> None:
    assert specs_text(structure) == text


@pytest.mark.parametrize("text", ["odd", "odd."])
def test_a_hint_is_a_sentence_of_its_own(text: str) -> None:
    with (
        pytest.raises(TypeError, match=rf"{re.escape(WHERE)}.*\bodd\. Look\.$"),
        named_errors(WHERE, [], "Look."),
    ):
        raise TypeError(text)
