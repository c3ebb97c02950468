"""The study's tables, as Markdown. Pure."""

from collections.abc import Iterator, Sequence
from statistics import stdev

from lingvo_pipe.core.tables import markdown_table
from tools.local_study import study_rows
from tools.local_study.pareto import reached_losses

_KIB = 2**10


def format_report(model: str, rows: Sequence[study_rows.Row]) -> str:
    """Returns tables of a model's results: means over seeds, by scheme and batch."""
    averages = study_rows.averages(rows)
    first = averages[0]
    num_seeds = len(first.rows)
    seeds = f", means of {num_seeds} seeds" if num_seeds > 1 else ""
    tables = {
        "Metrics and costs": list(_metric_lines(averages)),
        f"Traffic between blocks in a step of {first.batch_size} examples, KiB": (
            _traffic_lines(averages)
        ),
        "Cost to reach a test loss": list(_reached_lines(averages)),
    }
    if local := [average for average in averages if average.similarities()]:
        title = "Cosine of local and true gradients, at the last moment"
        tables[title] = _similarity_lines(local)
    sections = [f"# {model}: {first.row.num_steps} steps each{seeds}"]
    for title, lines in tables.items():
        sections += [f"## {title}", "\n".join(markdown_table(lines))]
    return "\n\n".join(sections) + "\n"


def _metric_lines(averages: Sequence[study_rows.Average]) -> Iterator[tuple[str, ...]]:
    names, share = study_rows.metric_names(averages), "of backpropagation's"
    yield (
        *("scheme", "batch", "blocks"),
        *(f"test {name}" for name in names),
        *("step's cost, GFLOPs", share, "step's time, MFLOPs", share),
    )
    backpropagation = {
        average.batch_size: average
        for average in averages
        if len(average.row.blocks) == 1
    }
    for average in averages:
        cost, time = _step(average)
        cost_share = time_share = ""
        if baseline := backpropagation.get(average.batch_size):
            baseline_cost, baseline_time = _step(baseline)
            cost_share = f"{cost / baseline_cost:.2f}"
            time_share = f"{time / baseline_time:.2f}"
        yield (
            *(average.scheme, str(average.batch_size), str(len(average.row.blocks))),
            *(_metric(average, name) for name in names),
            *(f"{cost / 1e9:.3f}", cost_share, f"{time / 1e6:.2f}", time_share),
        )


def _step(average: study_rows.Average) -> tuple[float, float]:
    steps = average.row.num_steps
    point = average.row.point(steps)
    return point.cost / steps, point.time / steps


def _metric(average: study_rows.Average, name: str) -> str:
    values = [row.records[-1].test[name] for row in average.rows]
    spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
    return f"{average.test_curve(name)[-1][1]:.4f}{spread}"


def _traffic_lines(averages: Sequence[study_rows.Average]) -> list[tuple[str, ...]]:
    batch_size = averages[0].batch_size
    compared = [average for average in averages if average.batch_size == batch_size]
    back = [
        {b.after: b.backward + b.weights for b in average.row.boundaries}
        for average in compared
    ]
    forward = {b.after: b.forward for x in compared for b in x.row.boundaries}
    headings = ("after", "forward", *(f"back, {x.scheme}" for x in compared))
    columns = (forward, *back)
    return [
        headings,
        *(
            (layer, *(_shown(column.get(layer), _KIB, ",.1f") for column in columns))
            for layer in forward
        ),
    ]


def _reached_lines(averages: Sequence[study_rows.Average]) -> Iterator[tuple[str, ...]]:
    yield "test loss", "scheme", "batch", "steps", "total, GFLOPs", "sequential, GFLOPs"
    for target, by_scheme in reached_losses(averages).items():
        loss = f"{target:.4f}"
        for scheme, reached in by_scheme.items():
            for size, steps, (cost, time) in reached:
                total, sequential = f"{cost / 1e9:,.1f}", f"{time / 1e9:,.3f}"
                yield loss, scheme, str(size), str(steps), total, sequential
            if not reached:
                yield loss, scheme, "not reached", "", "", ""


def _similarity_lines(local: Sequence[study_rows.Average]) -> list[tuple[str, ...]]:
    columns = [list(average.similarities().values())[-1] for average in local]
    headings = ("layer", *(f"{x.scheme}, {x.batch_size}" for x in local))
    return [
        headings,
        *(
            (layer, *(_shown(column[layer], 1, ".3f") for column in columns))
            for layer in columns[0]
        ),
    ]


def _shown(value: float | None, unit: float, form: str) -> str:
    return "" if value is None else format(value / unit, form)
