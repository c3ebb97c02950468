"""Findings of port_check, as tests expect them."""

from __future__ import annotations

from collections.abc import Sequence

from lingvo_pipe.tools.port_check.source_check import check_source

# A line, its kind, what is there, and a part of the remedy.
Finding = tuple[int, str, str, str]


def assert_finds(source: str, expected: Sequence[Finding]) -> None:
    """Asserts that a file has these findings alone, apart from its imports'."""
    report = [x for x in check_source(source) if x.kind != "import"]
    assert [(x.line, x.kind, x.what) for x in report] == [x[:3] for x in expected]
    for finding, (*_, remedy) in zip(report, expected, strict=True):
        assert remedy in finding.instead
