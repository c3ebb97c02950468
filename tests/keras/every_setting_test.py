"""Everything of Keras that a model is trained with, as in plain Keras."""

from __future__ import annotations

import pytest

from lingvo_pipe.testing.pipelined_equals_plain import assert_pipelined_equals_plain
from tests.keras.every_setting import KINDS, case, names
from tests.keras.keras_table import PAGE, table
from tools.keras_models.results_table import Result, sections

_CASES = [(kind, name) for kind in KINDS for name in names(kind)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "name"), _CASES)
def test_it_is_plain_keras_own(
    kind: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = case(kind, name)
    # Other tests compare numbers of devices, and one micro-batch.
    options = {"devices": (2,), "num_micro_batches": (4,), **one.options}
    assert_pipelined_equals_plain(
        one.make, one.data, one.compile_args, one.fit_args, **options
    )
    assert "may mix the examples" not in caplog.text


def test_the_table_is_of_this_keras() -> None:
    assert PAGE.read_text(encoding="utf-8") == table()


@pytest.mark.parametrize(
    ("outcome", "shown"),
    [("differs", "**Differs:** BERT."), ("x: no.", "**Refused:** BERT (x: no).")],
)
def test_each_outcome_of_a_larger_model_is_shown(outcome: str, shown: str) -> None:
    results = [Result(name, outcome, {}, {}) for name in ("BERT", "ResNet50")]
    text = sections(results)
    assert shown in text
    word = shown.strip("*").partition(":")[0].lower()
    assert f"| `ResNet50` | {word} | {word} |" in text
