"""Faults of the product, each with the tests of the fast suite that find it."""

from __future__ import annotations

from dataclasses import dataclass

_SIDE = "tests/pipeline/side_losses_test.py::test"
_REPLICAS = "tests/pipeline/replicas_test.py::test"
_SAVED = "tests/training/checkpoints_test.py::test"
_RUN = "tests/training/training_loop_test.py::test"


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
        "return list(totals)",
        ("tests/pipeline/local_loss_test.py",),
    ),
    Mutation(
        "micro-batches in reverse",
        "lingvo_pipe/pipeline/loops/stage_runner.py",
        "{value: x[row.micro_batch] for",
        "{value: x[-1 - row.micro_batch] for",
        ("tests/pipeline/plain_model_test.py::test_outputs_are_those_of_the_cells",),
    ),
    Mutation(
        "first example off by one",
        "lingvo_pipe/pipeline/micro_batches.py",
        "np.cumsum([0, *",
        "np.cumsum([1, *",
        ("tests/pipeline/micro_batches_test.py",),
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
        "lingvo_pipe/pipeline/loops/stage_call.py",
        "gradient if before is None else before + gradient",
        "gradient",
        ("tests/pipeline/crossing_test.py",),
    ),
    Mutation(
        "padding rows in side losses",
        "lingvo_pipe/layers/forward_context.py",
        "tf.reduce_sum(values if weights is None else values * weights)",
        "tf.reduce_sum(values)",
        (f"{_SIDE}_runs_without_gradients_report_them_too",),
    ),
    Mutation(
        "scale of side losses dropped",
        "lingvo_pipe/pipeline/side_losses.py",
        "scale = tf.reduce_sum(weights) / tf.cast(batch_size, weights.dtype)",
        "scale = tf.ones([], weights.dtype)",
        (f"{_SIDE}_gradients_are_of_the_main_loss_and_the_means_of_the_others",),
    ),
    Mutation(
        "recomputation of other examples",
        "lingvo_pipe/pipeline/loops/stage_runner.py",
        "row),\n                values,\n                StashSlot(have",
        "row)._replace(first_example=constants.first_examples[0]),\n"
        "                values,\n                StashSlot(have",
        (f"{_SIDE}_bytes_do_not_depend_on_the_stages",),
    ),
    Mutation(
        "weight gradient dropped",
        "lingvo_pipe/pipeline/loops/stage_runner.py",
        "stash, state.gradients = self._stage.weight_backward(",
        "stash, _ = self._stage.weight_backward(",
        (f"{_SIDE}_bytes_do_not_depend_on_the_stages",),
    ),
    Mutation(
        "interleaved groups in another order",
        "lingvo_pipe/pipeline/schedules/interleaved.py",
        "[-(-num_micro_batches * i // num_groups) for",
        "[num_micro_batches * i // num_groups for",
        ("tests/pipeline/schedules/every_schedule_test.py",),
    ),
    Mutation(
        "warm-up of 1F1B too long",
        "lingvo_pipe/pipeline/schedules/one_f_one_b.py",
        "num_stages - 1 - stage",
        "num_stages - stage",
        ("tests/pipeline/schedules/one_f_one_b_test.py",),
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
        "lingvo_pipe/pipeline/tied_gradients.py",
        "else flat[first] + flat[i]",
        "else flat[first]",
        ("tests/pipeline/whole_model_test.py",),
    ),
    Mutation(
        "parts of a mini-batch in another order",
        "lingvo_pipe/pipeline/replicas.py",
        "for more in flat[1:]:",
        "for more in flat[:0:-1]:",
        (f"{_REPLICAS}_parts_are_added_in_their_order",),
    ),
    Mutation(
        "homes on the first replica alone",
        "lingvo_pipe/pipeline/homes.py",
        "replicas[i % len(replicas)][k]",
        "replicas[0][k]",
        (f"{_REPLICAS}_each_replica_has_its_share_of_each_stage",),
    ),
    Mutation(
        "bubble by the busy time",
        "lingvo_pipe/pipeline/simulation/timeline.py",
        "return idle / total if total",
        "return idle / (total - idle) if total",
        ("tests/pipeline/simulation/simulate_test.py",),
    ),
    Mutation(
        "totals left out of the peak of memory",
        "lingvo_pipe/pipeline/stage_memory.py",
        "self.weights(*stages[stage]) + self.totals(*stages[stage])",
        "self.weights(*stages[stage])",
        ("tests/pipeline/stage_memory_test.py",),
    ),
    Mutation(
        "largest stage larger than need be",
        "lingvo_pipe/pipeline/splitting/balance.py",
        "_least_limit(sums, num_stages))",
        "_least_limit(sums, num_stages) + 1)",
        ("tests/pipeline/splitting/balance_test.py",),
    ),
    # Checkpoints and training.
    Mutation(
        "file of a checkpoint not synced",
        "lingvo_pipe/training/checkpoints.py",
        "sync(path)\n",
        "pass\n",
        (f"{_SAVED}_a_checkpoint_is_on_disk_before_it_counts",),
    ),
    Mutation(
        "directory of a checkpoint not synced",
        "lingvo_pipe/training/checkpoints.py",
        "sync(self._directory)\n",
        "pass\n",
        (f"{_SAVED}_a_checkpoint_is_on_disk_before_it_counts",),
    ),
    Mutation(
        "directory of another file not synced",
        "lingvo_pipe/training/atomic_file.py",
        "    sync(path.parent)\n",
        "",
        ("tests/training/atomic_file_test.py",),
    ),
    Mutation(
        "index renamed before the data",
        "lingvo_pipe/training/checkpoints.py",
        "sorted(self._scratch.iterdir())",
        "sorted(self._scratch.iterdir(), reverse=True)",
        (f"{_SAVED}_a_kill_between_any_two_file_operations_loses_nothing",),
    ),
    Mutation(
        "one checkpoint too many kept",
        "lingvo_pipe/training/checkpoints.py",
        "[: -self._keep]",
        "[: -self._keep - 1]",
        (f"{_SAVED}_keeps_the_last_checkpoints",),
    ),
    Mutation(
        "pinned checkpoint deleted",
        "lingvo_pipe/training/checkpoints.py",
        "if old != pinned:",
        "if old >= 0:",
        ("tests/training/background_saver_test.py",),
    ),
    Mutation(
        "damaged checkpoint not passed over",
        "lingvo_pipe/training/checkpoint_files.py",
        "            continue\n",
        "            break\n",
        (f"{_SAVED}_a_damaged_checkpoint_is_reported_and_passed_over",),
    ),
    Mutation(
        "input read from its beginning again",
        "lingvo_pipe/training/input_place.py",
        "return self._input.TrainBatches(position)\n",
        "return self._input.TrainBatches(0)\n",
        (f"{_RUN}_a_resumed_run_ends_in_the_same_bytes",),
    ),
    Mutation(
        "metrics not on disk before the checkpoint",
        "lingvo_pipe/training/training_run.py",
        "        watchers.metrics_log.sync()\n",
        "",
        (f"{_RUN}_what_is_reported_is_on_disk_before_a_checkpoint_is_saved",),
    ),
    Mutation(
        "averages too fast at first",
        "lingvo_pipe/layers/averaging_rate.py",
        "early = 9.0 /",
        "early = 10.0 /",
        ("tests/layers/averaging_rate_test.py",),
    ),
    Mutation(
        "weights decayed after clipping",
        "lingvo_pipe/training/learner.py",
        "self._optimizer.apply(self._clipped(ordered))",
        "clipped = self._clipped([gradients[k] for k in self._variables])\n"
        "        added = [decayed[k] - gradients[k] for k in self._variables]\n"
        "        self._optimizer.apply(list(map(tf.add, clipped, added)))",
        ("tests/training/learner_test.py::test_weight_decay_comes_before_clipping",),
    ),
    Mutation(
        "clipped by the sum of squares",
        "lingvo_pipe/training/gradient_norm.py",
        "return tf.sqrt(tf.add_n(sums))",
        "return tf.add_n(sums)",
        ("tests/training/gradient_clipping_test.py",),
    ),
    Mutation(
        "skipped step updates",
        "lingvo_pipe/training/train_step.py",
        "tf.cond(is_finite, update,",
        "tf.cond(tf.constant(True), update,",
        ("tests/training/bad_steps_test.py::test_a_skipped_step_changes_no_weight",),
    ),
    Mutation(
        "learning rate saved in checkpoints",
        "lingvo_pipe/training/learner.py",
        "            if each.path != LEARNING_RATE_NAME\n",
        "",
        ("tests/training/resumed_hyperparameters_test.py",),
    ),
    # Layers.
    Mutation(
        "own place hidden by the causal mask",
        "lingvo_pipe/layers/attention_mask.py",
        "places[tf.newaxis] <= places",
        "places[tf.newaxis] < places",
        ("tests/layers/attention_mask_test.py",),
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
        "lingvo_pipe/layers/random_streams.py",
        "_counter(first_example) * _uint64(blocks)",
        "_counter(first_example)",
        ("tests/layers/random_streams_test.py",),
    ),
    Mutation(
        "batch norm by n - 1",
        "lingvo_pipe/layers/batch_norm.py",
        "tf.cast(variance, n.dtype) * ((n - 1.0) / n)",
        "tf.cast(variance, n.dtype)",
        ("tests/layers/batch_norm_test.py",),
    ),
    Mutation(
        "labels smoothed by too much",
        "lingvo_pipe/layers/softmax_cross_entropy.py",
        "(spread - losses)",
        "spread",
        ("tests/layers/softmax_cross_entropy_test.py",),
    ),
    Mutation(
        "waves of positions off by one",
        "lingvo_pipe/layers/positions.py",
        "np.arange(dim // 2) / dim",
        "np.arange(1, dim // 2 + 1) / dim",
        ("tests/layers/positions_test.py",),
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
        "lingvo_pipe/hyperparams/frozen.py",
        "append = extend = insert",
        "extend = insert",
        ("tests/hyperparams/copy_freeze_test.py",),
    ),
    Mutation(
        "faulty Set leaves some values",
        "lingvo_pipe/hyperparams/faults.py",
        "in reversed(self._undo):",
        "in self._undo[:0]:",
        ("tests/hyperparams/params_test.py",),
    ),
    Mutation(
        "tuples written as lists",
        "lingvo_pipe/hyperparams/value_write.py",
        'tuple: "tuple"',
        'tuple: "list"',
        ("tests/hyperparams/text_round_trip_test.py",),
    ),
    Mutation(
        "inner maps replaced by Update",
        "lingvo_pipe/nested_map.py",
        "                mine.Update(value)\n",
        "                self[key] = value\n",
        ("tests/nested_map/nested_map_test.py",),
    ),
)
