"""Mutants that change nothing a test could see, each with the reason."""

from __future__ import annotations

# By file and `Mutant.key`.
EQUIVALENT: dict[str, dict[str, str]] = {
    "lingvo_pipe/pipeline/schedules/check.py": {
        "61dbd20301": "Operations that can run stay so: the order of devices is free.",
    },
}
