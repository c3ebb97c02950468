"""The first values that are not finite are told, and of which kind."""

from __future__ import annotations

import math
import re

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.not_finite import NotFinite

NAN, INF = math.nan, math.inf


def _told(*values: tuple[str, str, tf.Tensor]) -> str:
    found = NotFinite()
    for where, what, x in values:
        found.look_at(where, [(what, x)])
    with pytest.raises(FloatingPointError) as caught:
        found.raise_found()
    return str(caught.value)


def test_nothing_is_told_of_what_is_finite() -> None:
    found = NotFinite()
    found.look_at("model", [("a", tf.ones([2])), ("b", tf.constant([1, 2]))])
    found.look_at("model", [("c", tf.constant(["nan"])), ("d", tf.zeros([0]))])
    found.raise_found()


@pytest.mark.parametrize(
    "dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64]
)
def test_the_first_is_told_with_how_many(dtype: tf.DType) -> None:
    x = tf.cast(tf.constant([1.0, NAN, 2.0, NAN]), dtype)
    told = _told(
        ("l0", "output", tf.ones([2], dtype)),
        ("l1", "output", x),
        ("l2", "output", x + x),
    )
    assert re.search(r"\boutput\b.*\bl1\b\D*\bnan\D*\b2\D*\b4\W*$", told)
    assert "l0" not in told


def test_what_is_infinite_may_be_meant_so_the_first_nan_is_told_too() -> None:
    told = _told(
        ("l0", "mask", tf.constant([0.0, -INF])),
        ("l1", "output", tf.constant([INF])),
        ("l2", "output", tf.constant([INF, NAN, 3.0])),
        ("l3", "output", tf.constant([NAN])),
    )
    first = r"\bmask\b.*\bl0\b\D*\binf\D*\b1\D*\b2"
    nan = r"\boutput\D*\bl2\b\D*\bnan\D*\binf\D*\b2\D*\b3"
    assert re.search(rf"{first}\D*{nan}\W*$", told)
