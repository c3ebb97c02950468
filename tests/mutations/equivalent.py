"""Mutants that change nothing a test could see, each with the reason."""

from __future__ import annotations

# By file and `Mutant.key`.
EQUIVALENT: dict[str, dict[str, str]] = {}
