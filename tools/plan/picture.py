"""A picture of what a plan has found."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from lingvo_pipe.pipeline.simulation.draw import draw_timelines
from lingvo_pipe.planner.plan_report import name_of
from lingvo_pipe.planner.search import Found

_ENDINGS = (".png", ".pdf", ".svg")


def picture_path(text: str) -> Path:
    """The file that a user means, below the folder in which Bazel was called.

    Raises:
        ValueError: if no picture can be written there.
    """
    folder = os.environ.get("BUILD_WORKING_DIRECTORY", "")
    path = Path(folder, os.path.expanduser(text))
    problem = "that is a directory" if path.is_dir() else None
    if path.suffix not in _ENDINGS:
        problem = f"it must end in {', '.join(_ENDINGS)}"
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        problem = error.strerror
    if problem:
        raise ValueError(
            f"--picture must be a file that can be written; got {path} ({problem}). "
            "Choose another."
        )
    return path


def draw_first(found: Found, path: Path) -> str:
    """Draws a step of the fastest; returns a line for the user."""
    best = found.fastest[0]
    candidate = best.candidate
    which, title = "", name_of(candidate)
    if candidate.num_replicas > 1:
        which = f", of one of {candidate.num_replicas} replicas"
    draw_timelines({f"{title}{which}": best.timeline}, path)
    return f"The timeline of a step{which}, the update left out, is {path}."
