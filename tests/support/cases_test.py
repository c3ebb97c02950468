"""The fast suite and the exhaustive one together run every case."""

from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import fast_cases, pairwise, pairwise_params
from tools import run_pytest
from tools.run_pytest import shards_of

RUN_PYTEST = str(Path(run_pytest.__file__))
ROOT = Path(RUN_PYTEST).parents[1]
FACTORS: dict[str, list[Any]] = {
    "schedule": ["gpipe", "1f1b", "zero_bubble"],
    "recompute": ["always", "never", None, [0, 2]],
    "num_devices": [1, 2, 3, 4, 8],
    "num_replicas": [1, 2],
}


def _is_case(num_devices: int, num_replicas: int, **_: Any) -> bool:
    return num_devices * num_replicas <= 8


def _pairs(case: dict[str, Any]) -> set[Any]:
    return set(itertools.combinations([(k, str(v)) for k, v in case.items()], 2))


def _product(factors: dict[str, list[Any]]) -> list[dict[str, Any]]:
    cases = itertools.product(*factors.values())
    return [dict(zip(factors, case, strict=True)) for case in cases]


def test_a_fast_case_must_be_a_case() -> None:
    one, pair, two = fast_cases(["one", ("a", "b"), "two"], ["two"])
    assert (one.values, pair.values, two) == (("one",), ("a", "b"), "two")
    with pytest.raises(ValueError, match="three"):
        fast_cases(["one", "two"], ["two", "three"])


@pytest.mark.parametrize("seed", range(20))
def test_each_pair_of_values_that_can_meet_meets(seed: int) -> None:
    chance = random.Random(seed)
    factors = {
        name: chance.sample(values, chance.randint(1, len(values)))
        for name, values in FACTORS.items()
    }
    possible = [case for case in _product(factors) if _is_case(**case)]
    chosen = pairwise(factors, _is_case)
    assert all(case in possible for case in chosen)
    assert set().union(*map(_pairs, chosen)) == set().union(*map(_pairs, possible))


def test_they_are_few() -> None:
    """At least as many as there are pairs of the two factors with the most values."""
    assert 20 <= len(pairwise(FACTORS)) <= 24
    assert len(_product(FACTORS)) == 120


def test_the_rest_of_the_product_is_marked() -> None:
    names, params = pairwise_params(FACTORS, _is_case)
    assert names == list(FACTORS)
    possible = [tuple(case.values()) for case in _product(FACTORS) if _is_case(**case)]
    assert [param.values for param in params] == possible
    ordinary = [param.values for param in params if not param.marks]
    chosen = [tuple(case.values()) for case in pairwise(FACTORS, _is_case)]
    assert sorted(map(str, ordinary)) == sorted(map(str, chosen))


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_each_shard_has_whole_files_unless_they_are_large(number: int) -> None:
    sizes = {"few_test": 3, "many_test": 250, "more_test": 60, "last_test": 1}
    files = [file for file, size in sizes.items() for _ in range(size)]
    shards = shards_of(files, number)
    assert set(shards) == set(range(min(number, 7)))
    for file in sizes:
        of_file = {k for k, name in zip(shards, files, strict=True) if name == file}
        assert len(of_file) == 1 or file == "many_test"


def test_shards_are_cut_from_what_markers_have_left(tmp_path: Path) -> None:
    """Once a shard whose tests were all left out failed, as it had none."""
    for number in range(4):
        marks = f"@pytest.mark.{'exhaustive'}\n" if number == 3 else ""
        (tmp_path / f"f{number}_test.py").write_text(
            f"import pytest\n{marks}@pytest.mark.parametrize('i', range(4))\n"
            "def test(i): print(f'ran {i}')\n"
        )
    files = [str(path) for path in sorted(tmp_path.glob("*_test.py"))]
    ran = []
    for shard in range(2):
        program = subprocess.run(
            [sys.executable, RUN_PYTEST, *files, "-m=exhaustive", "-s", "-q"],
            cwd=ROOT,
            env=os.environ
            | {
                "TEST_TOTAL_SHARDS": "2",
                "TEST_SHARD_INDEX": str(shard),
                "TEST_SHARD_STATUS_FILE": str(tmp_path / "status"),
                "XML_OUTPUT_FILE": str(tmp_path / "test.xml"),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.returncode == 0, program.stdout
        ran += re.findall(r"ran (\d)", program.stdout)
    assert sorted(ran) == ["0", "1", "2", "3"]
