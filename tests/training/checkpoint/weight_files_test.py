"""Each kind of file gives back what was written, and is refused if it is damaged."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.training.checkpoint.weight_files import (
    is_weight_file,
    open_weight_file,
)
from tests.support.errors import fails

BFLOAT16 = tf.bfloat16.as_numpy_dtype
_CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}


def example_arrays(*dtypes: Any) -> dict[str, np.ndarray]:
    shapes = {"a/w": (2, 3), "b": (4,), "empty": (0, 2), "scalar": ()}
    return {
        f"{name}_{np.dtype(dtype).name}": np.arange(math.prod(shape))
        .reshape(shape)
        .astype(dtype)
        for name, shape in shapes.items()
        for dtype in dtypes
    }


def _write_safetensors(path: Path) -> dict[str, Any]:
    arrays = example_arrays(np.float32, np.float16, BFLOAT16, np.int64)
    header: dict[str, Any] = {"__metadata__": {"format": "np"}}
    data = b""
    for name, x in arrays.items():
        end = len(data) + x.nbytes
        header[name] = {
            "dtype": _CODES[x.dtype.name],
            "shape": x.shape,
            "data_offsets": [len(data), end],
        }
        data += x.tobytes()
    text = json.dumps(header).encode() + b"  "
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return arrays


def _write_npz(path: Path) -> dict[str, Any]:
    arrays: dict[str, Any] = example_arrays(np.float32, np.float16, np.int64)
    np.savez(path, **arrays, big=np.arange(3, dtype=">f4"))
    return arrays | {"big": np.arange(3, dtype=np.float32)}


def _keras_model() -> tuple[Any, dict[str, Any]]:
    layers = keras.layers.Dense(3), keras.layers.Dense(2, dtype="bfloat16")
    model = keras.Sequential([keras.Input((4,)), *layers])
    names = ("layers/dense/vars/", "layers/dense_1/vars/")
    arrays = {
        f"{name}{i}": variable.numpy()
        for name, layer in zip(names, layers, strict=True)
        for i, variable in enumerate(layer.variables)
    }
    return model, arrays


def _write_keras(path: Path) -> dict[str, Any]:
    model, arrays = _keras_model()
    model.save(path)
    return arrays


def _write_hdf5(path: Path) -> dict[str, Any]:
    model, arrays = _keras_model()
    model.save_weights(path)
    return arrays


Write = Callable[[Path], dict[str, Any]]
KINDS: dict[str, Write] = {
    "x.safetensors": _write_safetensors,
    "x.npz": _write_npz,
    "x.keras": _write_keras,
    "x.weights.h5": _write_hdf5,
}
each_kind = pytest.mark.parametrize(("name", "write"), KINDS.items(), ids=KINDS)


@each_kind
def test_what_was_written_is_read(name: str, write: Write, tmp_path: Path) -> None:
    path = tmp_path / name
    arrays = write(path)
    assert is_weight_file(path)
    file = open_weight_file(path, "p")
    assert file.stored == {
        name: f"{x.dtype.name} {list(x.shape)}" for name, x in arrays.items()
    }
    for name, x in arrays.items():
        value = file.get_tensor(name)
        assert (value.dtype, value.shape) == (x.dtype, x.shape)
        assert value.tobytes() == x.tobytes()
        assert file.has_tensor(name)
    assert not file.has_tensor("other")


@each_kind
def test_a_file_cut_short_is_refused(name: str, write: Write, tmp_path: Path) -> None:
    path = tmp_path / name
    write(path)
    content = path.read_bytes()
    for length in (0, 5, 20, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with fails(path="p", expected=f"an undamaged {path.suffix} file") as info:
            open_weight_file(path, "p")
        assert str(info.value.got).startswith(f"{path} (")


def test_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    for name in ("x.npz", "x.keras"):
        path = tmp_path / name
        values = KINDS[name](path)
        content, data = path.read_bytes(), next(iter(values.values())).tobytes()
        at = content.index(data)
        path.write_bytes(content[:at] + b"\xff" + content[at + 1 :])
        with fails(path="p", expected=f"an undamaged {path.suffix} file"):
            open_weight_file(path, "p")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [2]},
        [],
    ],
)
def test_wrong_headers_are_refused(entry: Any, tmp_path: Path) -> None:
    path, text = tmp_path / "x.safetensors", json.dumps({"w": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with fails(path="p", expected="an undamaged .safetensors file"):
        open_weight_file(path, "p")


@pytest.mark.parametrize("header", [b"5", b'"x"', b"[]", b"null"])
def test_a_header_that_is_no_object_is_refused(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with fails(path="p", expected="an undamaged .safetensors file"):
        open_weight_file(path, "p")


def test_a_dtype_that_no_variable_has_is_named(tmp_path: Path) -> None:
    entry = {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}
    path, text = tmp_path / "x.safetensors", json.dumps({"w": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    assert open_weight_file(path, "p").stored == {"w": "F8_E4M3 [8]"}


def test_pickles_and_values_in_other_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.array([{}], dtype=object))
    (tmp_path / "secret").write_bytes(bytes(8))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        external = [(str(tmp_path / "secret"), 0, 8)]
        file.create_dataset("w", shape=[2], dtype="f4", external=external)
    for name in ("x.npz", "x.h5"):
        with fails(path="p"):
            open_weight_file(tmp_path / name, "p")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with fails(path="p", got=f"{tmp_path}/x.npz, which does not exist"):
        open_weight_file(tmp_path / "x.npz", "p")


def test_a_saved_model_is_read_by_the_names_of_its_variables(tmp_path: Path) -> None:
    module = tf.Module()
    module.kept = [tf.Variable([1.0, 2.0], name="task/a/w"), tf.Variable(3, name="b")]
    module.c, module.d = (tf.Variable([x], name="same") for x in (3.0, 4.0))
    module.copies = [tf.Variable([5.0], name="copied") for _ in range(2)]
    tf.saved_model.save(module, str(tmp_path))
    assert is_weight_file(tmp_path)
    file = open_weight_file(tmp_path, "p")
    keys = [f"{x}/.ATTRIBUTES/VARIABLE_VALUE" for x in "cd"]
    assert file.stored == {
        "task/a/w": "float32 [2]",
        "b": "int32 []",
        "copied": "float32 [1]",
        **dict.fromkeys(keys, "float32 [1]"),
    }
    assert file.get_tensor("task/a/w").tolist() == [1.0, 2.0]
    assert [file.get_tensor(key).tolist() for key in keys] == [[3.0], [4.0]]
    for path in (tmp_path / "variables").glob("*.data*"):
        path.write_bytes(path.read_bytes()[:-4])
    with fails(path="p", expected="an undamaged SavedModel"):
        open_weight_file(tmp_path, "p")


def test_a_saved_model_of_tensorflow_1_is_read(tmp_path: Path) -> None:
    """It names its variables by their keys, and has no graph of objects."""
    v1, path = tf.compat.v1, tmp_path / "export"
    with tf.Graph().as_default(), v1.Session() as session:
        v1.Variable([1.0, 2.0], name="dense/kernel", use_resource=True)
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"])
        builder.save()
    file = open_weight_file(path, "p")
    assert file.stored == {"dense/kernel": "float32 [2]"}
    assert file.get_tensor("dense/kernel").tolist() == [1.0, 2.0]
