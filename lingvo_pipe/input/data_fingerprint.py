"""A fingerprint of data, by which a resumed run notices other data."""

import hashlib
from collections.abc import Iterable

import numpy as np
from absl import logging


class DataFingerprint:
    """A fingerprint of the data's arrays, and of settings on which batches depend.

    Attributes:
        text: the fingerprint, which a run stores.
    """

    def __init__(self, settings: object, arrays: Iterable[np.ndarray]) -> None:
        digest = hashlib.sha256(repr(settings).encode())
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
        self.text = digest.hexdigest()[:16]
        self._known = {"", self.text}

    def check(self, stored: str) -> bool:
        """Returns whether a checkpoint's fingerprint is this one. Warns once if not.

        A checkpoint of an old version has the fingerprint "".
        """
        if stored not in self._known:
            self._known.add(stored)
            logging.warning(
                "The training data, or params of their batches, have changed since the "
                "checkpoint: from here on batches differ from an uninterrupted run's."
            )
        return stored == self.text
