"""The base class of the tfds builders of embedded data sets."""

import contextlib
import io
from typing import Any

import tensorflow_datasets as tfds


class EmbeddedBuilder(tfds.core.GeneratorBasedBuilder):
    """Base of builders that download nothing and prepare data silently on first use."""

    def download_and_prepare(self, **kwargs: Any) -> None:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            super().download_and_prepare(**kwargs)

    def _embedded_info(self, features: dict, **others: Any) -> tfds.core.DatasetInfo:
        """Returns tfds's DatasetInfo. The first two features are input and target."""
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=tuple(features)[:2],
            disable_shuffling=True,
            **others,
        )
