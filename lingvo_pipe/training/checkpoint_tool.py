"""Lists, verifies and compares checkpoints.

    python -m lingvo_pipe.training.checkpoint_tool list /tmp/digits
    python -m lingvo_pipe.training.checkpoint_tool verify /tmp/digits
    python -m lingvo_pipe.training.checkpoint_tool compare /tmp/digits /tmp/others

A path is a run's directory, its `checkpoints`, or a checkpoint in it, `ckpt-00000600`;
where one is needed and a directory is given, it is the newest there.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lingvo_pipe.quiet_startup import quiet_startup

if TYPE_CHECKING:
    import tensorflow as tf


def main(arguments: Sequence[str] | None = None) -> None:
    """Does what the arguments say.

    Exits with 1 where something is damaged or differs, or a path leads nowhere.
    """
    flags = _parse(arguments)
    with quiet_startup():
        import tensorflow  # noqa: F401  Which takes seconds, and tells about itself.
    try:
        is_well = flags.do(*[Path(path).expanduser() for path in flags.paths])
    except ValueError as error:
        sys.exit(f"error: {error}")
    sys.exit(0 if is_well else 1)


def list_checkpoints(path: Path) -> bool:
    """Prints a line for each: step, when, bytes, variables and what they hold.

    Those that a trainer deletes meanwhile are left out.
    """
    from lingvo_pipe.training.checkpoint_stats import checkpoint_stats

    prefixes = _prefixes(path)
    print(f"{'checkpoint':16}{'saved':22}{'MiB':>12}{'variables':>12}{'numbers':>16}")
    for prefix in prefixes:
        stats = checkpoint_stats(prefix)
        if stats is None:
            continue
        when = datetime.datetime.fromtimestamp(stats.saved).isoformat(" ", "seconds")
        mebibytes = stats.num_bytes / 2**20
        try:
            shapes = _open(prefix).get_variable_to_shape_map()
        except ValueError:
            if _exists(prefix):
                what = "  damaged: see verify"
                print(f"{prefix.name:16}{when:22}{mebibytes:12.3f}{what}")
            continue
        numbers = sum(math.prod(shape) for shape in shapes.values())
        counts = f"{len(shapes):12,}{numbers:16,}"
        print(f"{prefix.name:16}{when:22}{mebibytes:12.3f}{counts}")
    return True


def verify_checkpoints(path: Path) -> bool:
    """Reads each to its end; prints whether its checksums are right.

    Those that a trainer deletes meanwhile are left out.
    """
    is_well = True
    for prefix in _prefixes(path):
        try:
            _open(prefix)
            print(f"{prefix.name}: good")
        except ValueError as error:
            if _exists(prefix):
                print(f"{prefix.name}: damaged: {error}")
                is_well = False
    return is_well


def compare_checkpoints(first: Path, second: Path) -> bool:
    """Prints the variables whose bytes are not the same in both."""
    from lingvo_pipe.training.compared_checkpoints import differences

    prefixes = [_prefixes(path)[-1] for path in (first, second)]
    found = differences(*map(_open_whole, prefixes))
    for difference in found:
        print(f"{difference.name}: {difference.what}")
    end = "in which they differ" if found else "and no byte differs"
    print(f"{prefixes[0]} and {prefixes[1]}: {len(found)} variables {end}")
    return not found


def _prefixes(path: Path) -> list[Path]:
    """The paths, without `.index`, of all checkpoints that a path stands for."""
    from lingvo_pipe.training.checkpoint_files import stem_of, steps_in

    if _exists(path):
        return [path]
    for folder in (path / "checkpoints", path):
        if steps := steps_in(folder):
            return [folder / stem_of(step) for step in steps]
    what = "holds no checkpoints" if path.is_dir() else "does not exist"
    raise ValueError(
        "A path must be a checkpoint, such as RUN/checkpoints/ckpt-00000600, or the "
        f"directory of a run; {path} {what}."
    )


def _exists(prefix: Path) -> bool:
    return Path(f"{prefix}.index").is_file()


def _open_whole(prefix: Path) -> tf.train.CheckpointReader:
    try:
        return _open(prefix)
    except ValueError as error:
        raise ValueError(
            f"Checkpoints must be readable to be compared; {prefix} is damaged: "
            f"{error}. Give another."
        ) from error


def _open(prefix: Path) -> tf.train.CheckpointReader:
    from lingvo_pipe.training.checkpoint_files import read_through

    return read_through(str(prefix))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m lingvo_pipe.training.checkpoint_tool",
        description="Lists, verifies and compares checkpoints.",
        epilog="A path is a run's directory or one of its checkpoints.",
    )
    commands = parser.add_subparsers(required=True)
    for name, do, num_paths, what in (
        ("list", list_checkpoints, 1, "Says when each was saved, and how large it is."),
        (
            "verify",
            verify_checkpoints,
            1,
            "Reads each to its end; 1 if one is damaged.",
        ),
        ("compare", compare_checkpoints, 2, "Says how two differ; 1 if they do."),
    ):
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument("paths", nargs=num_paths, metavar="PATH")
        command.set_defaults(do=do)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # `bazel run` starts programs elsewhere, and says where the user is.
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    main()
