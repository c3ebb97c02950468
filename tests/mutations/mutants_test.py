"""Mutants are single faults of code, drawn by seed, and texts stay as they are."""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from tests.mutations.equivalent import EQUIVALENT
from tests.mutations.mutants import FOLDERS, changes_code, mutants, sample
from tests.mutations.operators import OPERATORS

# Under Bazel this file is a link into the source tree.
ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("lingvo_pipe/pipeline/schedules", "lingvo_pipe/pipeline/splitting")

_EXAMPLES = {
    "comparison": ("x = a < b", ["x = a <= b"]),
    "constant": (
        "x = -1, True, 0.5, 'a', None",
        [
            "x = -2, True, 0.5, 'a', None",
            "x = -1, False, 0.5, 'a', None",
            "x = -1, True, 1.5, 'a', None",
        ],
    ),
    "dropped statement": (
        "f()\nx += y\na.b = d[e] = y\na.b = x\nd[e]: int = x\na.b, x = x",
        [
            "pass\nx += y\na.b = d[e] = y\na.b = x\nd[e]: int = x\na.b, x = x",
            "f()\npass\na.b = d[e] = y\na.b = x\nd[e]: int = x\na.b, x = x",
            "f()\nx += y\na.b = d[e] = y\npass\nd[e]: int = x\na.b, x = x",
            "f()\nx += y\na.b = d[e] = y\na.b = x\npass\na.b, x = x",
        ],
    ),
    "swapped arguments": (
        "f(a, [b], a, k=c)",
        ["f([b], a, a, k=c)", "f(a, a, [b], k=c)"],
    ),
    "order of a loop": (
        "for x in a: [y for y in x]",
        [
            "for x in reversed(list(a)): [y for y in x]",
            "for x in a: [y for y in reversed(list(x))]",
        ],
    ),
    "negated condition": ("x = a if b or c else d", ["x = a if not (b or c) else d"]),
    "dropped call": ("x = f(a + b) * c", ["x = (a + b) * c"]),
    "sign": (
        "x = a - (b * -c) / d, not e",
        [
            "x = a + (b * -c) / d, not e",
            "x = a - (b / -c) / d, not e",
            "x = a - (b * c) / d, not e",
            "x = a - (b * -c) * d, not e",
            "x = a - (b * -c) / d,  e",
        ],
    ),
    "extreme": ("x = tf.maximum(a, b)", ["x = tf.minimum(a, b)"]),
    "and/or": ("x = (a\n  and b)", ["x = (a\n  or b)"]),
}

_TEXTS = """
import a
class C:
    '''A text.'''
    def __repr__(self):
        return f(1 + 2)
    @decorated(size=1)
    def g(self, x: Literal[1, 2]) -> Literal[3]:
        log(a + b)
        assert x == 1
        if x:
            raise UserValueError(f"{x + 1}", got=1 + 2)
        return f"{x + 1}"
"""


def _mutated(source: str, operator: str = "") -> list[str]:
    return [
        mutant.apply(source.encode()).decode()
        for mutant in mutants("file.py", source.encode())
        if operator in ("", mutant.operator)
    ]


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_makes_its_fault(operator: str) -> None:
    source, expected = _EXAMPLES[operator]
    assert sorted(_mutated(source, operator)) == sorted(expected)


def test_letters_of_more_bytes_do_not_move_the_fault() -> None:
    assert _mutated("x = 'äö', 1  # ü") == ["x = 'äö', 2  # ü"]


def test_texts_types_and_assertions_stay() -> None:
    assert _mutated(_TEXTS) == [_TEXTS.replace("if x:", "if not (x):")]


def test_a_sample_has_every_operator_and_each_mutant_once() -> None:
    drawn = list(sample(ROOT, _FOLDERS, seed=0, number=60))
    assert len(set(drawn)) == 60
    assert Counter(mutant.operator for mutant in drawn).keys() == set(OPERATORS)


def test_a_mutant_is_other_code_and_differs_in_its_lines_alone() -> None:
    for mutant in sample(ROOT, _FOLDERS, seed=1, number=20):
        source = (ROOT / mutant.path).read_bytes()
        changed = mutant.apply(source)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
        old, new = source.splitlines(), changed.splitlines()
        first, last = mutant.lines
        after = len(old) - last
        assert new[: first - 1] == old[: first - 1]
        assert new[len(new) - after :] == old[last:]


def test_the_seed_alone_decides() -> None:
    one, again, other = (
        list(sample(ROOT, _FOLDERS, seed, number=5)) for seed in (3, 3, 4)
    )
    assert one == again != other


def test_a_folder_without_more_mutants_ends_the_sample(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("x = a < b\n")
    (mutant,) = sample(tmp_path, ["."], seed=0, number=9)
    assert mutant.operator == "comparison"


def test_other_code_is_told_from_other_text() -> None:
    source = b"def f(a, b):\n    return a < b\n"
    (mutant,) = mutants("file.py", source)
    assert changes_code(mutant, source)
    assert not changes_code(dataclasses.replace(mutant, text="  <  "), source)
    assert not changes_code(dataclasses.replace(mutant, text="<>"), source)


def test_a_key_stays_when_lines_move() -> None:
    (mutant,) = mutants("file.py", b"x = a < b")
    (moved,) = mutants("file.py", b"# One.\n\nx = a < b")
    (other,) = mutants("file.py", b"x = a < c")
    assert mutant.key == moved.key != other.key


def test_statements_that_are_the_same_have_keys_of_their_own() -> None:
    one, other = mutants("file.py", b"x = a < b\nx = a < b\n")
    assert one.key != other.key


def test_equivalent_mutants_are_still_there() -> None:
    for path, reasons in EQUIVALENT.items():
        assert path.startswith(FOLDERS)
        keys = {mutant.key for mutant in mutants(path, (ROOT / path).read_bytes())}
        assert reasons.keys() <= keys, path
