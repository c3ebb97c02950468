"""Measures pipelines: time, speed-up, start and memory, beside PyTorch's.

    tools/bazel run //tools/benchmarks:pipeline -- --output=/tmp/pipeline.json

Prints a table, and one of how well steps were predicted; README.md says what their
columns mean. On CPU devices of one core each, so that it runs anywhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import app, flags

from tools.benchmarks.configuration import (
    Configuration,
    quick_configurations,
    standard_configurations,
)
from tools.benchmarks.output_file import write_rows
from tools.benchmarks.rounds import measure_rounds
from tools.benchmarks.rows import make_rows
from tools.benchmarks.table import format_predictions, format_table, format_traffic
from tools.benchmarks.worker_process import has_torch, run_workers
from tools.writable_file import check_writable

FLAGS = flags.FLAGS

flags.DEFINE_string("output", None, "File to write the rows to, as JSON.")
flags.DEFINE_integer("rounds", 5, "How often all is measured.", lower_bound=1)
flags.DEFINE_integer("steps", 5, "Timed steps in each round.", lower_bound=1)
flags.DEFINE_string("only", "", "Measure only what has this text in its name.")
flags.DEFINE_enum("devices", "2", ["2", "4"], "K of the pipelines that are timed.")
flags.DEFINE_bool("quick", False, "A tiny model instead, to see that all works.")
flags.DEFINE_string(
    "torch_python",
    None,
    "A Python that can import torch and numpy, for PyTorch's rows. By default the one "
    "that runs this, if it can.",
)

_NO_TORCH = (
    "this Python cannot import torch and numpy. Run 'pip install torch numpy' in any "
    "environment, and give its Python by --torch_python=PATH."
)


def main(argv: Sequence[str]) -> None:
    """Measures what the flags ask for; what is wrong with them is told before."""
    # `bazel run` starts programs elsewhere, and says where the user is.
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    output = Path(FLAGS.output).absolute() if FLAGS.output else None
    try:
        if argv[1:]:
            raise ValueError(f"Arguments must be flags, with --; got {argv[1:]}.")
        if output:
            check_writable(output, "--output")
        selected = _selected()
        torch_python = _torch_python()
        groups = _possible(selected, torch_python)
    except ValueError as error:
        sys.exit(f"error: {error}")

    rounds = measure_rounds(
        groups,
        FLAGS.rounds,
        FLAGS.steps,
        cores=sorted(os.sched_getaffinity(0)),
        run=lambda requests: run_workers(requests, torch_python),
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    rows = make_rows(rounds)
    if output:
        write_rows(output, rows)
    print(format_table(rows))
    predictions = format_predictions(rows)
    if predictions:
        print(f"\nSteps, predicted from those before:\n\n{predictions}")
    traffic = format_traffic(rows)
    if traffic:
        print(f"\nWhat a step sends between processes:\n\n{traffic}")
    if groups != selected:
        print(f"\nPyTorch's rows are left out: {_NO_TORCH}")


def _selected() -> list[list[Configuration]]:
    choose = quick_configurations if FLAGS.quick else standard_configurations
    known = choose(int(FLAGS.devices))
    selected = _chosen(known, lambda configuration: FLAGS.only in configuration.name)
    if not selected:
        names = "\n  ".join(c.name for group in known for c in group)
        raise ValueError(
            f"--only must be part of the name of what is measured; got {FLAGS.only!r}. "
            f"The names are:\n  {names}"
        )
    return selected


def _chosen(
    groups: Sequence[Sequence[Configuration]], choose: Callable[[Configuration], bool]
) -> list[list[Configuration]]:
    """What is chosen of each group of which anything is."""
    chosen = [[c for c in group if choose(c)] for group in groups]
    return [group for group in chosen if group]


def _torch_python() -> str | None:
    """The Python to run PyTorch with, if there is one."""
    asked_for = FLAGS.torch_python
    if asked_for and not has_torch(asked_for):
        raise ValueError(
            "--torch_python must be a Python that can import "
            f"torch.distributed.pipelining and numpy; got {asked_for}, which cannot. "
            "Install them there ('pip install torch numpy'), or leave the flag out."
        )
    if asked_for:
        return os.path.abspath(asked_for) if os.path.dirname(asked_for) else asked_for
    return sys.executable if has_torch(sys.executable) else None


def _possible(
    selected: Sequence[Sequence[Configuration]], torch_python: str | None
) -> list[list[Configuration]]:
    possible = _chosen(selected, lambda c: bool(torch_python) or c.system != "torch")
    if not possible:
        raise ValueError(f"--only={FLAGS.only} selects PyTorch's rows: {_NO_TORCH}")
    return possible


if __name__ == "__main__":
    app.run(main)
