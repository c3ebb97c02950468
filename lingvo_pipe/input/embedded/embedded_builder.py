"""The base of the embedded data sets."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import tensorflow_datasets as tfds


class EmbeddedBuilder(tfds.core.GeneratorBasedBuilder):
    """The builder of a data set that needs no download.

    It is prepared on first use, within a minute, without output from TensorFlow
    Datasets.
    """

    def download_and_prepare(self, **kwargs: Any) -> None:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            super().download_and_prepare(**kwargs)
