"""Lists, line by line, what in Lingvo's files will not port, and what to write instead.

    lingvo_pipe port_check my_layers.py my_models.py

The exit status is 0 if only imports change, 1 if more changes, and 2 for unread files.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from lingvo_pipe.core.programs import enter_user_folder, flag_parser
from lingvo_pipe.core.tensorflow_startup import importing_tensorflow


def main(argv: Sequence[str]) -> int:
    """Checks the files that `argv` names, and returns the exit status."""
    parser = flag_parser("lingvo_pipe port_check", __doc__)
    parser.add_argument("names", nargs="+", metavar="FILE")
    names = parser.parse_args(argv).names
    with importing_tensorflow():
        from lingvo_pipe.tools.port_check.source_check import check_source
    status = 0
    for name in names:
        try:
            findings = check_source(Path(name).read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError) as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            status = 2
            continue
        for finding in findings:
            place = f"{name}:{finding.line}"
            print(f"{place}: {finding.kind}: {finding.what}: {finding.instead}")
        num_changes = sum(finding.kind == "change" for finding in findings)
        status = max(status, int(num_changes > 0))
        text = (
            f"{num_changes} change{'s' * (num_changes > 1)} besides"
            if num_changes
            else "nothing to change but"
        )
        print(f"{name}: {text} imports")
    return status


if __name__ == "__main__":
    enter_user_folder()
    sys.exit(main(sys.argv[1:]))
