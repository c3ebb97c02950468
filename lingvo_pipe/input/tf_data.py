"""Functions for the tf.data pipelines of all inputs."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

BATCHES_AHEAD = 2


def map_plainly(
    dataset: tf.data.Dataset,
    function: Callable,
    parallel: int | None = tf.data.AUTOTUNE,
    deterministic: bool | None = None,
) -> tf.data.Dataset:
    """Returns `dataset.map(function)` without AutoGraph's conversion of `function`."""
    plain = tf.autograph.experimental.do_not_convert(function)
    return dataset.map(plain, parallel, deterministic)


def make_batches(dataset: tf.data.Dataset, make: Callable) -> tf.data.Dataset:
    """Returns the batches `make(element)`, in order, made ahead and in parallel."""
    batches = map_plainly(dataset, make, deterministic=True)
    return with_own_threads(batches.prefetch(BATCHES_AHEAD))


def with_own_threads(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset with its own pool of threads, one for each core."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = 0  # A thread for each core.
    # With more threads, sums in an operation would depend on the number of cores.
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)


def call_numpy(function: Callable, argument: tf.Tensor, specs: Any) -> Any:
    """Calls a pure NumPy function on a tensor in a graph, with results of `specs`."""
    dtypes = tf.nest.map_structure(lambda spec: spec.dtype, specs)
    results = tf.numpy_function(function, [argument], dtypes, stateful=False)
    return tf.nest.map_structure(
        lambda result, spec: tf.ensure_shape(result, spec.shape), results, specs
    )
