"""Runs the trainer on many command lines, and imports TensorFlow only once for all.

Reads a JSON list of lists of flags from standard input and writes a JSON list of
[exit code, standard output, standard error] to standard output.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import sys
import traceback

from lingvo_pipe import jobs, trainer

del jobs  # Imported so that the processes which are forked need not.


def _run(command_line: list[str]) -> tuple[object, str, str]:
    """Runs the trainer in this process, which has not used TensorFlow yet."""
    sys.argv = ["trainer", *command_line]
    code: object = 0
    with (
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        try:
            trainer.run()
        except SystemExit as exit_:
            code = exit_.code or 0
        except Exception:
            code = "exception"
            traceback.print_exc()
    return code, output.getvalue(), errors.getvalue()


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    with fork.Pool(processes=2, maxtasksperchild=1) as pool:
        json.dump(pool.map(_run, json.load(sys.stdin), chunksize=1), sys.stdout)
