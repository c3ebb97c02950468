"""How the trainer's errors are told: in a line, unless --traceback is given."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterator
from typing import NoReturn

from absl import flags

from lingvo_pipe.error_text import error_text
from lingvo_pipe.fault_line import fault_line
from lingvo_pipe.kept_traceback import keep_traceback

FLAGS = flags.FLAGS

_GOES_ON = "goes on from the last checkpoint, if one was saved"


@contextlib.contextmanager
def errors_as_lines(using_jobs: Collection[str]) -> Iterator[None]:
    """Ends the process with a line on standard error if there is an error within.

    Args:
        using_jobs: those of --job that begin anew when they are started again.
    """
    try:
        yield
    except KeyboardInterrupt:
        then = "begins anew" if FLAGS.job in using_jobs else _GOES_ON
        print(f"\nInterrupted. The same command {then}.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if FLAGS.traceback:
            raise
        where_more = "" if fault_line(error) else f"\n{_where_more(error)}"
        exit_with(f"{error_text(error)}{where_more}")


def _where_more(error: Exception) -> str:
    """Where the traceback of an error is that may not be the user's fault."""
    logdir = os.path.expanduser(FLAGS.logdir or "")
    path = keep_traceback(error, logdir, FLAGS.model) if logdir else None
    return f"The traceback is in {path}." if path else "--traceback shows more."


def exit_with(text: str) -> NoReturn:
    """Ends the process with an error's text."""
    print(f"error: {text}", file=sys.stderr)
    sys.exit(1)
