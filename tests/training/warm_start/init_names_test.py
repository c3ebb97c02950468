"""Variables match a source by path and shape, or by mapped names. See `init_names`."""

from __future__ import annotations

import random
import re

import pytest

from lingvo_pipe.training.warm_start.init_names import NAMES, fits, match, rules_by_path
from tests.support.errors import fails

PATHS = ["task/stem/w", "task/cells_0/w", "task/cells_1/w", "task/head/w"]


def mapped(mapping: str) -> tuple[dict[str, str], dict[str, str]]:
    rules = rules_by_path("a", mapping, PATHS)
    return rules.names, rules.excluded


def test_a_match_anywhere_is_replaced_once() -> None:
    assert mapped("s=S") == (
        {path: path.replace("s", "S", 1) for path in PATHS},
        {},
    )


def test_groups_and_the_first_pattern_count() -> None:
    names = r"task/cells_(\d)/=\1:old/; cells=new;;head=-;head=other"
    expected = {"task/cells_0/w": "0:old/w", "task/cells_1/w": "1:old/w"}
    assert mapped(names) == (expected, {"task/head/w": "head"})


def test_a_pattern_may_hold_the_sign() -> None:
    assert mapped("(?=head)=x") == ({"task/head/w": "task/xhead/w"}, {})


@pytest.mark.parametrize(
    ("mapping", "got"),
    [
        ("stem", "stem"),
        ("=stem", "=stem"),
        ("stem=", "stem="),
        ("sten=x", "'sten', which matches none of 4"),
        ("(=x", "'(' ("),
        (r"stem=\1", r"'\\1' ("),
    ],
)
def test_wrong_names_are_refused(mapping: str, got: str) -> None:
    with fails(path=NAMES) as info:
        rules_by_path("a", mapping, PATHS)
    assert str(info.value.got).startswith(got)


def test_two_variables_of_one_name_are_refused() -> None:
    stored = dict.fromkeys(PATHS, "float32 [2]")
    for mapping in ("cells_0=cells_1", "cells_.=stem;stem=-"):
        with fails(path=NAMES) as info:
            match(rules_by_path("a", mapping, PATHS), stored, stored)
        assert "task/cells_0/w, task/cells_1/w" in str(info.value.got)
        ((path, first),) = re.findall(r"'(.*?)(\$=-;)'", info.value.hint)
        rules = rules_by_path("a", f"{path}{first}{mapping}", PATHS)
        assert path not in match(rules, stored, stored).names


@pytest.mark.parametrize("seed", range(50))
def test_lists_are_the_differences_of_sets(seed: int) -> None:
    """Random subsets of paths, shapes, dtypes and excluded variables on both sides."""
    chosen = random.Random(seed)
    paths = [f"task/layer_{i}/{name}" for i in range(12) for name in "wb"]
    texts = ["float32 [3]", "float32 [3, 4]", "bfloat16 [3]", "int32 [3]", "int64 [3]"]

    def side() -> dict[str, str]:
        sample = chosen.sample(paths, chosen.randint(1, len(paths)))
        return {path: chosen.choice(texts) for path in sample}

    here, stored = side(), side()
    excluded = chosen.sample([*here], chosen.randint(0, len(here) // 2))
    mapping = ";".join(f"^{path}$=-" for path in excluded)
    taken, kept, unused = match(rules_by_path("a", mapping, [*here]), here, stored)
    is_float = {text: "float" in text for text in texts}
    expected = {
        path
        for path in here.keys() & stored.keys() - {*excluded}
        if here[path].split(" ", 1)[1] == stored[path].split(" ", 1)[1]
        and (
            here[path] == stored[path] or is_float[here[path]] & is_float[stored[path]]
        )
    }
    assert taken == {path: path for path in expected}
    assert kept.keys() == here.keys() - expected
    assert unused == stored.keys() - expected
    for path, reason in kept.items():
        words = "excluded" if path in excluded else stored.get(path, "not in")
        assert words in reason


def test_only_floating_dtypes_are_cast() -> None:
    assert fits("float32 [2]", "bfloat16 [2]")
    assert not fits("float32 [2]", "int32 [2]")
    assert not fits("float32 [2]", "void16 [2]")
