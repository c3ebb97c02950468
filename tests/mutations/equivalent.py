"""Mutants that change nothing a test should see, each with the reason."""

from __future__ import annotations

# By file and `Mutant.key`.
EQUIVALENT: dict[str, dict[str, str]] = {
    "lingvo_pipe/input/cldr/sentences.py": {
        "96908cc369": "All contents must be in a split, in any order.",
    },
    "lingvo_pipe/input/text/token_stream.py": {
        "ba69a12959": "Each row names its documents, in any order.",
    },
    "lingvo_pipe/keras/keras_cell.py": {
        "7c29f12abe": "Each variable is written by itself.",
    },
    "lingvo_pipe/keras/mixing/call_trial.py": {
        "89d6fec3d6": "Any probabilities will do.",
    },
    "lingvo_pipe/layers/core/graph_flops.py": {
        "6e73eddce3": "The loops are counted, in any order.",
    },
    "lingvo_pipe/pipeline/devices/cluster.py": {
        "2d79b74753": "How much of an answer is shown.",
    },
    "lingvo_pipe/pipeline/devices/departure.py": {
        "236c358927": "More threads than tasks do nothing.",
    },
    "lingvo_pipe/pipeline/loops/host_copies.py": {
        "58e53d4d27": "A matter of speed.",
    },
    "lingvo_pipe/pipeline/loops/mutex.py": {
        "6f14bc2b74": "Copies go back to the places that their tensors had.",
    },
    "lingvo_pipe/pipeline/loops/stage_runner.py": {
        "b62b16fa07": "Each value's gradient is a sum of its own.",
    },
    "lingvo_pipe/pipeline/loops/stash.py": {
        "f998db4e26": "The list stays empty.",
    },
    "lingvo_pipe/pipeline/pipeline_steps.py": {
        "d74e3cd172": "The schedule that is made passes its check.",
    },
    "lingvo_pipe/pipeline/pipelining_rules.py": {
        "7954cbd7c7": "The message names nested pipelines in any order.",
    },
    "lingvo_pipe/pipeline/schedules/check.py": {
        "61dbd20301": "Operations that can run stay so: the order of devices is free.",
    },
    "lingvo_pipe/pipeline/simulation/draw.py": {
        "8cb718038d": "Each row is drawn by itself.",
        "090c0c0e93": "A frame around the legend.",
    },
    "lingvo_pipe/pipeline/simulation/timeline.py": {
        "cf79cc68be": "The order of devices is free.",
    },
    "lingvo_pipe/pipeline/slices.py": {
        "b2792cc5c5": "Each tie is resolved by itself.",
    },
    "lingvo_pipe/pipeline/splitting/allowed_stages.py": {
        "d14cb477f4": "The next loop takes the layers in again that keep the limit.",
    },
    "lingvo_pipe/pipeline/stage_choice/memory_limit.py": {
        "82eba785ea": "A comparison of strings is a bool.",
    },
    "lingvo_pipe/pipeline/tracing/phases.py": {
        "0986478bfc": "The product always gives it.",
        "e43f3e6e7c": "Only the sum of their bytes is used.",
    },
    "lingvo_pipe/planner/costs/flops_time_model.py": {
        "8588b65548": "Sums of whole numbers have no order.",
    },
    "lingvo_pipe/planner/search/correction.py": {
        "4d36b245ff": "No interval is exactly as long as the precision.",
    },
    "lingvo_pipe/planner/search/fitting_plan.py": {
        "9de1494286": "The check only saves time.",
        "ea042713eb": "A stage needs more than its largest cell.",
    },
    "lingvo_pipe/training/optim/learner.py": {
        "eb396505ad": "Each schedule is checked by itself.",
    },
    "lingvo_pipe/training/report/series.py": {
        "510c849c45": "The order of a sum matters in its last digits alone.",
    },
    "lingvo_pipe/training/run/run_parts.py": {
        "02179f6036": "Each part is cut off by itself.",
    },
    "lingvo_pipe/training/stability/skipped_batches.py": {
        "e10ab94fcc": "From a step to itself there are no batches.",
    },
}
