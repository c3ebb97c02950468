"""Runs of the model that translates letters."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.command_line import CommandLine
from tests.trainer.translating_models import write_data

MODEL = ("--model=mine.translating_models.Letters", "--data_dir=.")


def train_letters(folder: Path, *flags: str) -> Path:
    """Trains a run in the folder, and returns the folder."""
    (folder / "mine").mkdir()
    models = Path(__file__).resolve().with_name("translating_models.py")
    shutil.copy(models, folder / "mine")
    write_data(folder)
    CommandLine(folder).train(*MODEL, "--logdir=run", *flags)
    return folder
