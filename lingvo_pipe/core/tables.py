"""Tables as aligned text or Markdown, from rows of cells with the header first."""

from collections.abc import Container, Sequence


def text_table(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Returns an aligned line for each row. Columns in `right` are right-aligned."""
    return ["  ".join(cells).rstrip() for cells in _padded(rows, right)]


def markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns lines of Markdown whose columns are also aligned as plain text."""
    header, *body = _padded(rows)
    rule = ["-" * len(cell) for cell in header]
    return [markdown_row(*cells) for cells in (header, rule, *body)]


def markdown_header(header: Sequence[str]) -> list[str]:
    """Returns a Markdown table's first lines. `markdown_row` makes the other ones."""
    return [markdown_row(*header), "|" + "---|" * len(header)]


def markdown_row(*cells: object) -> str:
    """Returns a line of Markdown with cells as wide as their texts."""
    return f"| {' | '.join(map(str, cells))} |"


def _padded(
    rows: Sequence[Sequence[str]], right: Container[int] = ()
) -> list[list[str]]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{'>' if i in right else '<'}{w}" for i, w in enumerate(widths)]
    return [list(map(format, row, forms)) for row in rows]
