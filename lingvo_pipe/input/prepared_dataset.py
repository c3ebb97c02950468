"""Data sets of TensorFlow Datasets: found, prepared on disk, open for random access."""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow_datasets as tfds

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.input import optdigits  # noqa: F401  Registers an embedded data set.
from lingvo_pipe.input.cldr import cldr_sentences  # noqa: F401  Another.
from lingvo_pipe.input.embedded_builder import EmbeddedBuilder


def find_builder(name: str, data_dir: str | None = None) -> Any:
    """Returns the builder of a data set, which need not be prepared.

    Args:
        name: A name of TensorFlow Datasets, such as `cifar10` or `cifar10:3.0.2`, that
            of an embedded data set, or of one prepared in `data_dir`.
        data_dir: Where data sets lie; None for the directory in the environment
            variable TFDS_DATA_DIR, or else ~/tensorflow_datasets.

    Returns:
        The tfds builder.

    Raises:
        ValueError: If no such data set is known.
    """
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
        reason = _configuration_fault(name) or str(error).splitlines()[0]
        raise ValueError(
            "dataset must be NAME, NAME/CONFIG or NAME:VERSION of TensorFlow Datasets; "
            f"got {name!r}. {reason}"
        ) from error


def prepared_builder(name: str, data_dir: str | None = None) -> Any:
    """Returns the builder of a data set that is prepared on disk.

    An embedded one is prepared if it was not yet; nothing is downloaded.

    Args:
        name: As for `find_builder`.
        data_dir: As for `find_builder`.

    Returns:
        The tfds builder.

    Raises:
        ValueError: If no such data set is known; or if it is not prepared, with the
            command that does so.
    """
    builder = find_builder(name, data_dir)
    if _is_prepared(builder):
        return builder
    if isinstance(builder, EmbeddedBuilder):
        return prepare(name, data_dir)
    raise ValueError(
        f"data set {name} must be prepared before it is used; there is none in "
        f"{builder.data_dir}. Prepare it with: {_command(builder, name, data_dir)}"
    )


def prepare(name: str, data_dir: str | None, manual_dir: str | None = None) -> Any:
    """Prepares a data set, downloading what it needs, unless that was done before.

    Any number of processes may prepare the same data set at once: one does, the others
    wait. What a killed process left half-prepared is prepared anew.

    Args:
        name: As for `find_builder`.
        data_dir: As for `find_builder`.
        manual_dir: Where files lie that must be fetched by hand; None for
            downloads/manual in the data sets' directory.

    Returns:
        The tfds builder.

    Raises:
        ValueError: If no such data set is known.
        Exception: Whatever the builder raises, such as for want of a network.
    """
    builder = find_builder(name, data_dir)
    with _lock(builder):
        builder = find_builder(name, data_dir)  # Another process may have prepared it.
        if not _is_prepared(builder):
            _prepare(builder, manual_dir)
    return builder


def open_split(builder: Any, split: str, **options: Any) -> Sequence[Any]:
    """Returns the examples of one split, to be read in any order.

    Args:
        builder: What `prepared_builder` returned.
        split: A split such as `train`, or a part of one such as `train[:90%]`.
        **options: Of the builder's `as_data_source`.

    Raises:
        ValueError: If there is no such split, it is empty, or the data set was prepared
            in a format without random access.
    """
    try:
        return builder.as_data_source(split, **options)
    except NotImplementedError as error:
        raise ValueError(
            f"data set {builder.name} must be stored as array_record, which gives "
            f"random access; got {builder.info.file_format.value} in "
            f"{builder.data_dir}. Name another data_dir to prepare it there."
        ) from error
    except ValueError as error:
        raise unknown_split(builder.name, split, list(builder.info.splits)) from error


def unknown_split(dataset: str, split: str, splits: Sequence[str]) -> ValueError:
    """Returns the error for a split that a data set with `splits` does not have."""
    whole = split.split("[")[0]
    near = "" if whole in splits else did_you_mean(whole, splits)
    return ValueError(
        f"split must be {' or '.join(sorted(splits))} of the data set {dataset}, or a "
        f"part of one such as {min(splits)}[:90%]; got {split!r}, which is no split "
        f"or holds no example.{near}"
    )


def is_in_catalogue(builder: Any) -> bool:
    """Whether the data set is one that TensorFlow Datasets comes with."""
    return type(builder).__module__.startswith("tensorflow_datasets.")


def _configuration_fault(name: str) -> str:
    """Returns what is wrong with a name's configuration, which tfds does not tell."""
    dataset, *parts = re.split("[/:]", name)
    try:
        known = list(tfds.builder_cls(dataset).builder_configs)
    except (tfds.core.DatasetNotFoundError, ValueError):
        return ""
    if "/" not in name or not known or parts[0] in known:
        return ""
    near = did_you_mean(parts[0], known)
    return f"{dataset} has no {parts[0]!r}.{near or f' It has {_some(known)}.'}"


def _some(names: Sequence[str], most: int = 10) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} others"


def _command(builder: Any, name: str, data_dir: str | None) -> str:
    words = ["python -m lingvo_pipe.input.prepare", f"--dataset={name}"]
    if data_dir is not None:
        words.append(f"--data_dir={data_dir}")
    if not is_in_catalogue(builder):
        words.append(f"--imports={type(builder).__module__}")
    return " ".join(words)


def _is_prepared(builder: Any) -> bool:
    return (builder.data_path / "dataset_info.json").exists()


def _prepare(builder: Any, manual_dir: str | None) -> None:
    mode = tfds.download.GenerateMode
    # tfds takes a directory for a finished data set, whatever is in it.
    is_broken = builder.data_path.exists()
    config = tfds.download.DownloadConfig(
        download_mode=mode.REUSE_CACHE_IF_EXISTS
        if is_broken
        else mode.REUSE_DATASET_IF_EXISTS,
        manual_dir=manual_dir,
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
