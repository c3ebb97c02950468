"""The study: trains what is missing, and writes what was found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from tools.local_study.pictures import draw_all
from tools.local_study.report import format_report
from tools.local_study.results_file import ResultsFile
from tools.local_study.studied_model import StudiedModel
from tools.local_study.study_rows import Row, RowKey

TrainRow = Callable[[StudiedModel, RowKey, int, Collection[int]], Row]


def study(
    model: StudiedModel,
    keys: Sequence[RowKey],
    out: Path,
    num_records: int,
    num_moments: int,
    train: TrainRow,
    say: Callable[[str], None],
) -> str:
    """Trains a model by each key that has no row in `results.json` yet.

    Args:
        model: the model.
        keys: at least one; every scheme has the same batch sizes and seeds.
        out: folder for `results.json`, `report.md` and the pictures.
        num_records: about how often each is evaluated after its first step.
        num_moments: how often gradients are compared.
        train: `train_row`, or what does the same.
        say: takes a line for the user.

    Returns:
        The report, of the rows of `keys`.

    Raises:
        ValueError: if something can't be done; what is finished stays.
    """
    num_steps = model.num_steps
    record_every = max(1, round(num_steps / num_records))
    moments = spread_moments(num_steps, num_moments)
    settings = {
        "model": model.request.name,
        "model_params_override": model.request.override,
        "steps": num_steps,
        "chunks": model.chunks,
        "record_every": record_every,
        "moments": moments,
    }
    out.mkdir(parents=True, exist_ok=True)
    results = ResultsFile(out / "results.json", settings)
    for number, key in enumerate(keys, start=1):
        place = f"{number}/{len(keys)} {key.name}"
        if key in results.rows:
            say(f"{place}: finished before")
            continue
        say(f"{place}: {num_steps} steps")
        row = train(model, key, record_every, moments)
        results.add(row)
        say(_summary(row))
    rows = [results.rows[key] for key in keys]
    report = format_report(model.request.name, rows)
    (out / "report.md").write_text(report, encoding="utf-8")
    draw_all(rows, out)
    return report


def spread_moments(num_steps: int, number: int) -> list[int]:
    """Numbers of steps, evenly spread from 0 to the last but one."""
    last = num_steps - 1
    return sorted({round(last * i / max(1, number - 1)) for i in range(number)})


def _summary(row: Row) -> str:
    test = row.records[-1].test
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in test.items())
    return f"  test: {metrics} ({row.seconds:.0f} s)"
