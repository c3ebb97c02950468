"""Measures how long a language model takes to the first token, and for each token.

    python -m tools.benchmarks.generation

Prints a table by stages, rows and groups of rows. A group's token passes all K stages
one after another, in the time T that one device takes for it. A device serves all G
groups, in G·T/K. So a token of all rows is predicted to take max(T, G·T/K), with T as
measured on one device. The time to the first token, in which prompts are read, is
predicted in the same way.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

from absl import app

from lingvo_pipe.core.programs import program
from lingvo_pipe.core.tables import markdown_table
from tools.benchmarks.system_load import OtherPrograms
from tools.benchmarks.worker_process import process_group

_MODULE = "tools.benchmarks.generation"
_MEASURE = "measure"  # First argument of measuring processes; then stages and ways.
_STAGES = (1, 2)
_ROWS = (8, 64)
_GROUPS = (1, 2, 4)
_PROMPT_TOKENS, _NEW_TOKENS = 32, 32
_NO_END = -1  # No token ends a text.
_HEADER = (
    *("stages", "rows", "groups", "first token, ms", "predicted"),
    *("each token, ms", "predicted", "tokens a second"),
)
_NUM_TURNS = 5


class Way(NamedTuple):
    """A way to generate."""

    num_stages: int
    num_rows: int
    num_groups: int

    def predicted(self, alone: Mapping[int, float]) -> float:
        """Returns seconds of all groups, from one device's by the number of rows."""
        seconds = alone[self.rows_of_group]
        return max(seconds, self.num_groups * seconds / self.num_stages)

    @property
    def rows_of_group(self) -> int:
        """Rows of the largest group."""
        return -(-self.num_rows // self.num_groups)


class Seconds(NamedTuple):
    """Seconds to the first token of all rows, and for each further one."""

    first: float
    further: float


def ways() -> list[Way]:
    """Returns the ways that are compared, and those that predictions need."""
    compared = list(itertools.starmap(Way, itertools.product(_STAGES, _ROWS, _GROUPS)))
    needed = sorted({way.rows_of_group for way in compared})
    return [*dict.fromkeys([*compared, *(Way(1, rows, 1) for rows in needed)])]


def measure(chosen: Sequence[Way]) -> None:
    """Prints the seconds of ways with one number of stages, once per line of input."""
    num_stages = chosen[0].num_stages
    cores = sorted(os.sched_getaffinity(0))[:num_stages]
    os.sched_setaffinity(0, cores)
    from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices

    initialize_devices(num_stages)
    task = _task(num_stages)
    runs = [_timed(task, way) for way in chosen]
    others, go_on = OtherPrograms(cores), True
    for run in runs:  # Builds everything.
        run()
    while go_on:
        with others:
            seconds = [run() for run in runs]
        print(json.dumps([others.num_cores(), seconds]), flush=True)
        go_on = bool(sys.stdin.readline())


def _task(num_stages: int) -> Any:
    import lingvo_pipe as lp

    cells = lp.models.language_model(
        num_layers=4, hidden_dim=2048, num_heads=8, num_tokens=1024, model_dim=512
    )
    p = lp.models.LanguageModelTask.Params().Set(name="task")
    p.pipeline.Set(cell_tpl=cells, splits=num_stages)
    return p.Instantiate()


def _timed(task: Any, way: Way) -> Callable[[], Seconds]:
    import tensorflow as tf

    from lingvo_pipe.layers.core.forward_context import ForwardContext
    from lingvo_pipe.nested_map import NestedMap
    from lingvo_pipe.training.decode.continuous_batch import text_rows
    from lingvo_pipe.training.task.protocols import Sampling

    ids = tf.ones([way.num_rows, _PROMPT_TOKENS], tf.int32)
    lengths = tf.fill([way.num_rows], _PROMPT_TOKENS)
    rows = text_rows(NestedMap(ids=ids, lengths=lengths), _NEW_TOKENS, _NO_END)
    likeliest = Sampling(_NEW_TOKENS, temperature=0.0)

    @tf.function(autograph=False)
    def begin() -> Any:
        return task.TextStates(task.Values(), *rows.ids.shape, way.num_groups)

    @tf.function(autograph=False)
    def extend(rows: Any, states: Any, num_steps: tf.Tensor) -> Any:
        arguments = rows, states, likeliest, _NO_END, num_steps
        with ForwardContext(do_eval=True):
            return task.ContinueTexts(task.Values(), *arguments)

    def run() -> Seconds:
        states, times = begin(), [time.perf_counter()]
        extended = rows, states
        for num_steps in (1, _NEW_TOKENS - 1):
            extended = extend(*extended, tf.constant(num_steps))
            extended[0].ids.numpy()
            times.append(time.perf_counter())
        start, first, end = times
        return Seconds(first - start, (end - first) / (_NEW_TOKENS - 1))

    return run


def compare(chosen: Sequence[Way], num_turns: int) -> list[str]:
    """Returns the lines of a table, and a line about other programs."""
    measured: dict[Way, list[Seconds]] = {way: [] for way in chosen}
    others = []
    with ExitStack() as stack:
        groups = []
        for _, same_stages in itertools.groupby(
            sorted(chosen), key=lambda way: way.num_stages
        ):
            listed = list(same_stages)
            command = [sys.executable, "-m", _MODULE, _MEASURE, json.dumps(listed)]
            group = stack.enter_context(process_group(str(listed[0]), [command]))
            group.answers()
            groups.append((listed, group))
        for _, (listed, group) in itertools.product(range(num_turns), groups):
            busy, seconds = json.loads(group.turn()[0])
            others.append(busy)
            for way, run_seconds in zip(listed, seconds, strict=True):
                measured[way].append(Seconds(*run_seconds))
    medians = {
        way: Seconds(*map(median, zip(*runs, strict=True)))
        for way, runs in measured.items()
    }
    lines = markdown_table([_HEADER, *table_rows(medians)])
    return [*lines, f"Other programs kept {max(others):.2f} cores busy at most."]


def table_rows(measured: Mapping[Way, Seconds]) -> Iterable[tuple[str, ...]]:
    """Yields the cells of each way, beside its predictions."""
    alone = {
        way.num_rows: seconds
        for way, seconds in measured.items()
        if (way.num_stages, way.num_groups) == (1, 1)
    }
    firsts, furthers = (
        {rows: seconds[i] for rows, seconds in alone.items()} for i in range(2)
    )
    for way, seconds in sorted(measured.items()):
        milliseconds = (
            f"{1e3 * x:.1f}"
            for x in (
                *(seconds.first, way.predicted(firsts)),
                *(seconds.further, way.predicted(furthers)),
            )
        )
        speed = way.num_rows / seconds.further
        yield (*map(str, way), *milliseconds, f"{speed:.0f}")


def main(argv: Sequence[str]) -> None:
    """Prints the table. A measuring process is one whose first argument asks for it."""
    if argv[1:2] == [_MEASURE]:
        measure([Way(*sizes) for sizes in json.loads(argv[2])])
        return
    with program(argv):
        print("\n".join(compare(ways(), _NUM_TURNS)))


if __name__ == "__main__":
    app.run(main)
