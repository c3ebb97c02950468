"""Runs the project's programs by their names.

    lingvo_pipe plan --model=lm.giant.L103 --devices=8xTPUv3

Each program is a module that `python -m` runs as well. Only the chosen one is imported.
"""

import os
import runpy
import sys
from collections.abc import Sequence

from lingvo_pipe.cli.lasting_output import ending_with_reader
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.core.programs import enter_user_folder
from lingvo_pipe.version import VERSION

# Module and description of each command.
COMMANDS = {
    "train": (
        "lingvo_pipe.trainer",
        "trains a model; evaluates, decodes or exports a trained one",
    ),
    "plan": (
        "lingvo_pipe.tools.plan.plan",
        "finds the fastest way to run a model on given devices",
    ),
    "doctor": (
        "lingvo_pipe.tools.doctor.doctor",
        "checks devices: sends, speed, and whether bytes are equal",
    ),
    "cluster": (
        "lingvo_pipe.tools.local_cluster.local_cluster",
        "trains on worker processes of this machine",
    ),
    "checkpoints": (
        "lingvo_pipe.training.checkpoint.checkpoint_tool",
        "lists, verifies and compares checkpoints",
    ),
    "prepare": (
        "lingvo_pipe.input.prepare",
        "prepares a data set on disk, downloading it first",
    ),
    "vocab": (
        "lingvo_pipe.input.text.train_vocab",
        "makes a vocabulary from text files or a data set",
    ),
    "port_check": (
        "lingvo_pipe.tools.port_check.port_check",
        "lists what in Lingvo's files will not port",
    ),
}


def usage() -> str:
    """Returns the help text: a line for each command."""
    width = max(map(len, COMMANDS))
    lines = (f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return "\n".join(
        (
            "usage: lingvo_pipe COMMAND [FLAG...]",
            "",
            *lines,
            "",
            "lingvo_pipe COMMAND --help shows a command's flags.",
            "lingvo_pipe --version shows the version.",
        )
    )


def main(arguments: Sequence[str]) -> int:
    """Runs the command in the first argument, and returns the exit code."""
    name = arguments[0] if arguments else "--help"
    if name in ("--help", "-h", "help"):
        print(usage())
        return 0 if arguments else 2
    if name == "--version":
        print(f"lingvo_pipe {VERSION}")
        return 0
    if name not in COMMANDS:
        problem = f"{name!r} is no command.{did_you_mean(name, COMMANDS)}"
        print(f"error: {problem} --help lists all.", file=sys.stderr)
        return 2
    sys.argv = list(arguments)
    runpy.run_module(COMMANDS[name][0], run_name="__main__", alter_sys=True)
    return 0


def run() -> None:
    """Runs the command `lingvo_pipe` with this process's arguments."""
    enter_user_folder()
    sys.path.append(os.getcwd())  # For the user's own models.
    with ending_with_reader():
        sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
