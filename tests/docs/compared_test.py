"""Each claim of the page that compares names a test that exists."""

from __future__ import annotations

import re

from lingvo_pipe.pipeline.schedules.by_name import SCHEDULE_NAMES
from lingvo_pipe.version import VERSION
from tests.docs.pages import SOURCE_ROOT, page

PAGE = page("compared")
_TEST = re.compile(r"`(tests/[\w/]+_test\.py)`$")


def _rows(heading: str) -> list[list[str]]:
    """Returns the cells of a section's table, without its head."""
    _, _, section = PAGE.partition(f"\n## {heading}\n")
    lines = re.findall(r"^\| (.*) \|$", section.partition("\n## ")[0], re.MULTILINE)
    return [line.split(" | ") for line in lines[1:]]


def test_each_claim_names_a_test() -> None:
    words, compared = _rows("In other words"), _rows("Side by side")
    assert {len(row) for row in words} == {3}
    assert {len(row) for row in compared} == {8}
    assert len(words) > 10
    assert len(compared) > 10
    for cell in [row[-1] for row in words] + [row[1] for row in compared]:
        named = _TEST.search(cell)
        assert named is not None, cell
        assert (SOURCE_ROOT / named[1]).exists(), cell


def test_it_is_of_this_version_and_all_schedules() -> None:
    assert f"lingvo_pipe {VERSION}" in PAGE
    assert {name for name in SCHEDULE_NAMES if f"`{name}`" not in PAGE} == set()
