"""The table of mutations fits the source tree; `run_mutations` shows the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations.mutations import MUTATIONS, Mutation

# Under Bazel this file is a link into the source tree.
ROOT = Path(__file__).resolve().parents[2]

each_mutation = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)


def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_there_are_many_and_each_has_a_name_of_its_own() -> None:
    assert len(MUTATIONS) >= 30
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


@each_mutation
def test_the_old_text_stands_once(mutation: Mutation) -> None:
    assert _text(mutation.path).count(mutation.old) == 1
    assert mutation.new != mutation.old


@each_mutation
def test_the_tests_that_catch_it_are_there(mutation: Mutation) -> None:
    assert mutation.tests
    for target in mutation.tests:
        path, _, name = target.partition("::")
        assert path.startswith("tests/")
        function = name.partition("[")[0]
        assert not name or f"def {function}(" in _text(path)


@each_mutation
def test_the_readme_shows_one_of_its_tests(mutation: Mutation) -> None:
    row = f"| {mutation.name} | `{mutation.path}` | `"
    _, found, rest = _text("tests/README.md").partition(row)
    shown = rest.partition("`")[0]
    targets = (target.partition("[")[0] for target in mutation.tests)
    assert found
    assert any(shown.startswith(target) for target in targets)
