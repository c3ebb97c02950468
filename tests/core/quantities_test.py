"""Bytes and seconds are text with their units."""

from __future__ import annotations

from lingvo_pipe.core.quantities import bytes_text, seconds_text


def test_bytes_have_three_digits_and_a_unit_of_which_they_are_a_tenth() -> None:
    assert bytes_text(2**30) == "1 GiB"
    assert bytes_text(1234.5 * 2**30) == "1,234 GiB"
    assert bytes_text(102 * 2**20) == "102 MiB"
    assert bytes_text(103 * 2**20) == "0.101 GiB"
    assert bytes_text(600) == "0.586 KiB"
    assert bytes_text(1) == "1 bytes"


def test_short_times_are_in_milliseconds() -> None:
    assert seconds_text(12.345678) == "12.35 s"
    assert seconds_text(0.0012345678) == "1.235 ms"
    assert seconds_text(12345.6) == "12,346 s"
