"""Errors as lines on standard error, unless --traceback is given."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from lingvo_pipe.cli.flags import FLAGS, USING_JOBS
from lingvo_pipe.cli.lasting_output import ending_with_reader
from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.error_text import error_text, user_message
from lingvo_pipe.core.errors import exit_code_of

# The exit code of a run that a signal has stopped before its end.
STOPPED_CODE = 5


@contextlib.contextmanager
def errors_as_lines() -> Iterator[None]:
    """Prints an error of the block on standard error, and ends the process."""
    try:
        with ending_with_reader():
            yield
    except KeyboardInterrupt:
        is_using = FLAGS.job in USING_JOBS
        then = "starts again" if is_using else "resumes from the last checkpoint"
        print(f"\nInterrupted. The same command {then}.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if FLAGS.traceback:
            raise
        if user_message(error):
            exit_with(error_text(error), exit_code_of(error))
        # Other jobs and modes write nothing of a run, which may be training.
        trains = FLAGS.job == "trainer" and FLAGS.mode == "train"
        logdir = FLAGS.logdir if trains else None
        foreign = FLAGS.allow_foreign_logdir
        path = write_traceback(error, logdir or "", FLAGS.model, foreign)
        hint = f"The traceback is in {path}." if path else "--traceback shows more."
        exit_with(f"{error_text(error)}\n{hint}")


def write_traceback(
    error: Exception, logdir: str, model_name: str, allow_foreign: bool = False
) -> Path | None:
    """Writes a traceback to a run's directory. Returns its file, or None."""
    logdir = os.path.expanduser(logdir)
    if not os.path.isdir(logdir):
        return None
    from lingvo_pipe.training.run.run_directory import RunDirectory  # TensorFlow.

    try:
        directory = RunDirectory(logdir, model_name, allow_foreign)
        if not directory.params_path.exists():
            return None
        path = directory.path / "traceback.txt"
        text = traceback.format_exception(type(error), error, error.__traceback__)
        write_atomically(path, "".join(text))
    except (OSError, ValueError):
        return None
    return path


def exit_with(text: str, code: int = 1) -> NoReturn:
    """Prints an error's text on standard error, and ends the process."""
    print(f"error: {text}", file=sys.stderr)
    sys.exit(code)
