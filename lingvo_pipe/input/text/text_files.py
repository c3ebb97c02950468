r"""Text files: their paths, their lines and their documents.

Files stay on disk. Memory holds 16 bytes per line. Only \n and \r\n end a line, so two
parallel files stay aligned even if sentences contain other separators. Shapes: K of N
lines or documents.
"""

import mmap
import os
from collections.abc import Iterator, Sequence

import numpy as np

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.near_names import did_you_mean


def data_path(
    name: str, data_dir: str | None, path: str = "file of text", hint: str = ""
) -> str:
    """Returns the path of an existing file. A relative name is relative to `data_dir`.

    `path` and `hint` are for the error: the param's path, and further advice.

    Raises:
        ValueError: if there is no such file.
    """
    file = os.path.join(*map(os.path.expanduser, (data_dir or "", str(name))))
    if os.path.isfile(file):
        return file
    folder, near = os.path.dirname(file) or ".", ""
    if os.path.isdir(folder):
        files = [entry.name for entry in os.scandir(folder) if entry.is_file()]
        near = did_you_mean(os.path.basename(file), files).strip()
    hints = [
        near,
        f"There is no file {file}.",
        f"Relative names begin at data_dir, which is {data_dir!r}; --data_dir sets it.",
        hint,
    ]
    hint = " ".join(filter(None, hints))
    raise UserValueError(path=path, expected="an existing file", got=name, hint=hint)


_NEWLINE, _SPACE = 10, 32
_MARK = b"\xef\xbb\xbf"  # The byte order mark of UTF-8.
_BLOCK_BYTES = 1 << 26
_BLOCK_LINES = 1 << 16


class LineFile:
    """A text file with random access to its lines.

    Raises:
        ValueError: if the file is empty or not UTF-8.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            if file.read(len(_MARK) + 1) in (b"", _MARK):
                expected, got = "at least one line of text", Words("an empty file")
                raise UserValueError(path=path, expected=expected, got=got)
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._starts, self._ends = _line_bounds(self._bytes)
        self._check_encoding()

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, line: int) -> bytes:
        """Returns a line, counted from 0, without its newline."""
        return self.between(line, line + 1)

    def between(self, first: int, after: int) -> bytes:
        """Returns the text of the lines from `first` to `after - 1`, at least one."""
        text = self._bytes[self._starts[first] : self._ends[after - 1]]
        return text.replace(b"\r\n", b"\n").removesuffix(b"\r")

    def num_bytes(self, first: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Returns the numbers of bytes, int64 `[K]`, of K ranges as in `between`."""
        return self._ends[after - 1] - self._starts[first]

    def is_blank(self) -> np.ndarray:
        """Returns which lines have only ASCII spaces or control codes: bool `[N]`."""
        byte_values = np.frombuffer(self._bytes, np.uint8)
        # A line includes its newline, so every line has a byte.
        return np.maximum.reduceat(byte_values, self._starts) <= _SPACE

    def _check_encoding(self) -> None:
        for first in range(0, len(self), _BLOCK_LINES):
            after = min(first + _BLOCK_LINES, len(self))
            start = self._starts[first]
            try:
                self._bytes[start : self._ends[after - 1]].decode("utf-8")
            except UnicodeDecodeError as error:
                line = np.searchsorted(self._ends, start + error.start)
                hint = "Convert the file, for example with iconv."
                got = Words(f"{error.reason} in line {line + 1}")
                raise UserValueError(
                    path=self.path, expected="UTF-8", got=got, hint=hint
                ) from error


def _line_bounds(every: mmap.mmap) -> tuple[np.ndarray, np.ndarray]:
    """Returns each line's start, and its end before the newline: int64 `[N]` each."""
    first = len(_MARK) if every[: len(_MARK)] == _MARK else 0
    ends = np.concatenate(list(_newlines(every)))
    if every[-1] != _NEWLINE:
        ends = np.append(ends, len(every))
    return np.concatenate([[first], ends[:-1] + 1]), ends


def _newlines(every: mmap.mmap) -> Iterator[np.ndarray]:
    for start in range(0, len(every), _BLOCK_BYTES):
        block = np.frombuffer(every[start : start + _BLOCK_BYTES], np.uint8)
        yield np.flatnonzero(block == _NEWLINE) + start


LINES, BLANK_LINES = "lines", "blank_lines"

# Each row that contains a part of a document tokenizes the whole document.
_MAX_BYTES = 1 << 20


class Documents:
    """The documents of several files, in the order of the files.

    If `separated_by` is `lines`, each line that is not blank is a document. If it is
    `blank_lines`, blank lines separate documents.

    Raises:
        ValueError: if there is no document, or a document has more than a megabyte.
    """

    def __init__(self, files: Sequence[LineFile], separated_by: str) -> None:
        self._files = list(files)
        file_of, bounds = [], []
        for index, file in enumerate(self._files):
            file_bounds = _lines(file) if separated_by == LINES else _paragraphs(file)
            _check_sizes(file, file_bounds)
            file_of.append(np.full(len(file_bounds), index))
            bounds.append(file_bounds)
        self._file_of, self._bounds = np.concatenate(file_of), np.concatenate(bounds)
        if not len(self._file_of):
            raise UserValueError(
                path=", ".join(file.path for file in self._files),
                expected="lines with text",
                got=Words("blank lines only"),
            )

    def __len__(self) -> int:
        return len(self._file_of)

    def fetch(self, numbers: np.ndarray) -> list[bytes]:
        """Returns documents by number, `[K]`: their texts as bytes in UTF-8."""
        chosen = zip(self._file_of[numbers], self._bounds[numbers], strict=True)
        return [self._files[index].between(*bounds) for index, bounds in chosen]


def _check_sizes(file: LineFile, bounds: np.ndarray) -> None:
    sizes = file.num_bytes(*bounds.T)
    if sizes.max(initial=0) > _MAX_BYTES:
        longest = int(sizes.argmax())
        first, after = bounds[longest]
        raise UserValueError(
            path=f"{file.path}, lines {first + 1:,} to {after:,}",
            expected=f"documents of at most {_MAX_BYTES:,} bytes",
            got=int(sizes[longest]),
            hint="Break them into shorter lines, or separate them by blank lines.",
        )


def _lines(file: LineFile) -> np.ndarray:
    """Returns the bounds (line, line + 1) of lines that are not blank: int `[N, 2]`."""
    lines = np.flatnonzero(~file.is_blank())
    return np.stack([lines, lines + 1], 1)


def _paragraphs(file: LineFile) -> np.ndarray:
    has_text = np.concatenate([[False], ~file.is_blank(), [False]])
    return np.flatnonzero(has_text[1:] != has_text[:-1]).reshape(-1, 2)
