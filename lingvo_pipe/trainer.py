"""Trains a registered model, on one device or pipelined over several.

trainer --model=image.digits.AmoebaNetDigits --logdir=/tmp/digits
"""

import io
import os
import sys
from collections.abc import Sequence

from absl import app, flags

from lingvo_pipe.cli import flags as trainer_flags
from lingvo_pipe.cli.error_output import exit_with
from lingvo_pipe.cli.main import main
from lingvo_pipe.core.programs import enter_user_folder

flags.adopt_module_key_flags(trainer_flags)  # For --help.


def run() -> None:
    """Runs the trainer from the command line."""
    enter_user_folder()
    # If this is run as a file, Python would find our folders as top-level packages.
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != here]
    sys.path.append(os.getcwd())  # For the user's own models.
    # Each line reaches a file at once, in order with standard error's.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    if __name__ != "__main__":
        sys.argv[0] = __name__  # --help shows this module's flags.
    app.run(main, flags_parser=_parse)


def _parse(argv: Sequence[str]) -> list[str]:
    try:
        return flags.FLAGS(argv)
    except SystemExit:  # After --help; absl's exit code is 1.
        sys.exit(0)
    except flags.Error as error:
        exit_with(f"{str(error).rstrip(' ?.')}. --help shows all flags.")


if __name__ == "__main__":
    run()
