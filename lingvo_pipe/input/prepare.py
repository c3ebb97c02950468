"""Prepares a data set on disk, downloading it first, or checks a folder of images.

lingvo_pipe prepare --dataset=cifar10 --data_dir=/data
lingvo_pipe prepare --dataset=my_images --data_dir=/data --check
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from lingvo_pipe.core.programs import program


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepares or checks a data set. After a user's error, exits with a message."""
    flags = _parse(arguments)
    with program(["prepare"], ImportError, OSError):
        # Imported late: TensorFlow takes seconds to start.
        from lingvo_pipe.input import prepared_dataset as prepared

        for module in flags.imports:
            importlib.import_module(module)
        if flags.check:
            _check(flags.dataset, flags.data_dir, flags.manual_dir)
            return
        builder = prepared.find_builder(flags.dataset, flags.data_dir)
    try:
        prepared.prepare(builder, flags.manual_dir)
    except Exception as error:
        if not prepared.is_in_catalog(builder):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        sys.exit(f"error: cannot prepare the data set {flags.dataset}. {reason}")
    print(f"Data set {flags.dataset} is prepared in {builder.data_dir}.")


def _check(name: str, data_dir: str | None, manual_dir: str | None) -> None:
    from lingvo_pipe.core.errors import UserValueError
    from lingvo_pipe.input.images.folder_report import report_folder
    from lingvo_pipe.input.images.image_folder import ImageFolder
    from lingvo_pipe.input.images.image_input import find_dataset

    if manual_dir is not None:
        expected = "no such flag beside --check"
        raise UserValueError(path="--manual_dir", expected=expected, got=manual_dir)
    dataset = find_dataset(name, data_dir)
    if not isinstance(dataset, ImageFolder):
        sys.exit(
            f"error: --check reads a folder of images; {name} is prepared by "
            "TensorFlow Datasets. Leave --check out."
        )
    report = report_folder(dataset)
    print("\n".join(report.lines))
    if report.problems:
        sys.exit("\n".join(["error: expected none of these:", *report.problems]))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lingvo_pipe prepare",
        description="Prepares a data set on disk, downloading it first, or checks one.",
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
    add(
        "--check",
        action="store_true",
        help="Read your own images, DATA_DIR/DATASET/SPLIT/CLASS/IMAGE.jpg; "
        "print counts, sizes and what must be mended.",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
