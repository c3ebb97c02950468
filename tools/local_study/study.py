"""The study's loop over trainings, and the files of its results."""

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.errors import UserValueError, Words
from tools.local_study.charts import draw_all
from tools.local_study.report import format_report
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
    log: Callable[[str], None],
) -> str:
    """Makes the trainings in `keys` that have no results yet, and returns the report.

    Each training has about `num_records` evaluations, and `num_moments` comparisons of
    gradients. `train` is called like `train_row`. Writes `results.json`, `report.md`
    and the charts to the folder `out`.

    Raises:
        ValueError: if a training fails. The results of finished trainings are kept.
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
        title = f"{number}/{len(keys)} {key.name}"
        if key in results.rows:
            log(f"{title}: finished before")
            continue
        log(f"{title}: {num_steps} steps")
        row = train(model, key, record_every, moments)
        results.add(row)
        test = row.records[-1].test
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in test.items())
        log(f"  test: {metrics} ({row.seconds:.0f} s)")
    rows = [results.rows[key] for key in keys]
    report = format_report(model.request.name, rows)
    (out / "report.md").write_text(report, encoding="utf-8")
    draw_all(rows, out)
    return report


def spread_moments(num_steps: int, number: int) -> list[int]:
    """Returns `number` steps, evenly spread from 0 to `num_steps - 1`."""
    last = num_steps - 1
    return sorted({round(last * i / max(1, number - 1)) for i in range(number)})


class ResultsFile:
    """The file with a study's settings and the results of finished trainings.

    Raises:
        ValueError: if the file has other settings, or is not from a study.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]):
        self._path, self._settings = path, dict(settings)
        self.rows: dict[RowKey, Row] = {}
        if path.exists():
            saved, self.rows = _read(path)
            changed = [name for name in settings if saved.get(name) != settings[name]]
            if changed:
                now, then = (
                    ", ".join(f"{name}={values.get(name)}" for name in changed)
                    for values in (settings, saved)
                )
                raise UserValueError(
                    path=str(path),
                    expected=f"rows with {now}",
                    got=Words(then),
                    hint="Choose another --out, or the same flags.",
                )

    def add(self, row: Row) -> None:
        """Adds a row, and writes the file atomically."""
        self.rows[row.key] = row
        rows = list(map(dataclasses.asdict, self.rows.values()))
        text = json.dumps({"settings": self._settings, "rows": rows}, indent=1)
        write_atomically(self._path, text + "\n")


def _read(path: Path) -> tuple[Mapping[str, Any], dict[RowKey, Row]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = map(Row.from_dict, content["rows"])
        return content["settings"], {row.key: row for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise UserValueError(
            path=str(path),
            expected="the file of a study",
            got=error,
            hint="Choose another --out.",
        ) from error
