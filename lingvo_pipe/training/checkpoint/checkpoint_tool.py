"""A command that lists, verifies and compares checkpoints.

    lingvo_pipe checkpoints list /tmp/digits

Other commands are `verify /tmp/digits` and `compare /tmp/digits /tmp/others`.
A path is a run's directory, its folder `checkpoints`, or a checkpoint in this folder,
such as `ckpt-00000600`. For `compare`, a directory means its newest checkpoint.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lingvo_pipe.core.errors import UserDamageError
from lingvo_pipe.core.programs import program
from lingvo_pipe.core.tables import text_table
from lingvo_pipe.core.tensorflow_startup import importing_tensorflow

if TYPE_CHECKING:
    import tensorflow as tf


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command in the arguments, and exits with a code.

    It is 1 if `verify` finds damage or `compare` differences, 3 if `compare` cannot
    read a checkpoint, and 2 after another error.
    """
    flags = _parse(arguments)
    with importing_tensorflow():
        import tensorflow  # noqa: F401  Takes seconds, and logs.
    with program(["checkpoints"], OSError, code=2):
        is_good = flags.command(*[Path(path).expanduser() for path in flags.paths])
    sys.exit(0 if is_good else 1)


def list_checkpoints(path: Path) -> bool:
    """Prints each checkpoint's time, size, and numbers of variables and elements."""
    from lingvo_pipe.training.checkpoint.checkpoint_files import checkpoint_stats

    rows = [("checkpoint", "saved", "MiB", "variables", "elements")]
    for prefix, reader, _ in _read_all(path):
        stats = checkpoint_stats(prefix)
        if stats is None:
            continue
        counts = "damaged", "see verify"
        if reader is not None:
            shapes = reader.get_variable_to_shape_map()
            num_elements = sum(math.prod(shape) for shape in shapes.values())
            counts = f"{len(shapes):,}", f"{num_elements:,}"
        saved = datetime.datetime.fromtimestamp(stats.saved).isoformat(" ", "seconds")
        rows.append((prefix.name, saved, f"{stats.num_bytes / 2**20:.3f}", *counts))
    print(*text_table(rows, right={2, 3, 4}), sep="\n")
    return True


def verify_checkpoints(path: Path) -> bool:
    """Prints whether each checkpoint is damaged, and returns whether all are good."""
    is_good = True
    for prefix, reader, problem in _read_all(path):
        print(f"{prefix.name}: {problem or 'good'}")
        is_good &= reader is not None
    return is_good


def compare_checkpoints(first: Path, second: Path) -> bool:
    """Prints the variables whose bytes differ, and returns whether none differ."""
    from lingvo_pipe.training.checkpoint import checkpoint_files as files
    from lingvo_pipe.training.checkpoint.checkpoint_contents import differences

    prefixes = [files.prefixes_at(path, "PATH")[-1] for path in (first, second)]
    text_by_name = differences(*(files.read_through(str(x)) for x in prefixes))
    for name, text in text_by_name.items():
        print(f"{name}: {text}")
    print(f"{prefixes[0]} and {prefixes[1]}: {len(text_by_name)} variables differ")
    return not text_by_name


def _read_all(
    path: Path,
) -> Iterator[tuple[Path, tf.train.CheckpointReader | None, str]]:
    from lingvo_pipe.training.checkpoint import checkpoint_files as files

    for prefix in files.prefixes_at(path, "PATH"):
        try:
            yield prefix, files.read_through(str(prefix)), ""
        except UserDamageError as error:
            if files.is_checkpoint(prefix):
                yield prefix, None, f"damaged: {error.got}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lingvo_pipe checkpoints",
        description="Lists, verifies and compares checkpoints.",
        epilog="A path is a run's directory or one of its checkpoints.",
    )
    commands = parser.add_subparsers(required=True)
    for name, command, num_paths, description in (
        ("list", list_checkpoints, 1, "Prints time and size of each checkpoint."),
        ("verify", verify_checkpoints, 1, "Reads each; exits with 1 on damage."),
        ("compare", compare_checkpoints, 2, "Exits with 1 if two differ, 3 on damage."),
    ):
        parsed = commands.add_parser(name, help=description, description=description)
        parsed.add_argument("paths", nargs=num_paths, metavar="PATH")
        parsed.set_defaults(command=command)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
