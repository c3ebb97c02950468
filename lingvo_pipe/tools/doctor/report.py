"""The doctor's report as text."""

from collections.abc import Iterator
from typing import Any

from lingvo_pipe.core.tables import markdown_table


def report_text(report: dict[str, Any]) -> str:
    """Returns a report of `examine` as tables, with the problems at the end."""
    return "\n".join(_lines(report))


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield ", ".join(f"{name} {text}" for name, text in report["versions"].items())
    for rows in (report["devices"], report["links"], report["steps"]):
        if rows:
            yield ""
            cells = [[_text(value) for value in row.values()] for row in rows]
            yield from markdown_table([list(rows[0]), *cells])
    differing = [row for row in report["bytes"] if row["differing"]]
    equal = len(report["bytes"]) - len(differing)
    yield f"\nBytes: {equal} ways to train are equal, {len(differing)} differ."
    for kind, number in report["no_time_for"].items():
        yield f"There was no time for {number} checks of {kind}."
    yield from (f"problem: {text}" for text in report["problems"])
    yield "FAILED" if report["problems"] else "ok"


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
