"""GPipe's tables 1, 2 and 3 (1811.06965), beside what the planner predicts.

    tools/bazel run //tools/plan:published

takes some minutes, and prints tables in Markdown.
"""

from __future__ import annotations

import sys

from lingvo_pipe.quiet_startup import quiet_startup

with quiet_startup():
    from tools.plan.memory_tables import (
        AMOEBANETS,
        TRANSFORMERS,
        largest_filters_table,
        largest_layers_table,
        memory_table,
    )
    from tools.plan.throughput_table import throughput_table


def main() -> int:
    """Prints the tables."""
    for table in (
        memory_table(TRANSFORMERS),
        memory_table(AMOEBANETS),
        largest_layers_table(),
        largest_filters_table(),
        throughput_table(),
    ):
        for line in table:
            print(line, flush=True)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
