"""Tables have aligned columns, and are Markdown where asked."""

from __future__ import annotations

from lingvo_pipe.core.tables import (
    markdown_header,
    markdown_row,
    markdown_table,
    text_table,
)

ROWS = [("name", "number", ""), ("a", "1", "b c"), ("longer", "1,000", "")]


def test_columns_of_text_are_aligned() -> None:
    assert text_table(ROWS, right=[1]) == [
        "name    number",
        "a            1  b c",
        "longer   1,000",
    ]


def test_columns_of_markdown_are_aligned() -> None:
    assert markdown_table(ROWS) == [
        "| name   | number |     |",
        "| ------ | ------ | --- |",
        "| a      | 1      | b c |",
        "| longer | 1,000  |     |",
    ]


def test_rows_can_be_printed_one_by_one() -> None:
    assert markdown_header(["a", "bc"]) == ["| a | bc |", "|---|---|"]
    assert markdown_row("1,000", "") == "| 1,000 |  |"
