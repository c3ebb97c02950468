"""The length penalty of GNMT (Wu et al., 1609.08144, section 7, equation 14).

    score(Y) = log P(Y) / lp(|Y|)        lp(n) = ((5 + n) / (5 + 1))^α

A sum of logarithms falls with every token; divided by lp it prefers short sequences
less. α = 0 does not change it, α = 1 nearly makes it a mean. |Y| counts the end token.
Of GNMT's score the coverage penalty is left out, which needs attention's weights.
"""

from __future__ import annotations

import math

import numpy as np


def length_penalties(alpha: float, max_length: int) -> np.ndarray:
    """lp(0), ..., lp(max_length), in float64, ascending.

    Raises:
        ValueError: if α is negative or not finite.
    """
    if not 0 <= alpha < math.inf:
        raise ValueError(
            "length_penalty, GNMT's α, must be at least 0 and finite; got "
            f"{alpha!r}. 0 scores by the probability alone; usual are 0.6 to 1."
        )
    return ((5.0 + np.arange(max_length + 1)) / 6.0) ** alpha
