"""Leaves out the curves of reports: drawing them takes a fifth of a small run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lingvo_pipe.training.report import curves

# Tests of reports, and tests that make reports of damaged files.
_FOLDER, _FILES = "report", ("damaged_files_test.py", "random_corruption_test.py")


@pytest.fixture(autouse=True, scope="module")
def _no_curves(request: pytest.FixtureRequest) -> Iterator[None]:
    """Replaces drawings where no test looks at them."""
    if request.path.parent.name == _FOLDER or request.path.name in _FILES:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "_draw", lambda *_: b"<svg/>")
        yield
