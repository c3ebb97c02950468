"""The study's tables, as Markdown. Pure."""

from collections.abc import Iterator, Sequence
from statistics import stdev

from lingvo_pipe.core.tables import markdown_table
from tools.local_study import study_rows
from tools.local_study.pareto import reached_losses

_KIB = 2**10


def format_report(model: str, rows: Sequence[study_rows.Row]) -> str:
    """Returns tables of a model, by scheme and batch size; means over seeds."""
    found = study_rows.averages(rows)
    num_seeds = len(found[0].rows)
    seeds = f", means of {num_seeds} seeds" if num_seeds > 1 else ""
    tables = {
        "Metrics and costs": list(_metric_lines(found)),
        f"Traffic between blocks in a step of {found[0].batch_size} examples, KiB": (
            _traffic_lines(found)
        ),
        "Cost to reach a test loss": list(_reached_lines(found)),
    }
    if local := [each for each in found if each.similarities()]:
        title = "Cosine of local and true gradients, at the last moment"
        tables[title] = _similarity_lines(local)
    sections = [f"# {model}: {found[0].row.num_steps} steps each{seeds}"]
    for title, lines in tables.items():
        sections += [f"## {title}", "\n".join(markdown_table(lines))]
    return "\n\n".join(sections) + "\n"


def _metric_lines(found: Sequence[study_rows.Average]) -> Iterator[tuple[str, ...]]:
    names, share = study_rows.metric_names(found), "of backpropagation's"
    costs = ("step's cost, GFLOPs", share, "step's time, MFLOPs", share)
    yield "scheme", "batch", "blocks", *(f"test {name}" for name in names), *costs
    whole = {each.batch_size: each for each in found if len(each.row.blocks) == 1}
    for each in found:
        cost, time = _step(each)
        shares = ["", ""]
        if other := whole.get(each.batch_size):
            shares = [f"{cost / _step(other)[0]:.2f}", f"{time / _step(other)[1]:.2f}"]
        yield (
            *(each.scheme, str(each.batch_size), str(len(each.row.blocks))),
            *(_metric(each, name) for name in names),
            *(f"{cost / 1e9:.3f}", shares[0], f"{time / 1e6:.2f}", shares[1]),
        )


def _step(average: study_rows.Average) -> tuple[float, float]:
    """Returns mean cost and time of a step, including the filling of the pipeline."""
    steps = average.row.num_steps
    point = average.row.point(steps)
    return point.cost / steps, point.time / steps


def _metric(average: study_rows.Average, name: str) -> str:
    values = [row.records[-1].test[name] for row in average.rows]
    spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
    return f"{average.test_curve(name)[-1][1]:.4f}{spread}"


def _traffic_lines(found: Sequence[study_rows.Average]) -> list[tuple[str, ...]]:
    own = [each for each in found if each.batch_size == found[0].batch_size]
    back = [{b.after: b.backward + b.weights for b in x.row.boundaries} for x in own]
    forward = {b.after: b.forward for each in own for b in each.row.boundaries}
    headings = ("after", "forward", *(f"back, {each.scheme}" for each in own))
    columns = (forward, *back)
    return [
        headings,
        *(
            (x, *(_shown(each.get(x), _KIB, ",.1f") for each in columns))
            for x in forward
        ),
    ]


def _reached_lines(found: Sequence[study_rows.Average]) -> Iterator[tuple[str, ...]]:
    yield "test loss", "scheme", "batch", "steps", "total, GFLOPs", "sequential, GFLOPs"
    for target, by_scheme in reached_losses(found).items():
        for scheme, reached in by_scheme.items():
            start = f"{target:.4f}", scheme
            for size, steps, (cost, time) in reached:
                costs = f"{cost / 1e9:,.1f}", f"{time / 1e9:,.3f}"
                yield *start, str(size), str(steps), *costs
            if not reached:
                yield *start, "not reached", "", "", ""


def _similarity_lines(local: Sequence[study_rows.Average]) -> list[tuple[str, ...]]:
    last = [list(each.similarities().values())[-1] for each in local]
    headings = ("layer", *(f"{each.scheme}, {each.batch_size}" for each in local))
    return [
        headings,
        *((x, *(_shown(each[x], 1, ".3f") for each in last)) for x in last[0]),
    ]


def _shown(value: float | None, unit: float, form: str) -> str:
    return "" if value is None else format(value / unit, form)
