"""Helpers of command-line programs: flags, working folder, errors, output files."""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.error_text import user_message
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.regular_file import naming


def flag_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of flags whose help keeps the description's line breaks."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(
        name, description=description, formatter_class=form, allow_abbrev=False
    )


class OnceAction(argparse.Action):
    """An action that stores a flag's text, and refuses the flag a second time."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option: str | None = None
    ) -> None:
        """Stores the text, or ends the program with an error."""
        if getattr(namespace, self.dest) != self.default:
            parser.error(f"{option}: expected once, with ; between changes")
        setattr(namespace, self.dest, values)


def enter_user_folder() -> None:
    """Changes to the user's working folder, also under `bazel run`."""
    # `bazel run` changes the working directory and sets this variable to the user's.
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))


@contextlib.contextmanager
def program(argv: Sequence[str], *expected: type[Exception]) -> Iterator[None]:
    """Ends the program with one line if the block raises an error of an expected kind.

    Expected are errors that a user can correct, any ValueError, and the types in
    `expected`. An argument besides the program's name in `argv` is an error. The block
    runs in the user's working directory, also under Bazel.
    """
    enter_user_folder()
    try:
        if argv[1:]:
            raise UserValueError(
                path="arguments", expected="flags alone, with --", got=argv[1:]
            )
        yield
    except Exception as error:
        is_expected = isinstance(error, (ValueError, *expected))
        line = str(error) if is_expected else user_message(error)
        if line is None:
            raise
        sys.exit(f"error: {line}")


def check_writable(path: Path, flag: str) -> None:
    """Raises ValueError, which names the flag, if `write_output` cannot write a file.

    A folder on a disk that is mounted for reading alone is noticed, too.
    """
    problem = None
    try:
        if path.is_dir():
            problem = "that is a directory"
        elif _is_replaced(path):
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        elif not os.access(path, os.W_OK):
            problem = "that is not writable"
    except OSError as error:
        problem = error.strerror
    if problem:
        raise UserValueError(
            path=flag,
            expected="the path of a file in a writable folder",
            got=Words(f"{path} ({problem})"),
        )


def write_output(path: Path, content: str | bytes) -> None:
    """Writes a file that the user names, as a whole, or into a link, pipe or device."""
    if _is_replaced(path):
        write_atomically(path, content)
        return
    with naming(path):
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def _is_replaced(path: Path) -> bool:
    """Returns whether nothing but a regular file is at `path`, or nothing at all."""
    return not path.is_symlink() and (path.is_file() or not path.exists())
