"""How soon a worker forgets a trainer that is gone, and by what number it knows one.

Both are private to TensorFlow. Without them workers keep what a trainer that was killed
has left there for ten minutes, and a trainer that was stopped for longer hangs.
"""

from __future__ import annotations

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

# For how long a worker keeps the tensors and functions
# of a process that says nothing. A thread of its own says twice in that time that the
# process lives, so an hour's step is no silence.
_CONSTANT = "_KEEP_ALIVE_SECS"


def forget_trainers_after(seconds: int) -> bool:
    """Sets it for the connection that this process is going to make.

    Returns:
        Whether this version of TensorFlow lets it be set; else it is 10 minutes.
    """
    if not hasattr(context, _CONSTANT):
        return False
    setattr(context, _CONSTANT, seconds)
    return True


def own_number() -> int | None:
    """The number by which workers know this process; None: it has not connected."""
    handle = getattr(context.context(), "_context_handle", None)
    read = getattr(pywrap_tfe, "TFE_GetContextId", None)
    is_remote = context.context().get_server_def() is not None
    return int(read(handle)) if handle and read and is_remote else None
