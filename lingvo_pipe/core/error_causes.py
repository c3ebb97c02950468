"""Likely causes of TensorFlow's errors, and remedies. Needs no TensorFlow."""

import re

# Part of errors of Python functions that TensorFlow called. They need no explanation.
CALLED = "\nTraceback (most recent call last):\n"

_WORKER = "Check that all workers run, and the network between them; then rerun."

# TensorFlow raises ResourceExhausted for these, as for a lack of memory.
FULL_DISK = "No space left|Disk quota"

# (pattern of "class: message", cause, what to do); the first that matches counts.
_CAUSES = (
    (FULL_DISK, "the disk is full", "Free space and rerun."),
    (
        "Permission denied",
        "this user may not open a file",
        "Change its permissions or owner, and rerun.",
    ),
    (
        "ResourceExhausted",
        "the device has too little memory",
        "Raise task.pipeline.num_micro_batches, set task.pipeline.recompute or "
        "task.pipeline.offload to always, lower input.batch_size, or use more stages.",
    ),
    (
        "label value",
        "a label is not below the number of classes",
        "Give the last layer an output per class, or correct the labels, from 0 on.",
    ),
    (
        r"indices.* (is not in|does not index)|slice index|Expected (begin|size)\[",
        "an index, such as a token's id, is beyond the end of what it indexes",
        "Enlarge the table, such as its vocabulary, or correct the ids in the data.",
    ),
    (
        "Tensor had (-?Inf|NaN)",
        "a check found a value that is not finite",
        "Lower task.train.learning_rate, set task.train.clip_gradient_norm_to_value, "
        "or correct the data.",
    ),
    (
        "assertion failed",
        "an assertion in the model or the input does not hold",
        "Compare the values above with what it asserts.",
    ),
    (
        r"Invalid.*\b(image|PNG|JPEG|GIF|BMP)\b",
        "an image is damaged, or of a format that cannot be decoded",
        "Replace or remove it.",
    ),
    (
        "Feature: |[Pp]arse|DecodeRaw|fields but have|StringToNumber",
        "a record of the data has another form than the input reads",
        "Compare the names, types and sizes that the input expects with the file's.",
    ),
    (
        "to the batch|annot batch",
        "examples of one batch have different shapes",
        "Give them one shape in the input, such as by padded_batch or a resize.",
    ),
    (
        "[Ii]ncompatible|[Dd]imension|to reshape|evenly divisible|should match|"
        "broadcast|[Ss]hapes? .*(match|equal|same)",
        "the shapes of the operation's inputs do not fit together",
        "Compare them with input_dim, output_dim and the like of the layer, and with "
        "the shapes that --mode=inspect_model shows.",
    ),
    (
        "division by zero|not invertible",
        "something is divided by 0",
        "Guard the divisor, such as by tf.math.divide_no_nan or tf.maximum.",
    ),
    ("OutOfRange", "the data has ended", "Repeat it, or lower --max_steps."),
    (
        "DataLoss",
        "a file is damaged, cut off, or of another format",
        "Replace it, or write it again.",
    ),
    (
        "No such file|Is a directory|ot a directory",
        "a file that is to be read is not there",
        "Check --data_dir and the paths in the input's params.",
    ),
    (
        "Unimplemented|OpKernel|Could not find device|not registered|Cannot assign a "
        "device|only supports?|not supported",
        "the device cannot run the operation like this",
        "Use another operation, dtype or data format there, or other --devices.",
    ),
    (
        "FailedPrecondition",
        "a variable or table is used before it has a value",
        "Create variables by CreateVariable, and tables before the first step.",
    ),
    (
        "Cancelled",
        "another operation failed first, or the run was stopped",
        "Look for an earlier error, also in the output of workers.",
    ),
    ("DeadlineExceeded", "a worker did not answer in time", _WORKER),
    ("Unavailable|Aborted", "a worker was lost, or cannot be reached", _WORKER),
    (
        "(?i)cuda|cudnn|cublas",
        "the GPU or its driver failed",
        "Look at nvidia-smi for other users of its memory, then rerun.",
    ),
)


def likely_cause(kind: str, message: str) -> str:
    """Returns an error's cause and remedy, or "". `kind` is the name of its class."""
    if CALLED not in message:
        for pattern, cause, remedy in _CAUSES:
            if re.search(pattern, f"{kind}: {message}"):
                return f"\nLikely cause: {cause}.\nWhat to do: {remedy}"
    return ""
