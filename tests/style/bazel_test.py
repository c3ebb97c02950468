"""Bazel runs every test file, and BUILD files declare what is imported."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.style.builds import ROOT, Builds

# How a test file leaves cases to the exhaustive suite.
_MARKS = (
    *("exhaustive(", "(exhaustive,", "pytest.mark.exhaustive"),
    *("*pairwise_params(", "fast_cases("),
)

# Tests that the exhaustive suite does not repeat as on the oldest processor.
LEFT_OUT = ("//tests/training:training_test",)


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


def test_a_library_has_every_module() -> None:
    """A module in none is missing wherever Bazel runs what imports it."""
    builds = Builds()
    held = {file for label in builds.libraries for file in builds.files(label)}
    modules = {
        str(path.relative_to(ROOT))
        for folder in ("lingvo_pipe", "model_registry", "params", "tools")
        for path in (ROOT / folder).rglob("*.py")
    } - {"tools/run_pip.py", "tools/run_pytest.py"}  # What makes the environment.
    assert modules <= held, modules - held


def test_the_exhaustive_suite_has_every_test() -> None:
    builds = Builds()
    parts = {
        f"{label}_exhaustive"
        for label, target in builds.tests.items()
        if target.get("exhaustive_shards")
    }
    oldest = "//tests:oldest_processor"
    suite = builds.suites["//tests:exhaustive"]
    assert Counter(suite) == Counter({*builds.tests, *parts, oldest})
    repeated = [
        label for label, target in builds.tests.items() if target.get("on_processors")
    ]
    most = [label for label in repeated if label not in LEFT_OUT]
    for label, tests, kind in (
        (oldest, most, "sse41"),
        ("//tests:processors", repeated, "processors"),
    ):
        expected = Counter(f"{test}_{kind}" for test in tests)
        assert Counter(builds.suites[label]) == expected


def test_each_word_of_a_sample_selects_a_test() -> None:
    builds = Builds()
    samples = {
        label: target["avx2_sample"]
        for label, target in builds.tests.items()
        if target.get("avx2_sample")
    }
    assert samples
    for label, sample in samples.items():
        names = re.findall(
            r"def (test_\w+)",
            "".join(
                (ROOT / file).read_text(encoding="utf-8")
                for file in builds.files(label)
                if file.endswith("_test.py")
            ),
        )
        for word in sample.split(" or "):
            assert any(word in name for name in names), word


def test_tests_that_are_marked_exhaustive_have_a_target() -> None:
    builds = Builds()
    for label, target in builds.tests.items():
        has_some = any(
            any(mark in text for mark in _MARKS)
            for file in builds.files(label)
            if file.endswith("_test.py")
            and not file.startswith(("tests/style/", "tests/support/"))
            for text in [(ROOT / file).read_text(encoding="utf-8")]
        )
        assert has_some == bool(target.get("exhaustive_shards")), label


def test_a_target_has_the_helpers_that_its_tests_import() -> None:
    """A helper of another folder was there for pytest, and missing under Bazel."""
    builds = Builds()
    shared = {x for label in builds.libraries for x in builds.files(label)}
    for label in builds.tests:
        files = {x for x in builds.files(label) if x.endswith(".py")}
        for file in files:
            text = (ROOT / file).read_text(encoding="utf-8")
            for module in re.findall(
                r"^from (tests[\w.]+) import ", text, re.MULTILINE
            ):
                helper = f"{module.replace('.', '/')}.py"
                is_module = (ROOT / helper).exists()
                assert not is_module or helper in files | shared, (label, file)


def test_dependencies_are_what_is_imported() -> None:
    """`python -m tests.style.builds` writes them."""
    builds = Builds()
    for label, target in (builds.tests | builds.libraries).items():
        assert target["deps"] == builds.imported(label), label
