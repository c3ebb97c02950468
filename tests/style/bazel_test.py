"""Bazel runs every test file, and //tests:exhaustive every target of tests.

BUILD files are Python but for the functions that they call, which are given here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Under Bazel this file is a link into the source tree.
ROOT = Path(__file__).resolve().parents[2]
# How a test file leaves cases to the exhaustive suite.
_MARKS = ("exhaustive(", "pytest.mark.exhaustive", "*pairwise_params(")


class Builds:
    """What the BUILD files below `tests` declare.

    Attributes:
        tests: arguments of each `pytest_test` by its label.
        sources: source files of each target, as paths below the root, by its label.
        suites: labels that each `test_suite` names, by its own.
    """

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self.sources: dict[str, list[str]] = {}
        self.suites: dict[str, list[str]] = {}
        self._packages = {
            path.parent for path in (ROOT / "tests").rglob("BUILD") if path.is_file()
        }
        for package in sorted(self._packages):
            self._read(package)

    def _read(self, package: Path) -> None:
        folder = str(package.relative_to(ROOT))

        def label(name: str) -> str:
            return name if name.startswith("//") else f"//{folder}:{name.lstrip(':')}"

        def source(name: str) -> str:
            is_file = not name.startswith("//") and not name.startswith(":")
            return f"{folder}/{name}" if is_file else label(name)

        def pytest_test(name: str, srcs: Sequence[str], **others: Any) -> None:
            self.tests[label(name)] = others
            self.sources[label(name)] = [source(each) for each in srcs]

        def filegroup(name: str, srcs: Sequence[str], **_: Any) -> None:
            self.sources[label(name)] = [source(each) for each in srcs]

        def test_suite(name: str, tests: Sequence[str], **_: Any) -> None:
            self.suites[label(name)] = [label(each) for each in tests]

        def nothing(*_: Any, **__: Any) -> None:
            pass

        functions: dict[str, Any] = {
            "exports_files": nothing,
            "filegroup": filegroup,
            "glob": lambda include, exclude=(): self._glob(package, include, exclude),
            "load": nothing,
            "py_library": nothing,
            "pytest_test": pytest_test,
            "test_suite": test_suite,
        }
        exec((package / "BUILD").read_text(encoding="utf-8"), functions)

    def _glob(
        self, package: Path, include: Sequence[str], exclude: Sequence[str]
    ) -> list[str]:
        """Returns the files of a package, without those of packages below it."""
        found, left_out = (
            {path for pattern in patterns for path in package.glob(pattern)}
            for patterns in (include, exclude)
        )
        below = {other for other in self._packages if package in other.parents}
        return sorted(
            str(path.relative_to(package))
            for path in found - left_out
            if not below.intersection(path.parents)
        )

    def files(self, label: str) -> Iterator[str]:
        """Yields the source files of a target, through those that it names."""
        for source in self.sources[label]:
            if source in self.sources:
                yield from self.files(source)
            else:
                yield source


def test_bazel_runs_every_test_once() -> None:
    builds = Builds()
    run = Counter(
        file
        for label in builds.tests
        for file in builds.files(label)
        if file.endswith("_test.py")
    )
    there = {
        str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*_test.py")
    }
    assert str(Path(__file__).resolve().relative_to(ROOT)) in there
    assert run == Counter(there)


def test_the_exhaustive_suite_has_every_test() -> None:
    builds = Builds()
    parts = {
        f"{label}_exhaustive"
        for label, target in builds.tests.items()
        if target.get("exhaustive_shards")
    }
    suite = builds.suites["//tests:exhaustive"]
    assert Counter(suite) == Counter({*builds.tests, *parts})


def test_tests_that_are_marked_exhaustive_have_a_target() -> None:
    builds = Builds()
    for label, target in builds.tests.items():
        has_some = any(
            any(mark in text for mark in _MARKS)
            for file in builds.files(label)
            if file.endswith("_test.py") and not file.startswith("tests/style/")
            for text in [(ROOT / file).read_text(encoding="utf-8")]
        )
        assert has_some == bool(target.get("exhaustive_shards")), label
