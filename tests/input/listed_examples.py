"""A base of small data sets of TensorFlow Datasets, made from lists of examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds


class ListedExamples(  # type: ignore[call-arg]
    tfds.core.GeneratorBasedBuilder, skip_registration=True
):
    """Features and examples of the split `train`, in order, from a subclass."""

    VERSION = tfds.core.Version("1.0.0")

    def Features(self) -> Any:
        """Returns a feature, or a dict of features by name."""
        raise NotImplementedError

    def Examples(self) -> Iterable[Any]:
        raise NotImplementedError

    def _info(self) -> tfds.core.DatasetInfo:
        features = self.Features()
        if isinstance(features, dict):
            features = tfds.features.FeaturesDict(features)
        return tfds.core.DatasetInfo(
            builder=self, features=features, disable_shuffling=True
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator:
        return enumerate(self.Examples())


def prepare(name: str, data_dir: Path | str) -> Any:
    """Prepares a data set in a folder, and returns its builder."""
    builder = tfds.builder(name, data_dir=str(data_dir))
    builder.download_and_prepare(file_format="array_record")
    return builder
