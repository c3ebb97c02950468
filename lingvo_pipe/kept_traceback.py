"""The traceback of the error that ended a run, kept beside what the run has written."""

from __future__ import annotations

import traceback
from pathlib import Path

from lingvo_pipe.training.atomic_file import write_atomically
from lingvo_pipe.training.run_directory import RunDirectory


def keep_traceback(error: Exception, logdir: str, model_name: str) -> Path | None:
    """Writes a traceback into a run's directory.

    Args:
        error: the error.
        logdir: of the run.
        model_name: of the run's model.

    Returns:
        The file; None if there is no such run, or nothing can be written.
    """
    if not Path(logdir).is_dir():
        return None
    try:
        directory = RunDirectory(logdir, model_name)
        if not directory.params_path.exists():
            return None
        path = directory.path / "traceback.txt"
        text = traceback.format_exception(type(error), error, error.__traceback__)
        write_atomically(path, "".join(text))
    except (OSError, ValueError):
        return None
    return path
