"""Errors as lines on standard error, unless --traceback is given."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from lingvo_pipe.cli.flags import FLAGS, USING_JOBS
from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.error_text import error_text, user_message


@contextlib.contextmanager
def errors_as_lines() -> Iterator[None]:
    """Ends the process with a line on standard error if there is an error within."""
    try:
        yield
    except KeyboardInterrupt:
        is_using = FLAGS.job in USING_JOBS
        then = "starts again" if is_using else "resumes from the last checkpoint"
        print(f"\nInterrupted. The same command {then}.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if FLAGS.traceback:
            raise
        more = "" if user_message(error) else f"\n{_traceback_hint(error)}"
        exit_with(f"{error_text(error)}{more}")


def _traceback_hint(error: Exception) -> str:
    """Returns a sentence on where to find the traceback of an unexpected error."""
    logdir = os.path.expanduser(FLAGS.logdir or "")
    path = write_traceback(error, logdir, FLAGS.model) if logdir else None
    return f"The traceback is in {path}." if path else "--traceback shows more."


def write_traceback(error: Exception, logdir: str, model_name: str) -> Path | None:
    """Writes a traceback into a run's directory.

    Returns:
        The file; None if there is no such run, or nothing can be written.
    """
    if not Path(logdir).is_dir():
        return None
    from lingvo_pipe.training.run.run_directory import RunDirectory  # TensorFlow.

    try:
        directory = RunDirectory(logdir, model_name)
        if not directory.params_path.exists():
            return None
        path = directory.path / "traceback.txt"
        text = traceback.format_exception(type(error), error, error.__traceback__)
        write_atomically(path, "".join(text))
    except (OSError, ValueError):
        return None
    return path


def exit_with(text: str) -> NoReturn:
    """Ends the process with an error's text."""
    print(f"error: {text}", file=sys.stderr)
    sys.exit(1)
