"""Functions that find, prepare and read data sets of TensorFlow Datasets."""

import contextlib
import errno
import json
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import tensorflow_datasets as tfds
from google.protobuf import json_format
from tensorflow_datasets.core.features.feature import FeatureConnector

from lingvo_pipe.core import regular_file
from lingvo_pipe.core.error_text import disk_problem
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.near_names import did_you_mean, first_names

# Registers data sets.
from lingvo_pipe.input.embedded import cldr_sentences, optdigits  # noqa: F401
from lingvo_pipe.input.embedded.embedded_builder import EmbeddedBuilder

_MAX_SHOWN = 10
# A community's data sets are made by code from the network; arguments may name folders.
_NOT_CHECKED = re.compile(r"[\w-]+:[A-Za-z_]|.*=")
# Errors of TensorFlow Datasets for files that hold something else.
_MALFORMED = (
    AttributeError,
    IsADirectoryError,
    KeyError,
    RecursionError,
    TypeError,
    json.JSONDecodeError,
    json_format.ParseError,
    tfds.core.dataset_info.DatasetInfoFileError,
)
# Errors of a folder that cannot be made or written.
_NO_FOLDER = (
    errno.EACCES,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
)


def find_builder(name: str, data_dir: str | None = None) -> Any:
    """Returns the tfds builder of a data set, which need not be prepared.

    The data set may be in TensorFlow Datasets, such as `cifar10:3.0.2`, be embedded, or
    be prepared in the folder `data_dir`, whose default is TFDS_DATA_DIR or
    ~/tensorflow_datasets.

    Raises:
        ValueError: if no such data set is known, or its files name code to import.
    """
    if _NOT_CHECKED.match(name):
        raise UserValueError(
            path="dataset",
            expected="NAME, NAME/CONFIG or NAME:VERSION, without a community or "
            "arguments",
            got=name,
            hint="Prepare such a data set by tfds.load, and give its name.",
        )
    if data_dir is not None:
        regular_file.check_local("data_dir", str(data_dir))
    try:
        with _imported_classes_only():
            builder = tfds.builder(name, data_dir=data_dir)
            builder.info  # noqa: B018  # Reads its features.
    except tfds.core.DatasetNotFoundError as error:
        # Listing community data sets would download to the home directory.
        raise UserValueError(
            path="dataset",
            expected="a name in TensorFlow Datasets",
            got=name,
            names=tfds.list_builders(with_community_datasets=False),
            hint="tfds.list_builders() lists them.",
        ) from error
    except UserValueError:
        raise
    except _MALFORMED as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserValueError(
            path="dataset",
            expected="files that TensorFlow Datasets has written",
            got=name,
            hint=f"{reason.rstrip('.')}. Prepare it again, set another data_dir, or "
            "mend the class that makes it.",
        ) from error
    except (AssertionError, ValueError) as error:
        expected = "NAME, NAME/CONFIG or NAME:VERSION of TensorFlow Datasets"
        hint = _configuration_problem(name) or str(error).splitlines()[0]
        raise UserValueError(
            path="dataset", expected=expected, got=name, hint=hint
        ) from error
    return builder


_lookup_lock = threading.RLock()


@contextlib.contextmanager
def _imported_classes_only() -> Iterator[None]:
    """Keeps TensorFlow Datasets from importing code that a data set's files name.

    TensorFlow Datasets imports the modules of the classes that features.json and
    dataset_info.json name, wherever Python finds them. So a folder from elsewhere could
    name code of its own. In this context, looking up a class of a module that is not
    yet imported raises an error, for all files and all threads.
    """
    with _lookup_lock:
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


def prepared_builder(name: str, data_dir: str | None = None) -> Any:
    """Returns the tfds builder of a data set that is prepared on disk.

    An embedded data set is prepared first if necessary. See `find_builder`.

    Raises:
        ValueError: if the data set is not prepared. The error has the command for that.
    """
    try:
        builder = find_builder(name, data_dir)
        if _is_prepared(builder):
            return builder
        if isinstance(builder, EmbeddedBuilder):
            prepare(builder)
            return find_builder(name, data_dir)
    except OSError as error:
        if disk_problem(error) or error.errno not in _NO_FOLDER:
            raise
        expected = "a folder that data sets can be written to"
        hint = f"{error}. Set another by --data_dir."
        raise UserValueError(
            path="data_dir", expected=expected, got=data_dir, hint=hint
        ) from error
    expected = "a prepared data set"
    hint = f"Prepare it with: {_command(builder, name, data_dir)}"
    got = Words(f"{name}, which is not in {builder.data_dir}")
    raise UserValueError(path="dataset", expected=expected, got=got, hint=hint)


def prepare(builder: Any, manual_dir: str | None = None) -> None:
    """Prepares a data set on disk, with downloads, unless it is prepared already.

    Several processes may call this at once: one prepares, and the others wait. What a
    killed process left unfinished is repeated. `manual_dir` holds manually downloaded
    files, and is by default downloads/manual in the folder of data sets. `builder`
    comes from `find_builder`. Its code may raise any error.
    """
    with _lock(builder):
        if _is_prepared(builder):  # Perhaps by another process since it was found.
            return
        modes = tfds.download.GenerateMode
        # tfds considers any existing directory a finished data set.
        is_broken = builder.data_path.exists()
        reuse = "REUSE_CACHE_IF_EXISTS" if is_broken else "REUSE_DATASET_IF_EXISTS"
        config = tfds.download.DownloadConfig(
            download_mode=modes[reuse], manual_dir=manual_dir, try_download_gcs=False
        )
        builder.download_and_prepare(file_format="array_record", download_config=config)


def open_records(builder: Any, split: str) -> Any:
    """Returns the stored records, as bytes, of a split such as `train[:90%]`.

    Raises:
        ValueError: if the split is unknown or empty, or has no random access.
    """
    raw = tfds.decode.DeserializeMethod.RAW_BYTES
    try:
        return builder.as_data_source(split, deserialize_method=raw)
    except NotImplementedError as error:
        raise UserValueError(
            path="dataset",
            expected=f"{builder.name} in the format array_record, for random access",
            got=Words(f"{builder.info.file_format.value} in {builder.data_dir}"),
            hint="Set another data_dir to prepare it there.",
        ) from error
    except ValueError as error:
        raise unknown_split(builder.name, split, list(builder.info.splits)) from error


def unknown_split(dataset: str, split: str, splits: Sequence[str]) -> ValueError:
    """Returns the error for a data set that has the splits `splits` but not `split`."""
    name = split.split("[")[0]
    return UserValueError(
        path="split",
        expected=f"{' or '.join(sorted(splits))} of the data set {dataset}, or a slice "
        f"such as {min(splits)}[:90%], with examples",
        got=split,
        hint="" if name in splits else did_you_mean(name, splits).strip(),
    )


def is_in_catalog(builder: Any) -> bool:
    """Returns whether the data set is in the catalog of TensorFlow Datasets."""
    return type(builder).__module__.startswith("tensorflow_datasets.")


def _configuration_problem(name: str) -> str:
    """Returns a sentence if `name` has an unknown configuration, or else ""."""
    dataset, *parts = re.split("[/:]", name)
    try:
        configurations = list(tfds.builder_cls(dataset).builder_configs)
    except (tfds.core.DatasetNotFoundError, ValueError):
        return ""
    if "/" not in name or not configurations or parts[0] in configurations:
        return ""
    near = did_you_mean(parts[0], configurations)
    some = f" It has {first_names(configurations, _MAX_SHOWN)}."
    return f"{dataset} has no {parts[0]!r}.{near or some}"


def _command(builder: Any, name: str, data_dir: str | None) -> str:
    command = f"lingvo_pipe prepare --dataset={name}"
    if data_dir is not None:
        command += f" --data_dir={data_dir}"
    if not is_in_catalog(builder):
        command += f" --imports={type(builder).__module__}"
    return command


def _is_prepared(builder: Any) -> bool:
    return (builder.data_path / "dataset_info.json").exists()


@contextlib.contextmanager
def _lock(builder: Any) -> Iterator[None]:
    """Locks a data set. The system releases the lock if the process dies."""
    builder.data_path.parent.mkdir(parents=True, exist_ok=True)
    path = builder.data_path.parent / ".prepare.lock"
    with regular_file.open_file(path, "ab") as lock:
        regular_file.lock_file(lock, path)
        yield
