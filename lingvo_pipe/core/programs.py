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
from lingvo_pipe.core.error_text import error_text, user_message
from lingvo_pipe.core.errors import UserValueError, Words, exit_code_of
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
def program(
    argv: Sequence[str], *expected: type[Exception], code: int = 1
) -> Iterator[None]:
    """Ends the program with one line if the block raises an error of an expected kind.

    Expected are errors that a user can correct, any ValueError, and the types in
    `expected`. Below an ImportError are the lines of the user's own code that led to
    it. The exit code is the error's, or `code` if that is larger. An argument besides
    the program's name in `argv` is an error. The block runs in the user's working
    directory, also under Bazel.
    """
    enter_user_folder()
    try:
        if argv[1:]:
            raise UserValueError(
                path="arguments", expected="flags alone, with --", got=argv[1:]
            )
        yield
    except Exception as error:
        text = user_message(error)
        if isinstance(error, (ValueError, *expected)):
            is_import = isinstance(error, ImportError)
            text = error_text(error) if is_import else str(error)
        if text is None:
            raise
        code = max(code, exit_code_of(error))
        if code == 1:
            sys.exit(f"error: {text}")
        print(f"error: {text}", file=sys.stderr)
        sys.exit(code)


def check_writable(path: Path, flag: str) -> None:
    """Raises ValueError, which names the flag, if `write_output` cannot write a file.

    A folder on a disk that is mounted for reading alone is noticed, too.
    """
    problem = None
    try:
        if path.is_dir():
            problem = "that is a directory"
        elif _is_replaced(path):
            if _is_open(path):
                problem = "this program writes there already"
            with tempfile.TemporaryFile(dir=_resolved(path).parent):
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
    """Writes a file that the user names, as a whole, or into a pipe or device.

    At a link, writes what it leads to, which may not exist yet.
    """
    if _is_replaced(path):
        write_atomically(_resolved(path), content)
        return
    with naming(path):
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def _is_replaced(path: Path) -> bool:
    """Returns whether a regular file, or nothing, is at `path` or its link's end."""
    return path.is_file() or not path.exists()


def _is_open(path: Path) -> bool:
    """Returns whether a file is one that this process has open, as with /dev/stdout.

    A new file in its place would be without what is printed later. Standard input is
    left out, since its file may be replaced by what is made from it.
    """
    streams = (x for x in Path("/dev/fd").glob("*") if x.name != "0" and x.exists())
    return path.exists() and any(map(path.samefile, streams))


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))
