"""Everything of Keras that a model is trained with: as in plain Keras, or warned of."""

from __future__ import annotations

from typing import Any

import pytest

from lingvo_pipe.testing.pipelined_equals_plain import assert_pipelined_equals_plain
from tests.keras.every_setting import KINDS, WARNED, case, names
from tests.keras.keras_table import PAGE, table
from tests.support.cases import exhaustive

_FAST = {
    ("losses", "Dice"),
    ("optimizers", "MultiOptimizer"),
    ("callbacks", "TensorBoard"),
}
_CASES = [(kind, name) for kind in KINDS for name in names(kind)]


@pytest.mark.parametrize(
    ("kind", "name"), [x if x in _FAST else exhaustive(*x) for x in _CASES]
)
def test_it_is_plain_keras_own(
    kind: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = case(kind, name)
    given: Any = one.make, one.data, one.compile_args, one.fit_args
    is_warned = (kind, name) in WARNED
    assert_pipelined_equals_plain(
        *given, num_micro_batches=(1,) if is_warned else (1, 4), **one.options
    )
    assert "mixes the examples" not in caplog.text
    if is_warned:
        with pytest.raises(AssertionError):
            assert_pipelined_equals_plain(*given, num_micro_batches=(4,))
        assert "mixes the examples" in caplog.text


def test_the_table_is_of_this_keras() -> None:
    assert PAGE.read_text(encoding="utf-8") == table()
