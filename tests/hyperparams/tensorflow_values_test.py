"""TensorFlow's own values: dtypes in texts, tensors in copies."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import tensorflow as tf

from tests.hyperparams.sample_params import params
from tests.support.errors import fails

DTYPES = [
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.bool, tf.string),
    *(tf.int8, tf.int64, tf.uint8, tf.complex64, tf.resource, tf.variant, tf.qint8),
    *(tf.as_dtype("float8_e5m2"), tf.as_dtype("int4"), tf.as_dtype("float32_ref")),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("default", [None, tf.float32, "float32", 3])
def test_dtypes_are_read_as_written(dtype: tf.DType, default: object) -> None:
    p = params(dtype=default).Set(dtype=dtype)
    assert params(dtype=default).FromText(p.ToText()).dtype is dtype
    p = params(dtype=default).Set(dtype=[dtype, {"a": dtype}])
    assert params(dtype=default).FromText(p.ToText()) == p


def test_dtypes_as_people_write_them() -> None:
    assert params(dtype=tf.float32).ToText() == "dtype : float32\n"
    assert params(dtype=tf.float32).FromText("dtype : bool").dtype is tf.bool
    assert params(dtype=None).FromText("dtype : bfloat16").dtype is tf.bfloat16
    assert params(dtype=None).FromText("dtype : string").dtype == "string"
    assert params(dtype="").FromText("dtype : float32").dtype == "float32"
    with fails(path="dtype", got="floaty"):
        params(dtype=tf.float32).FromText("dtype : floaty")


def test_copies_share_tensors_variables_and_dtypes() -> None:
    p = params(values=[tf.constant([1.0]), tf.Variable([2.0]), tf.float32])
    q = p.Copy()
    assert q.values is not p.values
    assert all(map(lambda a, b: a is b, q.values, p.values))
    assert q == p
    assert p != p.Copy().Set(**{"values[0]": tf.constant([1.0])})
    assert pickle.loads(pickle.dumps(params(dtype=tf.int8))).dtype is tf.int8


def test_a_tensor_has_no_text_form() -> None:
    with fails(path="dtype"):
        params(dtype=tf.constant(1)).ToText()


def test_functions_of_tensorflow_are_read_as_written() -> None:
    p = params(dtype=tf.nn.relu)
    assert params(dtype=None).FromText(p.ToText()).dtype is tf.nn.relu


def test_tensorflow_is_imported_only_for_a_dtype() -> None:
    program = (
        "import sys; from lingvo_pipe.hyperparams import Params;"
        "p = Params(); p.Define('a', None, ''); p.Copy().FromText(p.ToText());"
        "assert 'tensorflow' not in sys.modules and 'numpy' not in sys.modules;"
        "p.FromText('a : float32'); assert p.a is sys.modules['tensorflow'].float32"
    )
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": ""}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
