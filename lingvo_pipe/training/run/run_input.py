"""The meaning of a run's tokens and labels, which its weights depend on."""

from pathlib import Path
from typing import Any

from lingvo_pipe.training.run.run_classes import check_class_names, write_class_names
from lingvo_pipe.training.run.run_vocabulary import check_vocabulary, write_vocabulary


def write_meaning(directory: Path, input_generator: Any, is_resumed: bool) -> None:
    """Writes an input's vocabulary and the names of its classes, if it has any.

    `is_resumed` says whether the directory's files are of the same run.
    """
    write_vocabulary(directory, input_generator)
    write_class_names(directory, input_generator, is_resumed)


def check_meaning(directory: Path, input_generator: Any) -> None:
    """Raises ValueError if an input's tokens or labels are others than a run's."""
    check_vocabulary(directory, input_generator)
    check_class_names(directory, input_generator)
