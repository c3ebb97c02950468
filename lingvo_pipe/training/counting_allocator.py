"""Has TensorFlow count all memory of CPU tensors. No TensorFlow.

Of the allocator that it uses by itself it knows large tensors alone.
"""

from __future__ import annotations

import os

_COUNTING = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}
_LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"  # 64 GiB unless it is set.


def count_cpu_memory() -> None:
    """Chooses the allocator that counts; to be called before TensorFlow is imported."""
    os.environ.update(_COUNTING)
    everything = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    os.environ.setdefault(_LIMIT, str(everything >> 20))


def counts_cpu_memory() -> bool:
    """Whether that has been chosen."""
    return _COUNTING.items() <= os.environ.items()
