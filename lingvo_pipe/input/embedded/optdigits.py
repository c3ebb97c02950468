"""The embedded data set `optdigits`: 1,797 real handwritten digits.

Importing this module registers the data set, so that tfds finds it.
"""

import gzip
from collections.abc import Iterator
from importlib import resources
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from lingvo_pipe.input.embedded.embedded_builder import EmbeddedBuilder

_TEST_EVERY = 5
_SIDE = 8

_DESCRIPTION = """\
Handwritten digits of 13 people, scanned, and reduced to 8x8 pixels of 0 to 16: the
test part of the Optical Recognition of Handwritten Digits data set of the UCI Machine
Learning Repository, shared under CC BY 4.0. Every fifth image is held out for testing.
"""

_CITATION = """\
@misc{optdigits,
  author = {Alpaydin, E. and Kaynak, C.},
  title = {Optical Recognition of Handwritten Digits},
  year = {1998},
  publisher = {UCI Machine Learning Repository},
  doi = {10.24432/C50P49},
}
"""


class OptDigits(EmbeddedBuilder):
    """The tfds builder: `image` is uint8 [8, 8, 1] from 0 to 16, and `label` 0 to 9."""

    name = "optdigits"
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "The test part of the original, split four to one."}
    PIXEL_MAX = 16

    def _info(self) -> tfds.core.DatasetInfo:
        return self._embedded_info(
            {
                "image": tfds.features.Tensor(shape=(_SIDE, _SIDE, 1), dtype=np.uint8),
                "label": tfds.features.ClassLabel(num_classes=10),
            },
            description=_DESCRIPTION,
            homepage="https://doi.org/10.24432/C50P49",
            citation=_CITATION,
            license="CC BY 4.0",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
        rows = _read_rows()
        is_test = np.arange(len(rows)) % _TEST_EVERY == _TEST_EVERY - 1
        return {
            "train": self._generate_examples(rows, np.flatnonzero(~is_test)),
            "test": self._generate_examples(rows, np.flatnonzero(is_test)),
        }

    def _generate_examples(
        self, rows: np.ndarray, indices: np.ndarray
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for index in indices.tolist():
            *pixels, label = rows[index].tolist()
            image = np.array(pixels, np.uint8).reshape(_SIDE, _SIDE, 1)
            yield index, {"image": image, "label": label}


def _read_rows() -> np.ndarray:
    """Returns the embedded file as a uint8 array `[N, 65]`: pixels, then the label."""
    path = resources.files("lingvo_pipe.input.embedded") / "data" / "optdigits.csv.gz"
    text = gzip.decompress(path.read_bytes()).decode("ascii")
    return np.loadtxt(text.splitlines(), delimiter=",", dtype=np.uint8)
