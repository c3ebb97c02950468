"""Checks devices in at most ten minutes: GPUs, TPUs, CPUs, and other hosts' devices.

    lingvo_pipe doctor --output=/tmp/doctor.json

Shows which devices there are, and what the planner measures of them. Times messages
between each pair of devices, and compares a training step with plain TensorFlow. Checks
that training leaves the same bytes with every schedule and recomputation on 1, 2, ...
devices. A single GPU is divided into logical devices. For other hosts, start a worker
on each, as for training, and give --cluster. The exit status is 1 if bytes differ or
something fails.
"""

import argparse
import functools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lingvo_pipe.core.programs import check_writable, flag_parser, program, write_output
from lingvo_pipe.core.tensorflow_startup import importing_tensorflow


def main(arguments: Sequence[str]) -> int:
    """Checks devices, prints the report, and returns the exit code."""
    options = _options(arguments)
    with program(["doctor"], OSError, RuntimeError):
        output = options.output and Path(os.path.expanduser(options.output))
        if output:
            check_writable(output, "--output")
        with importing_tensorflow():
            from lingvo_pipe.tools.doctor import examination
        devices = examination.prepared_devices(
            options.devices, options.cluster, options.quick
        )
    log = functools.partial(print, file=sys.stderr)
    report = examination.examine(devices, options.quick, log)
    print(examination.report_text(report))
    if output:
        write_output(output, json.dumps(report, indent=2) + "\n")
    return 1 if report["problems"] else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = flag_parser("lingvo_pipe doctor", __doc__)
    add = parser.add_argument
    add("--devices", help="number or names of devices, as in the trainer; default: all")
    add(
        "--cluster", help="addresses of running workers: worker=host1:port1,host2:port2"
    )
    add("--output", help="file for the report, as JSON")
    add("--quick", action="store_true", help="fewer ways and sends, in a minute or two")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
