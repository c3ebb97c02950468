from .pipelined_equals_plain import (
    assert_pipelined_equals_plain as assert_pipelined_equals_plain,
)
