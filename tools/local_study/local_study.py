"""Studies local parallelism: the costs and results of schemes of blocks.

    python -m tools.local_study.local_study --model=image.digits.AmoebaNetDigits \
        --batch_sizes=32,64,128 --out=/tmp/digits_study

Trains a registered model by backpropagation, and by each scheme that cuts the model
into blocks with losses of their own. Writes results, a table and charts, which
README.md describes. The same command resumes an interrupted study.
"""

import functools
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags, logging

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.programs import program
from lingvo_pipe.core.tensorflow_startup import importing_tensorflow

with importing_tensorflow():
    from lingvo_pipe.cli.model_request import ModelRequest
    from lingvo_pipe.local_parallelism.blocks import SCHEMES
    from tools.local_study.studied_model import StudiedModel
    from tools.local_study.study import study
    from tools.local_study.study_rows import RowKey
    from tools.local_study.training import train_in_own_process

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "model", "image.digits.AmoebaNetDigits", "Name of a registered model."
)
flags.DEFINE_string("out", None, "Folder to write to.", required=True)
flags.DEFINE_list(
    "model_imports", [], "Your own packages to import, which register models."
)
flags.DEFINE_string("model_params_override", "", "Params to change, as in the trainer.")
flags.DEFINE_list("schemes", list(SCHEMES), "Schemes of training.")
flags.DEFINE_list("batch_sizes", ["32", "64"], "Numbers of examples in a mini-batch.")
flags.DEFINE_list("seeds", ["0"], "Seeds of initial values and dropout.")
flags.DEFINE_integer(
    "steps", None, "Steps of each training; by default the model's own.", lower_bound=2
)
flags.DEFINE_integer(
    "chunks", 2, "Number of blocks of the scheme 'chunked'.", lower_bound=2
)
flags.DEFINE_integer("records", 18, "Number of evaluations of each.", lower_bound=1)
flags.DEFINE_integer("moments", 4, "Number of comparisons of gradients.", lower_bound=1)


def main(argv: Sequence[str]) -> None:
    """Makes the trainings that have no results yet, and prints all results."""
    logging.set_verbosity(logging.WARNING)
    # An error from a training's process has no traceback.
    with program(argv, ChildProcessError, FloatingPointError):
        keys = _keys()
        override, imports = FLAGS.model_params_override, FLAGS.model_imports
        request = ModelRequest(FLAGS.model, imports, override, max_steps=FLAGS.steps)
        report = study(
            StudiedModel(request, FLAGS.chunks),
            keys,
            Path(os.path.expanduser(FLAGS.out)),
            num_records=FLAGS.records,
            num_moments=FLAGS.moments,
            train=train_in_own_process,
            log=functools.partial(print, file=sys.stderr, flush=True),
        )
        print(report)


def _keys() -> list[RowKey]:
    unknown = [scheme for scheme in FLAGS.schemes if scheme not in SCHEMES]
    if unknown or not FLAGS.schemes:
        raise UserValueError(
            path="--schemes",
            expected=f"some of {','.join(SCHEMES)}",
            got=",".join(FLAGS.schemes),
            hint="Leave it out for all.",
        )
    sizes, seeds = _integers("batch_sizes", 1), _integers("seeds", 0)
    # Rows to compare are trained in succession, in case the study is interrupted.
    return [
        RowKey(scheme, size, seed)
        for size, seed, scheme in itertools.product(sizes, seeds, FLAGS.schemes)
    ]


def _integers(flag: str, minimum: int) -> list[int]:
    texts = FLAGS[flag].value
    if not texts or not all(x.isdecimal() and int(x) >= minimum for x in texts):
        raise UserValueError(
            path=f"--{flag}",
            expected=f"integers of at least {minimum}, separated by commas",
            got=",".join(texts),
        )
    return [int(x) for x in texts]


if __name__ == "__main__":
    app.run(main)
