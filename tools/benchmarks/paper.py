"""The memory that GPipe needs, by the expression of its paper. Pure."""

from __future__ import annotations

from tools.benchmarks.configuration import Configuration


def paper_bytes_by_stage(configuration: Configuration) -> list[int] | None:
    """Weights, gradients, and O(N + L/K · N/M) of activations (arXiv 1811.06965, 2.3).

    N stands for a stage's inputs of the whole mini-batch, which are kept, and
    L/K · N/M for all that its layers compute for one micro-batch when it is recomputed.

    Returns:
        For each stage; None where the expression does not apply: it is that of GPipe's
        schedule with recomputation.
    """
    if (configuration.schedule, configuration.recompute) != ("gpipe", "always"):
        return None
    workload, num_stages = configuration.workload, configuration.num_stages
    num_layers = workload.num_layers // num_stages
    micro_batch_size = -(-workload.batch_size // configuration.num_micro_batches)
    stage_bytes = (
        2 * num_layers * workload.weight_bytes
        + workload.batch_size * workload.input_bytes
        + num_layers * micro_batch_size * workload.activation_bytes
    )
    return [stage_bytes] * num_stages
