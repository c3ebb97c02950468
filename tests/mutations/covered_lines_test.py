"""The tests of a line are those that run it, nearest first."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from tests.mutations import covered_lines
from tests.mutations.covered_lines import IMPORTED, LineRecorder, version
from tests.mutations.run_mutants import groups

_PATH = "lingvo_pipe/pipeline/schedules/slots.py"
_FILE = version(_PATH, b"source")


def _tests(record: covered_lines.Record, first: int, last: int) -> list[str]:
    return list(covered_lines.tests_of(record, _PATH, b"source", (first, last)))


def test_nearest_tests_are_first() -> None:
    schedules = "tests/pipeline/schedules"
    tests = [
        f"{schedules}/slots_test.py::test_b",
        f"{schedules}/check_test.py::test_a",
        "tests/pipeline/xla_test.py::test_a",
        "tests/training/loop/run_test.py::test_a",
    ]
    record = {test: (1.0, {_FILE: covered_lines.bits({7})}) for test in tests[::-1]}
    assert _tests(record, 7, 7) == tests


def test_slow_near_tests_leave_time_for_others() -> None:
    near = [f"tests/pipeline/schedules/slots_test.py::test_{n}" for n in range(9)]
    far = "tests/pipeline/schedules/check_test.py::test_a"
    tests = {**dict.fromkeys(near, 50.0), far: 5.0}
    assert list(groups(_PATH, tests)) == [[near[0], far]]


def test_the_only_test_runs_however_slow_it_is() -> None:
    test = "tests/training/run_test.py::test_a"
    assert list(groups(_PATH, {test: 1000.0})) == [[test]]


def test_only_tests_that_run_a_line_of_the_statement_are_found() -> None:
    record = {
        "tests/a_test.py": (1.0, {_FILE: covered_lines.bits({4, 9})}),
        "tests/b_test.py": (1.0, {_FILE: covered_lines.bits({6})}),
        "tests/c_test.py": (1.0, {version(_PATH, b"older"): covered_lines.bits({5})}),
    }
    assert _tests(record, 5, 8) == ["tests/b_test.py"]
    assert _tests(record, 5, 5) == []


def test_lines_of_an_import_belong_to_the_tests_of_the_file() -> None:
    record = {
        IMPORTED: (0.0, {_FILE: covered_lines.bits({1, 2})}),
        "tests/a_test.py": (1.0, {_FILE: covered_lines.bits({4})}),
        "tests/b_test.py": (1.0, {}),
    }
    assert _tests(record, 2, 2) == ["tests/a_test.py"]
    assert _tests(record, 3, 3) == []


def test_records_of_folders_add_up(tmp_path: Path) -> None:
    file = tmp_path / "lines.json"
    for test, imported in (("tests/a_test.py", {1}), ("tests/b_test.py", {2})):
        covered_lines.add_to_file(
            file,
            {
                IMPORTED: (0.0, {_FILE: covered_lines.bits(imported)}),
                test: (1.0, {_FILE: covered_lines.bits({4})}),
            },
        )
    record = covered_lines.read(file)
    assert _tests(record, 1, 1) == _tests(record, 2, 2) == _tests(record, 4, 4)
    assert _tests(record, 4, 4) == ["tests/a_test.py", "tests/b_test.py"]


@pytest.fixture
def product(tmp_path: Path) -> Path:
    path = tmp_path / "lingvo_pipe" / "file.py"
    path.parent.mkdir()
    path.write_text("def f(x):\n    if x:\n        return 1\n    return 2\n")
    return path


def _recorded(root: Path, product: Path, *inputs: int) -> set[int]:
    """Returns the lines that are recorded of calls of the product's function."""
    names: dict[str, object] = {}
    exec(compile(product.read_bytes(), str(product), "exec"), names)
    before = sys.gettrace()
    recorder = LineRecorder(root)
    try:
        for value in inputs:
            names["f"](value)  # type: ignore[operator]
    finally:
        sys.settrace(before)
        threading.settrace(None)
    recorder._add("test")
    ((_, lines),) = recorder.record.values()
    number = int(lines[version("lingvo_pipe/file.py", product.read_bytes())], 16)
    return {line for line in range(9) if number >> line & 1}


def test_a_recorder_sees_the_lines_that_run(tmp_path: Path, product: Path) -> None:
    assert _recorded(tmp_path, product, 0) == {2, 4}
    assert _recorded(tmp_path, product, 1) == {2, 3}
    assert _recorded(tmp_path, product, 0, 1) == {2, 3, 4}


def test_a_function_that_runs_often_counts_as_run_in_full(
    tmp_path: Path, product: Path
) -> None:
    assert _recorded(tmp_path, product, *[0] * 1000) == {1, 2, 3, 4}
