"""Faults of the product, each with the tests of the fast suite that find it."""

from __future__ import annotations

from dataclasses import dataclass

_SIDE = "tests/pipeline/execution/auxiliary_losses_test.py::test"
_REPLICAS = "tests/pipeline/execution/replicas_test.py::test"
_SAVED = "tests/training/checkpoint/checkpointer_test.py::test"
_RUN = "tests/training/loop/training_loop_test.py::test"
_FAILURES = "tests/training/loop/failure_policy_test.py::test"


@dataclass(frozen=True)
class Mutation:
    """A new text in place of one that stands once in a file; some of `tests` fail."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTATIONS = (
    # The pipeline.
    Mutation(
        "accumulation dropped",
        "lingvo_pipe/pipeline/loops/packed_phases.py",
        "return self.gradients.pack(added)",
        "return list(accumulators)",
        ("tests/pipeline/local_loss_test.py",),
    ),
    Mutation(
        "micro-batches in reverse",
        "lingvo_pipe/pipeline/loops/loop_state.py",
        "{value: x[self.micro_batch] for",
        "{value: x[-1 - self.micro_batch] for",
        ("tests/pipeline/plain_model_test.py::test_outputs_are_those_of_the_cells",),
    ),
    Mutation(
        "first example off by one",
        "lingvo_pipe/pipeline/execution/micro_batches.py",
        "np.cumsum([0, *",
        "np.cumsum([1, *",
        ("tests/pipeline/execution/micro_batches_test.py",),
    ),
    Mutation(
        "slot of a stash given twice",
        "lingvo_pipe/pipeline/schedules/slots.py",
        "heapq.heappop(self._free)",
        "self._free[0]",
        ("tests/pipeline/schedules/slots_test.py",),
    ),
    Mutation(
        "gradient of a second user dropped",
        "lingvo_pipe/pipeline/loops/traced_layers.py",
        "gradient if before is None else before + gradient",
        "gradient",
        ("tests/pipeline/crossing_test.py",),
    ),
    Mutation(
        "padding rows in auxiliary losses",
        "lingvo_pipe/layers/core/forward_context.py",
        "tf.reduce_sum(values if weights is None else values * weights)",
        "tf.reduce_sum(values)",
        (f"{_SIDE}_runs_without_gradients_report_them_too",),
    ),
    Mutation(
        "scale of auxiliary losses dropped",
        "lingvo_pipe/pipeline/execution/auxiliary_losses.py",
        "scale = tf.reduce_sum(weights) / tf.cast(batch_size, weights.dtype)",
        "scale = tf.ones([], weights.dtype)",
        (f"{_SIDE}_gradients_are_of_the_main_loss_and_the_means_of_the_others",),
    ),
    Mutation(
        "recomputation of other examples",
        "lingvo_pipe/pipeline/loops/stage_runner.py",
        "recompute(\n                op.stage_inputs(state)",
        "recompute(\n                "
        "op._replace(micro_batch=0 * op.micro_batch).stage_inputs(state)",
        (f"{_SIDE}_bytes_do_not_depend_on_the_stages",),
    ),
    Mutation(
        "weight gradient dropped",
        "lingvo_pipe/pipeline/loops/stage_runner.py",
        "StashKind.WEIGHT_RESIDUALS, stash, gradients=accumulators",
        "StashKind.WEIGHT_RESIDUALS, stash",
        (f"{_SIDE}_bytes_do_not_depend_on_the_stages",),
    ),
    Mutation(
        "interleaved groups in another order",
        "lingvo_pipe/pipeline/schedules/by_rule.py",
        "[-(-num_micro_batches * i // num_groups) for",
        "[num_micro_batches * i // num_groups for",
        ("tests/pipeline/schedules/every_schedule_test.py",),
    ),
    Mutation(
        "warm-up of 1F1B too long",
        "lingvo_pipe/pipeline/schedules/by_rule.py",
        "num_stages - 1 - stage",
        "num_stages - stage",
        ("tests/pipeline/schedules/by_rule_test.py",),
    ),
    Mutation(
        "except_last off by one",
        "lingvo_pipe/pipeline/schedules/recompute.py",
        "num_micro_batches - 1 if",
        "num_micro_batches - 2 if",
        ("tests/pipeline/schedules/recompute_test.py",),
    ),
    Mutation(
        "too many steps ahead",
        "lingvo_pipe/pipeline/schedules/schedule.py",
        "last_before - MAX_STEPS_AHEAD * per_step",
        "last_before - (MAX_STEPS_AHEAD + 1) * per_step",
        ("tests/pipeline/schedules/several_steps_test.py",),
    ),
    Mutation(
        "order of a schedule not checked",
        "lingvo_pipe/pipeline/schedules/check.py",
        "_miscounted, _out_of_order, _stuck):",
        "_miscounted, _stuck):",
        ("tests/pipeline/schedules/check_test.py",),
    ),
    Mutation(
        "tied gradients not summed",
        "lingvo_pipe/pipeline/loops/stage_update.py",
        "else flat[first] + flat[i]",
        "else flat[first]",
        ("tests/pipeline/whole_model_test.py",),
    ),
    Mutation(
        "batch shards in another order",
        "lingvo_pipe/pipeline/execution/replicas.py",
        "for more in flat[1:]:",
        "for more in flat[:0:-1]:",
        (f"{_REPLICAS}_shards_are_summed_in_order",),
    ),
    Mutation(
        "owners on the first replica alone",
        "lingvo_pipe/pipeline/execution/pipeline_spec.py",
        "replicas[i % len(replicas)][k]",
        "replicas[0][k]",
        (f"{_REPLICAS}_each_replica_owns_its_share_of_each_stage",),
    ),
    Mutation(
        "bubble by the busy time",
        "lingvo_pipe/pipeline/simulation/timeline.py",
        "return idle / total if total",
        "return idle / (total - idle) if total",
        ("tests/pipeline/simulation/timeline_test.py",),
    ),
    Mutation(
        "accumulators left out of the peak memory",
        "lingvo_pipe/pipeline/memory/stage_memory.py",
        "return self.weights(start, end) + self.accumulators(start, end)",
        "return self.weights(start, end)",
        ("tests/pipeline/memory/stage_memory_test.py",),
    ),
    Mutation(
        "largest stage larger than need be",
        "lingvo_pipe/pipeline/splitting/balance.py",
        "limit = _lowest_limit(sums, factors)\n",
        "limit = _lowest_limit(sums, factors) + 1\n",
        ("tests/pipeline/splitting/balance_test.py",),
    ),
    # Checkpoints and training.
    Mutation(
        "file of a checkpoint not synced",
        "lingvo_pipe/training/checkpoint/checkpointer.py",
        "sync(path)\n",
        "pass\n",
        (f"{_SAVED}_a_checkpoint_is_on_disk_before_it_counts",),
    ),
    Mutation(
        "directory of a checkpoint not synced",
        "lingvo_pipe/training/checkpoint/checkpointer.py",
        "sync(self._directory)\n",
        "pass\n",
        (f"{_SAVED}_a_checkpoint_is_on_disk_before_it_counts",),
    ),
    Mutation(
        "directory of another file not synced",
        "lingvo_pipe/core/atomic_file.py",
        "    sync(path.parent)\n",
        "",
        ("tests/core/atomic_file_test.py",),
    ),
    Mutation(
        "index renamed before the data",
        "lingvo_pipe/training/checkpoint/checkpointer.py",
        "sorted(self._scratch.iterdir())",
        "sorted(self._scratch.iterdir(), reverse=True)",
        (f"{_SAVED}_a_kill_between_any_two_file_operations_loses_nothing",),
    ),
    Mutation(
        "one checkpoint too many kept",
        "lingvo_pipe/training/checkpoint/checkpointer.py",
        "[: -self._keep]",
        "[: -self._keep - 1]",
        (f"{_SAVED}_keeps_the_last_checkpoints",),
    ),
    Mutation(
        "pinned checkpoint deleted",
        "lingvo_pipe/training/checkpoint/checkpointer.py",
        "if old != pinned:",
        "if old >= 0:",
        ("tests/training/checkpoint/async_saver_test.py",),
    ),
    Mutation(
        "damaged checkpoint not passed over",
        "lingvo_pipe/training/checkpoint/checkpoint_files.py",
        "            continue\n",
        "            break\n",
        (f"{_SAVED}_a_damaged_checkpoint_is_reported_and_passed_over",),
    ),
    Mutation(
        "input read from its beginning again",
        "lingvo_pipe/training/loop/batches.py",
        "return self._input.TrainBatches(index)\n",
        "return self._input.TrainBatches(0)\n",
        (f"{_RUN}_a_resumed_run_ends_in_the_same_bytes",),
    ),
    Mutation(
        "metrics not on disk before the checkpoint",
        "lingvo_pipe/training/loop/training_run.py",
        "        segment.metrics_log.sync()\n",
        "",
        (f"{_RUN}_what_is_reported_is_on_disk_before_a_checkpoint_is_saved",),
    ),
    Mutation(
        "averages too fast at first",
        "lingvo_pipe/layers/batch_norm.py",
        "early = 9.0 /",
        "early = 10.0 /",
        ("tests/layers/batch_norm_test.py",),
    ),
    Mutation(
        "weights decayed after clipping",
        "lingvo_pipe/training/optim/learner.py",
        "self._optimizer.apply(self._clipped(ordered))",
        "clipped = self._clipped([gradients[k] for k in self._variables])\n"
        "        added = [decayed[k] - gradients[k] for k in self._variables]\n"
        "        self._optimizer.apply(list(map(tf.add, clipped, added)))",
        (
            "tests/training/optim/learner_test.py::test_weight_decay_comes_before_clipping",
        ),
    ),
    Mutation(
        "clipped by the sum of squares",
        "lingvo_pipe/training/optim/gradient_clipping.py",
        "return tf.sqrt(tf.add_n(sums))",
        "return tf.add_n(sums)",
        ("tests/training/optim/gradient_clipping_test.py",),
    ),
    Mutation(
        "skipped step updates",
        "lingvo_pipe/training/step/train_step.py",
        "tf.cond(is_finite, update,",
        "tf.cond(tf.constant(True), update,",
        (f"{_FAILURES}_a_skipped_step_changes_no_weight",),
    ),
    Mutation(
        "squares of several steps a call in another order",
        "lingvo_pipe/training/step/several_steps.py",
        "path: by_path[path] for path in self.trained if path in by_path",
        "path: x for path, x in by_path.items() if path in self.trained",
        ("tests/training/step/several_steps_test.py",),
    ),
    Mutation(
        "graphs with other constants are equal",
        "lingvo_pipe/pipeline/tracing/layer_identity.py",
        '_NAMING = ("_gradient_op_type", "_class")',
        '_NAMING = ("_gradient_op_type", "_class", "value")',
        ("tests/keras/identical_layers_test.py",),
    ),
    Mutation(
        "learning rate saved in checkpoints",
        "lingvo_pipe/training/optim/learner.py",
        "            if variable.path != LEARNING_RATE_NAME\n",
        "",
        ("tests/training/resumed_hyperparameters_test.py",),
    ),
    # Layers.
    Mutation(
        "own position hidden by the causal mask",
        "lingvo_pipe/layers/attention.py",
        "positions[tf.newaxis] <= positions",
        "positions[tf.newaxis] < positions",
        ("tests/layers/attention_test.py",),
    ),
    Mutation(
        "dropout not rescaled",
        "lingvo_pipe/layers/dropout.py",
        "inputs / p.keep_prob",
        "inputs",
        ("tests/layers/dropout_test.py",),
    ),
    Mutation(
        "random numbers of another example",
        "lingvo_pipe/layers/core/random_streams.py",
        "_counter(first_example) * _uint64(blocks)",
        "_counter(first_example)",
        ("tests/layers/core/random_streams_test.py",),
    ),
    Mutation(
        "batch norm by n - 1",
        "lingvo_pipe/layers/batch_norm.py",
        "tf.cast(variance, n.dtype) * ((n - 1.0) / n)",
        "tf.cast(variance, n.dtype)",
        ("tests/layers/batch_norm_test.py",),
    ),
    # Hyper-parameters and nested maps.
    Mutation(
        "unknown name accepted",
        "lingvo_pipe/hyperparams/params.py",
        "self._Lookup((Name(name),)).value = value",
        "self._fields[name] = Field(value, value, name)",
        ("tests/hyperparams/params_test.py",),
    ),
    Mutation(
        "frozen list can grow",
        "lingvo_pipe/hyperparams/frozen_values.py",
        "append = extend = insert",
        "extend = insert",
        ("tests/hyperparams/frozen_values_test.py",),
    ),
    Mutation(
        "faulty Set leaves some values",
        "lingvo_pipe/hyperparams/fields.py",
        "undo.callback(change(item))",
        "change(item)",
        ("tests/hyperparams/params_test.py",),
    ),
    Mutation(
        "tuples written as lists",
        "lingvo_pipe/hyperparams/value_text.py",
        '"None", FrozenList: "list"',
        '"None", FrozenList: "list", tuple: "list"',
        ("tests/hyperparams/text_round_trip_test.py",),
    ),
    Mutation(
        "inner maps replaced by Update",
        "lingvo_pipe/nested_map.py",
        "for key, leaf in NestedMap.FromNestedDict(other).FlattenItems():",
        "for key, leaf in other.items():",
        ("tests/nested_map/nested_map_by_key_test.py",),
    ),
)
