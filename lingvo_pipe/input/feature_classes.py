"""A guard against the classes that the files of a data set name.

TensorFlow Datasets imports the modules of the classes that features.json and
dataset_info.json name, wherever Python finds them. So a folder from elsewhere could
name code of its own.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

from tensorflow_datasets.core.features.feature import FeatureConnector

from lingvo_pipe.core.errors import UserValueError

_lock = threading.RLock()


@contextlib.contextmanager
def imported_classes_only() -> Iterator[None]:
    """Lets TensorFlow Datasets restore features of imported classes alone.

    These include its own. ValueError is raised for another class, before its module is
    imported. The guard is where TensorFlow Datasets looks up each class, whichever file
    has named it, in all threads.
    """
    with _lock:
        look_up = FeatureConnector.cls_from_name

        def look_up_imported(name: str) -> Any:
            module = name.rpartition(".")[0]
            if module and module not in sys.modules:
                raise UserValueError(
                    path="dataset",
                    expected="features of TensorFlow Datasets, or of imported modules",
                    got=name,
                    hint="If you trust this code, import its module before, such as by "
                    "--model_imports, or --imports of lingvo_pipe prepare.",
                )
            return look_up(name)

        guard = staticmethod(look_up_imported)
        with mock.patch.object(FeatureConnector, "cls_from_name", guard):
            yield
