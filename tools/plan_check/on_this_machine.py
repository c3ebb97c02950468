"""Measures how well the planner predicts the time and memory of steps.

    python -m tools.plan_check.on_this_machine --model=lm.text.TransformerTiny
    python -m tools.plan_check.on_this_machine --models=lm.text,mt.cldr --rounds=3

Trains a model on synthetic batches, on one and on two CPU devices, and prints
predictions and measurements. A single model is trained in twelve ways, and each of
several models in four. Run nothing else on the machine at the same time.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np

from lingvo_pipe.core.tables import markdown_header, markdown_row
from lingvo_pipe.core.tensorflow_startup import count_cpu_memory, importing_tensorflow

count_cpu_memory()
with importing_tensorflow():
    import model_registry
    from lingvo_pipe.core.programs import flag_parser, program
    from lingvo_pipe.tools.plan.plan import at_least_one
    from lingvo_pipe.tools.plan.planned_model import models_with_prefix
    from tools.plan_check.measured_ways import Figures, measure_ways, ways

_MIB = 2**20
_COLUMNS = (
    *("model", "rows", "way", "predicted, s", "measured, s", "error"),
    *("predicted, MiB", "measured, MiB", "error"),
)
_MICRO_BATCHES = 4, 8
# The ways of each of several models.
_FEW = [way for way in ways([4]) if (way.schedule, way.recompute) != ("gpipe", "never")]


def main(arguments: Sequence[str]) -> int:
    """Prints a table, whose rows appear as models are measured, and a summary."""
    options = _options(arguments)
    with program(("on_this_machine",)):
        _measure(options)
    return 0


def _measure(options: argparse.Namespace) -> None:
    if options.models is None:
        figures = measure_ways(
            options.model,
            options.model_params_override,
            num_rows=options.batch,
            candidates=ways(_MICRO_BATCHES),
            num_rounds=options.rounds,
            log=_log,
        )
        results: Iterable[tuple[str, Figures | str]] = [(options.model, figures)]
    else:
        results = _few_of_each(_names(options.models.split(",")), options.rounds)
    figures_by_model, left_out = {}, {}
    _print(markdown_header(_COLUMNS))
    for name, result in results:
        if isinstance(result, str):
            left_out[name] = result
        else:
            figures_by_model[name] = result
            _print(_rows(name, result))
    _print(_summary(figures_by_model))
    _print(f"- {name} is left out: {why}" for name, why in left_out.items())


def _names(prefixes: Sequence[str]) -> list[str]:
    hint = "lingvo_pipe plan --list_models lists models."
    matches = (models_with_prefix(prefix, "--models", hint) for prefix in prefixes)
    return sorted(set(itertools.chain.from_iterable(matches)))


def _few_of_each(
    names: Sequence[str], num_rounds: int
) -> Iterator[tuple[str, Figures | str]]:
    """Yields for each model (name, its figures), or (name, why it is left out)."""
    for name in names:
        try:
            yield name, _in_own_process(name, num_rounds)
        except (ValueError, BrokenProcessPool) as error:
            yield name, str(error)


def _in_own_process(name: str, num_rounds: int) -> Figures:
    """Measures a model in a separate process, which frees all memory when it ends."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(_few_ways, name, num_rounds).result()


def _few_ways(name: str, num_rounds: int) -> Figures:
    model_registry.ImportAll()
    return measure_ways(name, "", None, _FEW, num_rounds, _log)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _rows(name: str, figures: Figures) -> Iterator[str]:
    for candidate, pair, error in zip(
        figures.candidates, figures.medians, figures.errors, strict=True
    ):
        yield markdown_row(
            *(name, figures.num_rows, candidate),
            *(f"{seconds:.4f}" for seconds in pair[:, 0]),
            f"{error[0]:+.1%}",
            *(f"{num_bytes / _MIB:.1f}" for num_bytes in pair[:, 1]),
            f"{error[1]:+.1%}",
        )


def _summary(figures_by_model: Mapping[str, Figures]) -> Iterator[str]:
    if not figures_by_model:
        return
    models = figures_by_model.values()
    errors = np.abs(np.concatenate([figures.errors for figures in models]))
    for name, column in zip(("time", "memory"), errors.T, strict=True):
        yield (
            f"\nError of the {name}: median {np.median(column):.1%}, largest "
            f"{np.max(column):.1%}, of {len(column)}."
        )
    drifts = np.abs(np.concatenate([figures.drifts.flatten() for figures in models]))
    if drifts.size:
        yield (
            "\nFrom round to round the measured time of a way changes by "
            f"{np.median(drifts):.1%} in the median, {np.max(drifts):.1%} at most."
        )
    yield "\nChosen ways, by predicted time, behind the fastest:\n"
    for name, figures in figures_by_model.items():
        chosen = figures.candidates[figures.chosen]
        yield f"- {name}: {chosen}, {figures.behind:.1%}"


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = flag_parser("on_this_machine", __doc__)
    add = parser.add_argument
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", help="name of a registered model")
    which.add_argument(
        "--models",
        help="prefixes of names of registered models, such as lm.text,mt, each model "
        "with as many rows as train in about a second; '' for all. Models that need "
        "more than half of the memory, or a minute a step, are left out",
    )
    add("--model_params_override", default="", help="changes, as in the trainer")
    add(
        "--batch",
        type=at_least_one,
        help="rows of a mini-batch; default: as many as train in about a second",
    )
    add("--rounds", type=at_least_one, default=5, help="number of rounds")
    options = parser.parse_args(arguments)
    if options.models is not None and (options.batch or options.model_params_override):
        parser.error("--models: expected no --batch and no --model_params_override")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
