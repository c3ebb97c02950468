"""HTML as Python: elements whose text is escaped. Pure."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence

# They have no content, and no end tag.
_VOID = ("img", "meta")


class Html(str):
    """Text that is HTML already: what is in it is not escaped again."""


def element(name: str, /, *children: str, **attributes: str | int | None) -> Html:
    """An element of HTML or SVG.

    Args:
        name: its name.
        *children: what is in it, in order; what is not `Html` is text.
        **attributes: those of None are left out. `_` stands for `-`, and at the end for
            nothing: `class_`, `aria_label`.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{shown}>")
    return Html(f"<{name}{shown}>{joined(children)}</{name}>")


def joined(children: Iterable[str]) -> Html:
    """Elements and texts one after another."""
    return Html("".join(c if isinstance(c, Html) else html.escape(c) for c in children))


def table(head: Sequence[str], rows: Iterable[Iterable[str]], num_texts: int) -> Html:
    """A table that scrolls sideways where it is too wide.

    Args:
        head: titles of the columns.
        rows: of as many cells, the first of which says what the row is about.
        num_texts: how many columns hold texts; the others hold numbers.
    """
    titles = (element("th", title, scope="col") for title in head)
    lines = (
        _row([element("th", first, scope="row"), *(element("td", c) for c in cells)])
        for first, *cells in rows
    )
    whole = element(
        "table",
        element("thead", _row(titles)),
        element("tbody", *lines),
        class_=f"texts{num_texts}",
    )
    return element("div", whole, class_="wide", tabindex="0")


def _row(cells: Iterable[Html]) -> Html:
    return element("tr", *cells)


def picture(png: bytes, shows: str) -> Html:
    """A PNG within the page.

    Args:
        png: the picture.
        shows: what it shows, for those who don't see it.
    """
    encoded = base64.b64encode(png).decode()
    return element("img", src=f"data:image/png;base64,{encoded}", alt=shows)


def section(title: str, *children: str) -> Html:
    """A part of the page under a title."""
    return element("section", element("h2", title), *children)
