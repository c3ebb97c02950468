"""Studies local parallelism: what schemes of blocks cost, and what they learn.

    tools/bazel run //tools/local_study -- --model=image.digits.AmoebaNetDigits \
        --batch_sizes=32,64,128 --out=/tmp/digits_study

Trains a registered model by backpropagation and by each scheme of blocks that have
losses of their own, and writes rows, a table and pictures; README.md says what they
show. Started again with the same flags, it goes on with what is missing.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags, logging

from lingvo_pipe.fault_line import fault_line
from lingvo_pipe.jobs import ModelRequest
from lingvo_pipe.local.blocks import SCHEMES
from tools.local_study.own_process import train_in_own_process
from tools.local_study.studied_model import StudiedModel
from tools.local_study.study import study
from tools.local_study.study_rows import RowKey

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "model", "image.digits.AmoebaNetDigits", "Name of a registered model."
)
flags.DEFINE_string("out", None, "Folder to write to.", required=True)
flags.DEFINE_list(
    "model_imports", [], "Packages of your own to import, for the models they register."
)
flags.DEFINE_string("model_params_override", "", "Params to change, as of the trainer.")
flags.DEFINE_list("schemes", list(SCHEMES), "How to train it.")
flags.DEFINE_list("batch_sizes", ["32", "64"], "Examples in a mini-batch, for each.")
flags.DEFINE_list("seeds", ["0"], "Of first values and dropout, for each.")
flags.DEFINE_integer(
    "steps", None, "Of each training; by default the model's own.", lower_bound=2
)
flags.DEFINE_integer("chunks", 2, "Blocks of the scheme 'chunked'.", lower_bound=2)
flags.DEFINE_integer("records", 18, "How often each is evaluated.", lower_bound=1)
flags.DEFINE_integer("moments", 4, "How often gradients are compared.", lower_bound=1)

# What is raised in a training's own process comes without its place.
_EXPECTED = (ChildProcessError, FloatingPointError, ValueError)


def main(argv: Sequence[str]) -> None:
    """Trains what is missing; writes and prints what was found."""
    logging.set_verbosity(logging.WARNING)
    # `bazel run` starts programs elsewhere, and says where the user is.
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    try:
        if argv[1:]:
            raise ValueError(f"Arguments must be flags, with --; got {argv[1:]}.")
        report = _study()
    except Exception as error:
        line = str(error) if isinstance(error, _EXPECTED) else fault_line(error)
        if line is None:
            raise
        sys.exit(f"error: {line}")
    print(report)


def _study() -> str:
    keys = _keys()
    request = ModelRequest(
        FLAGS.model,
        FLAGS.model_imports,
        FLAGS.model_params_override,
        max_steps=FLAGS.steps,
    )
    return study(
        StudiedModel(request, FLAGS.chunks),
        keys,
        Path(os.path.expanduser(FLAGS.out)),
        FLAGS.records,
        FLAGS.moments,
        train_in_own_process,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )


def _keys() -> list[RowKey]:
    unknown = [scheme for scheme in FLAGS.schemes if scheme not in SCHEMES]
    if unknown or not FLAGS.schemes:
        raise ValueError(
            f"--schemes must be some of {','.join(SCHEMES)}; got "
            f"{','.join(FLAGS.schemes)!r}. Leave the flag out for all of them."
        )
    sizes, seeds = _integers("batch_sizes", 1), _integers("seeds", 0)
    # What is compared is trained together, in case the rest is not waited for.
    return [
        RowKey(scheme, size, seed)
        for size, seed, scheme in itertools.product(sizes, seeds, FLAGS.schemes)
    ]


def _integers(flag: str, least: int) -> list[int]:
    texts = FLAGS[flag].value
    if not texts or not all(x.isdecimal() and int(x) >= least for x in texts):
        raise ValueError(
            f"--{flag} must be whole numbers from {least}, with commas between; got "
            f"{','.join(texts)!r}. Write --{flag}={least},{least + 1}, for instance."
        )
    return [int(x) for x in texts]


if __name__ == "__main__":
    app.run(main)
