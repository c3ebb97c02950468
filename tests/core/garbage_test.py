"""Garbage is collected seldom, and afterwards as before."""

from __future__ import annotations

import contextlib
import gc

from lingvo_pipe.core.garbage import collected_seldom


def test_garbage_is_collected_as_before_afterwards() -> None:
    before, own = gc.get_threshold(), (700, 10, 10)
    gc.set_threshold(*own)
    try:
        with contextlib.suppress(KeyError), collected_seldom():
            inside = gc.get_threshold()
            raise KeyError
        assert gc.get_threshold() == own < inside
    finally:
        gc.set_threshold(*before)
