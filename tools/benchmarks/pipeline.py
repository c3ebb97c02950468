"""Compares the pipelines of lingvo_pipe with PyTorch's, and with a plain tf.function.

    python -m tools.benchmarks.pipeline --output=/tmp/pipeline.json

Prints tables of time, speed-up, start and memory, and of prediction errors. README.md
describes their columns. Devices are CPU devices with one core each, so this runs
anywhere.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import app, flags

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.programs import check_writable, program
from tools.benchmarks.configuration import Configuration
from tools.benchmarks.rounds import measure_rounds
from tools.benchmarks.rows import (
    format_best_peers,
    format_predictions,
    format_table,
    format_traffic,
    make_rows,
    write_rows,
)
from tools.benchmarks.standard_configurations import (
    quick_configurations,
    standard_configurations,
)
from tools.benchmarks.worker_process import (
    COMPILES_TORCH,
    IMPORTS_TORCH,
    can_run,
    run_workers,
)

FLAGS = flags.FLAGS

flags.DEFINE_string("output", None, "File for the rows, as JSON.")
flags.DEFINE_integer("rounds", 5, "Number of rounds.", lower_bound=1)
flags.DEFINE_integer("steps", 5, "Timed steps in each round.", lower_bound=1)
flags.DEFINE_string(
    "only",
    "",
    "Measure only configurations whose names have all of these words: 'K=2 M=8 never "
    "float32'. A word may name alternatives: 'gpipe|1f1b'.",
)
flags.DEFINE_enum("devices", "2", ["2", "4"], "K of the timed pipelines.")
flags.DEFINE_bool(
    "quick", False, "Measure a tiny model, to check that everything works."
)
flags.DEFINE_string(
    "torch_python",
    None,
    "A Python that can import torch, numpy and lazy_loader, for PyTorch's rows; this "
    "one by default, if it can.",
)

_NO_TORCH = (
    "this Python cannot import torch 2.13 or later, numpy and lazy_loader. Run 'pip "
    "install torch numpy lazy-loader' in any environment, and give its Python by "
    "--torch_python=PATH."
)
_NO_COMPILER = (
    "torch.compile fails there. It needs a C++ compiler, such as g++, on the PATH."
)


def main(argv: Sequence[str]) -> None:
    """Checks the flags, measures, and prints tables."""
    with program(argv):
        if output := FLAGS.output and Path(FLAGS.output):
            check_writable(output, "--output")
        selected = _selected()
        torch_python = _torch_python()
        absent = _limitations(selected, torch_python)
        groups = _chosen(selected, lambda c: c not in absent)
        left_out = "\n".join(
            f"Left out: {number} rows, because {reason}"
            for reason, number in Counter(absent.values()).items()
        )
        if not groups:
            expected = "words that leave a row"
            raise UserValueError(
                path="--only", expected=expected, got=FLAGS.only, hint=left_out
            )
    rounds = measure_rounds(
        groups,
        FLAGS.rounds,
        FLAGS.steps,
        cores=sorted(os.sched_getaffinity(0)),
        run=lambda requests: run_workers(requests, torch_python),
        log=lambda text: print(text, file=sys.stderr, flush=True),
    )
    rows = make_rows(rounds)
    if output:
        write_rows(output, rows)
    print(format_table(rows))
    if table := format_predictions(rows):
        print(f"\nSteps, predicted from earlier steps:\n\n{table}")
    if table := format_traffic(rows):
        print(f"\nBytes that a step sends between processes:\n\n{table}")
    if text := format_best_peers(rows):
        print(f"\nPyTorch's best rows:\n\n{text}")
    if left_out:
        print(f"\n{left_out}")


def _limitations(
    groups: Sequence[Sequence[Configuration]], torch_python: str | None
) -> dict[Configuration, str]:
    limitations = {c: c.limitation for group in groups for c in group if c.limitation}
    torch = [c for group in groups for c in group if c.system == "torch"]
    if not torch_python:
        limitations |= dict.fromkeys(torch, _NO_TORCH)
    else:
        compiled = [c for c in torch if c.is_compiled and c not in limitations]
        if compiled and not can_run(torch_python, COMPILES_TORCH):
            limitations |= dict.fromkeys(compiled, _NO_COMPILER)
    return limitations


def _selected() -> list[list[Configuration]]:
    choose = quick_configurations if FLAGS.quick else standard_configurations
    groups = choose(int(FLAGS.devices))
    selected = _chosen(groups, _is_selected)
    if not selected:
        names = "\n  ".join(c.name for group in groups for c in group)
        raise UserValueError(
            path="--only",
            expected="words that a configuration's name has",
            got=FLAGS.only,
            hint=f"The names are:\n  {names}",
        )
    return selected


def _is_selected(configuration: Configuration) -> bool:
    words = configuration.name.replace(",", " ").split()
    patterns = FLAGS.only.replace(",", " ").split()
    return all(
        any(alternative in words for alternative in pattern.split("|"))
        for pattern in patterns
    )


def _chosen(
    groups: Sequence[Sequence[Configuration]], choose: Callable[[Configuration], bool]
) -> list[list[Configuration]]:
    chosen = [[c for c in group if choose(c)] for group in groups]
    return [group for group in chosen if group]


def _torch_python() -> str | None:
    python = FLAGS.torch_python
    if not python:
        return sys.executable if can_run(sys.executable, IMPORTS_TORCH) else None
    if not can_run(python, IMPORTS_TORCH):
        raise UserValueError(
            path="--torch_python",
            expected="a Python that can import torch 2.13 or later, numpy and "
            "lazy_loader",
            got=python,
            hint="Run 'pip install torch numpy lazy-loader' there, or leave it out.",
        )
    return os.path.abspath(python) if os.path.dirname(python) else python


if __name__ == "__main__":
    app.run(main)
