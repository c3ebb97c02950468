"""Weights in other files than checkpoints. A tensor is read when it is asked for.

The kinds are safetensors (a length, a header in JSON, and raw values), NumPy's `.npz`,
Keras's `.weights.h5` and `.keras`, and SavedModels, which are folders. Names are those
in the file: Keras writes `layers/dense/vars/0`. Variables of a SavedModel that share a
name have their checkpoint keys, such as `layer/w/.ATTRIBUTES/VARIABLE_VALUE`, unless
they have the same value. The keys of TensorFlow 1 are the variables' names.
"""

import json
import math
import os
import struct
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.regular_file import MALFORMED
from lingvo_pipe.training.checkpoint.checkpoint_contents import (
    describe,
    stored_variables,
)
from lingvo_pipe.training.checkpoint.checkpoint_files import read_through

_UNREADABLE = (
    *MALFORMED,
    *(OSError, EOFError, MemoryError, RuntimeError),
    *(struct.error, zipfile.BadZipFile, zlib.error, DecodeError),
)
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_BFLOAT16 = tf.bfloat16.as_numpy_dtype
# The dtypes of safetensors: F32, I64, U8 and the like.
_SAFETENSORS: dict[str, Any] = {
    f"{kind.upper()}{8 * size}": f"<{kind}{size}"
    for kind in "fiu"
    for size in (1, 2, 4, 8)
} | {"BOOL": "?", "BF16": _BFLOAT16}


class WeightFile(NamedTuple):
    """Tensors of a file by name, read as from a `tf.train.CheckpointReader`."""

    stored: dict[str, str]  # Dtype and shape of each tensor; see `describe`.
    get_tensor: Callable[[str], Any]

    def has_tensor(self, name: str) -> bool:
        """Returns whether the file has a tensor of this name."""
        return name in self.stored


def is_weight_file(path: Path) -> bool:
    """Returns whether `path` is a SavedModel's folder, or ends as a file of weights."""
    return path.suffix in _KINDS or (path / "saved_model.pb").is_file()


def open_weight_file(path: Path, param: str) -> WeightFile:
    """Opens a file for which `is_weight_file` holds.

    Raises:
        ValueError: if the file is missing or damaged. The error names `param`.
    """
    expected = f"an undamaged {path.suffix} file"
    if not path.exists():
        got = Words(f"{path}, which does not exist")
        raise UserValueError(path=param, expected=expected, got=got)
    try:
        if path.is_dir():
            expected = "an undamaged SavedModel"
            return _open_saved_model(path)
        return _KINDS[path.suffix](path)
    except _UNREADABLE as error:
        got = Words(f"{path} ({' '.join(str(error).split())})")
        raise UserValueError(path=param, expected=expected, got=got) from error


def _open_saved_model(path: Path) -> WeightFile:
    reader = read_through(str(path / "variables" / "variables"))
    described, graph = stored_variables(reader), TrackableObjectGraph()
    if _OBJECT_GRAPH not in described:
        return WeightFile(described, reader.get_tensor)
    graph.ParseFromString(reader.get_tensor(_OBJECT_GRAPH))
    keys_by_name = defaultdict(list)
    for attribute in (x for node in graph.nodes for x in node.attributes):
        keys_by_name[attribute.full_name].append(attribute.checkpoint_key)
    keys_by_name.pop("", None)
    keys: dict[str, str] = {}
    for name, same in keys_by_name.items():
        values = set()
        if len(same) > 1:  # Keras writes each variable twice.
            arrays = ((described[x], np.asarray(reader.get_tensor(x))) for x in same)
            values = {(text, array.tobytes()) for text, array in arrays}
        keys |= {name: same[0]} if len(values) < 2 else {x: x for x in same}
    stored = {name: described[key] for name, key in keys.items()}
    return WeightFile(stored, lambda name: reader.get_tensor(keys[name]))


def _open_safetensors(path: Path) -> WeightFile:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        (length,) = struct.unpack("<Q", file.read(8))
        begin = 8 + length
        if size < begin:
            raise ValueError(f"{size} bytes, fewer than its header's {begin}")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("a header that is no object")
    header.pop("__metadata__", None)
    stored = {name: _checked(name, entry) for name, entry in header.items()}
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size != begin + end:
        raise ValueError(f"{size} bytes, where its header expects {begin + end}")

    def get_tensor(name: str) -> Any:
        dtype, shape = header[name]["dtype"], header[name]["shape"]
        offset, count = begin + header[name]["data_offsets"][0], math.prod(shape)
        return np.fromfile(path, _SAFETENSORS[dtype], count, offset=offset).reshape(
            shape
        )

    return WeightFile(stored, get_tensor)


def _checked(name: str, entry: Any) -> str:
    """Returns dtype and shape of an entry of a header, whose range must fit them."""
    if entry["dtype"] not in _SAFETENSORS:  # No variable has it.
        return f"{entry['dtype']} {entry['shape']}"
    dtype, (first, last) = np.dtype(_SAFETENSORS[entry["dtype"]]), entry["data_offsets"]
    if not 0 <= first <= last == first + math.prod(entry["shape"]) * dtype.itemsize:
        raise ValueError(f"{name} has {last - first} bytes")
    return describe(dtype, entry["shape"])


def _open_npz(path: Path) -> WeightFile:
    arrays = np.load(path, allow_pickle=False)
    if not isinstance(arrays, np.lib.npyio.NpzFile):
        raise ValueError("one array, not an archive")
    # Reads each once, which checks its checksum.
    stored = {name: _described(arrays[name]) for name in arrays.files}
    return WeightFile(stored, lambda name: _native(arrays[name]))


def _open_keras(path: Path) -> WeightFile:
    archive = zipfile.ZipFile(path)
    if damaged := archive.testzip():
        raise ValueError(f"wrong checksum of {damaged}")
    return _open_hdf5(archive.open("model.weights.h5"))


def _open_hdf5(file: Path | IO[bytes]) -> WeightFile:
    import h5py  # Keras needs it; other runs need not wait for it.

    datasets: dict[str, Any] = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                raise ValueError(f"{name} is in another file")
            is_bfloat16 = item.attrs.get("dtype") == "bfloat16"
            datasets[name] = item.astype(_BFLOAT16) if is_bfloat16 else item

    h5py.File(file, "r").visititems(add)
    stored = {name: _described(data) for name, data in datasets.items()}
    return WeightFile(stored, lambda name: _native(datasets[name][()]))


def _native(array: Any) -> Any:
    array = np.asarray(array)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _described(array: Any) -> str:
    return describe(array.dtype, array.shape)


_KINDS: dict[str, Callable[[Path], WeightFile]] = {
    ".safetensors": _open_safetensors,
    ".npz": _open_npz,
    ".h5": _open_hdf5,
    ".keras": _open_keras,
}
