"""Lines of the product that each test runs: recorded by pytest, kept in a JSON file.

Lines that run when modules are imported belong to no test (`IMPORTED`).
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

IMPORTED = "import"
_MAX_EVENTS = 1000  # Lines, also the same again, of one function in one test.
# By test: the seconds it takes, and by version of a source file its lines as bits.
Record = dict[str, tuple[float, dict[str, str]]]


def version(path: str, source: bytes) -> str:
    """Returns a name of a file that changes with its content."""
    return f"{path} {hashlib.sha256(source).hexdigest()[:10]}"


class _Function:
    """A function that a test runs, and its lines that the test has not run.

    After many lines it is no longer traced, and counts as run in full: otherwise pure
    Python would take twenty times as long.
    """

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.missing = lines_of(code)
        self._left = _MAX_EVENTS

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self.missing.discard(frame.f_lineno)
            self._left -= 1
            if self._left <= 0:
                self.missing.clear()
            frame.f_trace_lines = bool(self.missing)
        return self.trace


class LineRecorder:
    """A pytest plugin that records the lines of a tree's product.

    Threads that Python did not start, and other processes, are not seen.

    Attributes:
        record: of the tests that passed.
    """

    def __init__(self, root: Path) -> None:
        self.record: Record = {}
        self._root = f"{root}/"
        self._product = f"{root}/lingvo_pipe/"
        self._functions: dict[int, _Function] = {}  # By the number of its code.
        self._seconds, self._has_passed = 0.0, True
        self._begin()

    def _begin(self) -> None:
        sys.settrace(self._trace)
        threading.settrace(self._trace)

    def _trace(self, frame: FrameType, *_: object) -> Callable[..., Any] | None:
        """Returns what traces a function of the product, unless all of it has run."""
        code = frame.f_code
        if not code.co_filename.startswith(self._product):
            return None
        if id(code) not in self._functions:
            self._functions[id(code)] = _Function(code)
        function = self._functions[id(code)]
        return function.trace if function.missing else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Collects the lines of a test, with its fixtures."""
        self._add(IMPORTED)
        self._seconds, self._has_passed = 0.0, True
        # Python ends tracing when the tracer fails, as it does in a deep recursion.
        self._begin()
        result = yield
        if self._has_passed:
            self._add(item.nodeid)
        self._functions.clear()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration
        self._has_passed &= report.passed

    def _add(self, test: str) -> None:
        lines = defaultdict[str, set[int]](set)
        for function in self._functions.values():
            code = function.code
            lines[code.co_filename] |= lines_of(code) - function.missing
        covered = {
            version(path.removeprefix(self._root), Path(path).read_bytes()): bits(
                numbers
            )
            for path, numbers in lines.items()
        }
        _, before = self.record.get(test, (0.0, {}))
        self.record[test] = (round(self._seconds, 2), united(before, covered))
        self._functions.clear()


def lines_of(code: CodeType) -> set[int]:
    """Returns the numbers of the lines that have instructions of a function."""
    return {line for _, _, line in code.co_lines() if line is not None}


def bits(lines: set[int]) -> str:
    """Returns numbers as the bits of a hexadecimal number."""
    return f"{sum(1 << line for line in lines):x}"


def united(one: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    """Returns the lines that are in one or the other, by file."""
    return {
        file: f"{int(one.get(file, '0'), 16) | int(other.get(file, '0'), 16):x}"
        for file in one | other
    }


def read(path: Path) -> Record:
    """Returns what a file holds, or nothing if there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def add_to_file(path: Path, record: Record) -> None:
    """Adds a record to a file, in place of the same tests' older ones."""
    before = read(path)
    imported = united(before.get(IMPORTED, (0, {}))[1], record[IMPORTED][1])
    merged = before | record | {IMPORTED: (0.0, imported)}
    path.write_text(json.dumps(merged), encoding="utf-8")


def tests_of(
    record: Record, path: str, source: bytes, lines: tuple[int, int]
) -> dict[str, float]:
    """Returns the tests that run one of some lines, nearest first, and their seconds.

    A line that runs at import is covered by all tests that run something of its file.
    """
    file = version(path, source)
    first, last = lines
    asked = (1 << (last + 1)) - (1 << first)

    def covers(test: str, mask: int) -> bool:
        return bool(int(record[test][1].get(file, "0"), 16) & mask)

    is_imported = IMPORTED in record and covers(IMPORTED, asked)
    tests = [
        test
        for test in record
        if test != IMPORTED and covers(test, -1 if is_imported else asked)
    ]
    tests.sort(key=lambda test: (distance(test, path), record[test][0]))
    return {test: record[test][0] for test in tests}


def distance(test: str, path: str) -> int:
    """Returns how far a test's file is from the file that mirrors a source file."""
    mirror = Path("tests", *Path(path).parts[1:]).with_suffix("")
    file = Path(test.partition("::")[0])
    if file == mirror.with_name(f"{mirror.name}_test.py"):
        return 0
    return 1 + next(
        steps for steps, folder in enumerate(mirror.parents) if folder in file.parents
    )
