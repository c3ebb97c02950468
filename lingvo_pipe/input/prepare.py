"""Prepares a data set on disk, downloading it first.

lingvo_pipe prepare --dataset=cifar10 --data_dir=/data
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepares the data set; exits with a one-line message on a user error."""
    flags = _parse(arguments)
    # Imported late: TensorFlow takes seconds to start.
    from lingvo_pipe.input import prepared_dataset as prepared

    for module in flags.imports:
        importlib.import_module(module)
    try:
        builder = prepared.find_builder(flags.dataset, flags.data_dir)
    except ValueError as error:
        sys.exit(f"error: {error}")
    try:
        prepared.prepare(flags.dataset, flags.data_dir, flags.manual_dir)
    except Exception as error:
        if not prepared.is_in_catalog(builder):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        sys.exit(f"error: cannot prepare the data set {flags.dataset}. {reason}")
    print(f"Data set {flags.dataset} is prepared in {builder.data_dir}.")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lingvo_pipe prepare",
        description="Prepares a data set on disk, downloading it first.",
    )
    add = parser.add_argument
    add("--dataset", required=True, help="Name in TensorFlow Datasets, or your own.")
    add(
        "--data_dir",
        help="Folder of data sets. By default the environment's TFDS_DATA_DIR, or "
        "~/tensorflow_datasets.",
    )
    add(
        "--manual_dir",
        help="Folder of files downloaded manually, such as ImageNet's. By default "
        "downloads/manual in the folder of data sets.",
    )
    add(
        "--imports",
        default=[],
        type=lambda text: text.split(","),
        help="Your modules that define builders, to import first.",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # `bazel run` changes the working directory and sets this variable to the user's.
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    main()
