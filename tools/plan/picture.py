"""A picture of what a plan has found."""

from __future__ import annotations

import os
from pathlib import Path

from lingvo_pipe.pipeline.simulation.draw import draw_timelines
from lingvo_pipe.planner.plan_report import name_of
from lingvo_pipe.planner.search import Found
from tools.writable_file import check_writable

_ENDINGS = (".png", ".pdf", ".svg")


def picture_path(text: str) -> Path:
    """The file that a user means, below the folder in which Bazel was called.

    Raises:
        ValueError: if no picture can be written there.
    """
    folder = os.environ.get("BUILD_WORKING_DIRECTORY", "")
    path = Path(folder, os.path.expanduser(text))
    if path.suffix not in _ENDINGS:
        raise ValueError(
            f"--picture must end in {', '.join(_ENDINGS)}; got {path}. Choose another."
        )
    check_writable(path, "--picture")
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
