"""Documents in text files, to be read in any order.

Shapes: K documents of N.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lingvo_pipe.input.text.line_file import LineFile

LINES, BLANK_LINES = "lines", "blank_lines"

# A document is tokenized whole for each row that it is in.
_MOST_BYTES = 1 << 20


class Documents:
    """The documents of some files, one file after the other.

    Args:
        files: The files.
        separated_by: `lines`: each line that is not blank is a document;
            `blank_lines`: all lines up to the next blank one are.

    Raises:
        ValueError: If there are no documents, or one is longer than a megabyte.
    """

    def __init__(self, files: Sequence[LineFile], separated_by: str) -> None:
        self._files = list(files)
        places, bounds = [], []
        for place, file in enumerate(self._files):
            found = _lines(file) if separated_by == LINES else _paragraphs(file)
            _check_sizes(file, found)
            places.append(np.full(len(found), place))
            bounds.append(found)
        self._places, self._bounds = np.concatenate(places), np.concatenate(bounds)
        if not len(self._places):
            have = "has" if len(self._files) == 1 else "have"
            raise ValueError(
                "Text files must have lines that are not blank; "
                f"{', '.join(file.path for file in self._files)} {have} none. Name "
                "others."
            )

    def __len__(self) -> int:
        return len(self._places)

    def fetch(self, numbers: np.ndarray) -> list[bytes]:
        """Returns the texts of some documents: [K] of bytes, in UTF-8.

        Args:
            numbers: int64 [K], each from 0 to N - 1.
        """
        return [
            self._files[place].between(first, after)
            for place, (first, after) in zip(
                self._places[numbers], self._bounds[numbers], strict=True
            )
        ]


def _check_sizes(file: LineFile, bounds: np.ndarray) -> None:
    sizes = file.num_bytes(*bounds.T)
    if sizes.max(initial=0) > _MOST_BYTES:
        longest = int(sizes.argmax())
        first, after = bounds[longest]
        raise ValueError(
            f"A document must have at most {_MOST_BYTES:,} bytes, for it is tokenized "
            f"whole for each row that it is in; that in lines {first + 1:,} to "
            f"{after:,} of {file.path} has {sizes[longest]:,}. Break it up, into "
            "shorter lines or by blank lines."
        )


def _lines(file: LineFile) -> np.ndarray:
    """Returns the first line and that after the last of each document, int [N, 2]."""
    lines = np.flatnonzero(~file.is_blank())
    return np.stack([lines, lines + 1], 1)


def _paragraphs(file: LineFile) -> np.ndarray:
    has_text = np.concatenate([[False], ~file.is_blank(), [False]])
    return np.flatnonzero(has_text[1:] != has_text[:-1]).reshape(-1, 2)
