"""What every data set is that comes with the project."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import tensorflow_datasets as tfds


class EmbeddedBuilder(tfds.core.GeneratorBasedBuilder):
    """Builds a data set of which nothing is downloaded.

    It is prepared where it is first needed, in a minute at most, and TensorFlow
    Datasets says nothing of it.
    """

    def download_and_prepare(self, **kwargs: Any) -> None:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            super().download_and_prepare(**kwargs)
