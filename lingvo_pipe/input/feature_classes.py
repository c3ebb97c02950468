"""The classes that a prepared data set names in its features.json.

TensorFlow Datasets imports the modules of these classes, wherever Python finds them, so
a folder from elsewhere could name code of its own.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorflow_datasets.core import naming

from lingvo_pipe.core.errors import UserValueError

_OWN = "tensorflow_datasets."
# Keys of class names; the last is of folders that older versions have written.
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")
# NAME, NAME/CONFIG, NAME/CONFIG/VERSION and NAME/VERSION.
_DEPTHS = ("features.json", "*/features.json", "*/*/features.json")


def check_features(name: str, data_dirs: list[Any]) -> None:
    """Raises ValueError if a data set's folder names classes to be imported.

    Classes of TensorFlow Datasets, and of modules that are imported already, are fine.
    `name` is as in `tfds.builder`, and `data_dirs` are the folders of data sets.
    """
    try:
        dataset, _ = naming.parse_builder_name_kwargs(name)
    except ValueError:  # No name of a data set.
        return
    folders = [Path(x).expanduser() / dataset.name for x in data_dirs]
    for folder, depth in itertools.product(folders, _DEPTHS):
        for path in folder.glob(depth):
            _check_file(path)


def _check_file(path: Path) -> None:
    try:
        features = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return  # TensorFlow Datasets cannot read it either.
    if foreign := sorted(set(filter(_is_foreign, _class_names(features)))):
        raise UserValueError(
            path=str(path),
            expected="features of classes of TensorFlow Datasets",
            got=foreign,
            hint="If you trust this code, import the module before, such as by "
            "--model_imports.",
        )


def _is_foreign(name: str) -> bool:
    return not name.startswith(_OWN) and name.rpartition(".")[0] not in sys.modules


def _class_names(value: Any) -> Iterator[str]:
    """Yields the class names below a JSON value, also within texts of JSON."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in _CLASS_KEYS and isinstance(item, str) and "." in item:
                yield item
            yield from _class_names(item)
    elif isinstance(value, list):
        for item in value:
            yield from _class_names(item)
    elif isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError):
            return
        yield from _class_names(inner)
