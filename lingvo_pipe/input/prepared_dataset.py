"""Data sets of TensorFlow Datasets, prepared on disk and open for random access."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow_datasets as tfds

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.input import optdigits  # noqa: F401  Registers the embedded data set.


def prepared_builder(name: str, data_dir: str | None = None) -> Any:
    """Returns the builder of a data set, prepared on disk if it was not yet.

    Any number of processes may ask for the same data set at once: one prepares it, the
    others wait. What a killed process left half-prepared is prepared anew.

    Args:
        name: A name of TensorFlow Datasets, such as `cifar10` or `cifar10:3.0.2`, or
            that of an embedded data set.
        data_dir: Where data sets lie; None for the directory in the environment
            variable TFDS_DATA_DIR, or else ~/tensorflow_datasets.

    Returns:
        The tfds builder.

    Raises:
        ValueError: If no such data set is known.
    """
    builder = _builder(name, data_dir)
    if _is_prepared(builder):
        return builder
    with _lock(builder):
        builder = _builder(name, data_dir)  # Another process may have prepared it.
        if not _is_prepared(builder):
            _prepare(builder)
    return builder


def open_split(builder: Any, split: str) -> Sequence[dict[str, Any]]:
    """Returns the examples of one split, to be read in any order.

    Args:
        builder: What `prepared_builder` returned.
        split: A split such as `train`, or a part of one such as `train[:90%]`.

    Raises:
        ValueError: If there is no such split, it is empty, or the data set was prepared
            in a format without random access.
    """
    try:
        return builder.as_data_source(split)
    except NotImplementedError as error:
        raise ValueError(
            f"data set {builder.name} must be stored as array_record, which gives "
            f"random access; got {builder.info.file_format.value} in "
            f"{builder.data_dir}. Name another data_dir to prepare it there."
        ) from error
    except ValueError as error:
        splits, whole = sorted(builder.info.splits), split.split("[")[0]
        near = "" if whole in splits else did_you_mean(whole, splits)
        raise ValueError(
            f"split must be {' or '.join(splits)} of the data set {builder.name}, or a "
            f"part of one such as {splits[0]}[:90%]; got {split!r}, which is no split "
            f"or holds no example.{near}"
        ) from error


def _builder(name: str, data_dir: str | None) -> Any:
    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        # The list of community data sets would be fetched, and kept at home.
        known = tfds.list_builders(with_community_datasets=False)
        near = did_you_mean(name, known)
        raise ValueError(
            f"dataset must be a name of TensorFlow Datasets; got {name!r}."
            f"{near or ' tfds.list_builders() lists them.'}"
        ) from error
    except (AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            "dataset must be NAME, NAME/CONFIG or NAME:VERSION of TensorFlow Datasets; "
            f"got {name!r}. {reason}"
        ) from error


def _is_prepared(builder: Any) -> bool:
    return (builder.data_path / "dataset_info.json").exists()


def _prepare(builder: Any) -> None:
    mode = tfds.download.GenerateMode
    # tfds takes a directory for a finished data set, whatever is in it.
    is_broken = builder.data_path.exists()
    config = tfds.download.DownloadConfig(
        download_mode=mode.REUSE_CACHE_IF_EXISTS
        if is_broken
        else mode.REUSE_DATASET_IF_EXISTS,
        try_download_gcs=False,
    )
    builder.download_and_prepare(file_format="array_record", download_config=config)


@contextlib.contextmanager
def _lock(builder: Any) -> Iterator[None]:
    """Holds the data set's lock, which the system frees when its holder dies."""
    builder.data_path.parent.mkdir(parents=True, exist_ok=True)
    with open(builder.data_path.parent / ".prepare.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
