"""The trainer's flags. Needs no TensorFlow."""

import sys

from absl import flags

FLAGS = flags.FLAGS

flags.DEFINE_string("model", None, "Name of a registered model; see --list_models.")
flags.DEFINE_string("logdir", None, "Directory of the run; an existing run resumes.")
flags.DEFINE_enum(
    "mode",
    "train",
    ["train", "inspect_model", "inspect_params", "diff_params", "report"],
    "train: train and evaluate. inspect_model: print layers, shapes and stages. "
    "inspect_params: print all params. diff_params: print the params that differ from "
    "--other_model's, or from the params of the run in --logdir. report: write "
    "LOGDIR/report.html, a page about the run.",
)
flags.DEFINE_string(
    "other_model", None, "Name of the model to compare with, with --mode=diff_params."
)
flags.DEFINE_integer(
    "max_steps",
    None,
    "Number of steps to train for. Default: the model's own.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "profile_step",
    None,
    "Number of a step to profile: an image and a table of the devices' operations, "
    "measured and simulated. At least 3; see LOGDIR/profile.",
    lower_bound=1,
)
flags.DEFINE_string(
    "init_from",
    None,
    "Where a new run's initial weights come from: another run's directory, one of its "
    "checkpoints, the folder of a SavedModel, or a .safetensors, .npz, .h5 or .keras "
    "file. Variables of the same path and shape take their values from there; "
    "LOGDIR/initial_weights.txt lists them all.",
)
flags.DEFINE_string(
    "init_names",
    None,
    "With --init_from: PATTERN=NAME;PATTERN=NAME, other names there. PATTERN is a "
    "regular expression; NAME replaces its match in a variable's path, or is - to keep "
    "the variable's initial values.",
)
flags.DEFINE_list(
    "allow_params_change",
    [],
    "Params that may differ from the original run in --logdir, with all params below "
    "them: task.train.learning_rate,task.train.optimizer. Params of devices, "
    "duration, reports and bad steps may always change; with --job=evaler and the "
    "like, all of input and task.train.",
    allow_overwrite=False,
)
flags.DEFINE_bool(
    "allow_foreign_logdir",
    False,
    "Accept a --logdir with files of other users, or with links to other folders. Use "
    "it only if you trust whoever can write there.",
)
flags.DEFINE_string(
    "devices",
    None,
    "A number of devices, or their names: cpu:0,cpu:1 or gpu:0,gpu:1 or, on workers, "
    "worker:0/gpu:0,worker:1/gpu:0. Each device gets one stage, or "
    "task.pipeline.stages_per_device. With --cluster, a number counts the cluster's "
    "devices in the order of its tasks. The flag replaces a number in "
    "task.pipeline.splits; a list there must have the same length, and "
    "task.pipeline.devices the same names. Default: task.pipeline.devices, or one "
    "device per stage of the model.",
)
flags.DEFINE_enum(
    "job",
    "trainer",
    ["trainer", "evaler", "decoder", "exporter", "worker"],
    "trainer: see --mode. evaler: evaluate the weights in --logdir; see LOGDIR/evaler. "
    "decoder: translate or continue texts with them; see LOGDIR/decoder. exporter: "
    "write them as a SavedModel; see LOGDIR/export. worker: lend this machine's "
    "devices to a trainer.",
)
flags.DEFINE_string(
    "split",
    "Test",
    "The data set of --job=evaler and the like: Train, Test, Dev, ...",
)
flags.DEFINE_string(
    "input_file",
    None,
    "With --job=decoder: a file of text to translate instead of --split, a sentence a "
    "line, or - for standard input. A language model continues each line.",
)
flags.DEFINE_string(
    "output_file",
    "-",
    "With --input_file: the file of translations or continued texts, one line for "
    "each, or - for standard output.",
)
flags.DEFINE_string(
    "target_language",
    None,
    "With --input_file: the language to translate to, such as en. Default: the only "
    "one.",
)
flags.DEFINE_integer(
    "max_tokens",
    None,
    "With --input_file and a language model: the most tokens that continue a line. "
    "Default: 100.",
)
flags.DEFINE_float(
    "temperature",
    None,
    "With --input_file and a language model: by what scores are divided before a token "
    "is drawn; 0 takes the likeliest token. Default: 1.",
)
flags.DEFINE_integer(
    "top_k",
    None,
    "With --input_file and a language model: a token is drawn from this number of "
    "likeliest ones. Default: from all.",
)
flags.DEFINE_float(
    "top_p",
    None,
    "With --input_file and a language model: a token is drawn from the likeliest ones "
    "that have this probability together. Default: 1.",
)
flags.DEFINE_integer(
    "seed",
    None,
    "With --input_file and a language model: the seed of what is drawn. Default: 0.",
)
flags.DEFINE_string(
    "checkpoint",
    None,
    "The checkpoint of --job=evaler and the like, such as ckpt-00000600, or best: the "
    "checkpoint with the best evaluation, see task.eval.best_metric. Default: the "
    "newest.",
)
flags.DEFINE_float(
    "follow_seconds",
    None,
    "With --job=evaler and the like: repeat for each new checkpoint of a running "
    "trainer, until its last step, or until no checkpoint comes for this many seconds.",
    lower_bound=0,
)
flags.DEFINE_string(
    "cluster",
    None,
    "Addresses of the workers, the same for all tasks: worker=host1:port1,host2:port2, "
    "preceded by trainer=host0:port0@ if the trainer has an address too. Or the source "
    "of addresses and of this process's task: tf_config, slurm, kubernetes or "
    "kubernetes:LABEL=VALUE. Default: TF_CONFIG, if it is set.",
)
flags.DEFINE_alias("cluster_spec", "cluster")
flags.DEFINE_integer("task", None, "Which worker this is, with --job=worker: 0, 1, ...")
flags.DEFINE_bool(
    "listen_on_all_addresses",
    False,
    "With --cluster: answer at all addresses of this machine, not only at its own in "
    "--cluster. Anyone who reaches the port can execute code; use it only on a trusted "
    "network.",
)
flags.DEFINE_float(
    "worker_timeout_seconds",
    30.0,
    "With --cluster: a worker that does not answer for this long is lost. The job then "
    "waits for all workers, or without some with --elastic, and resumes from the last "
    "checkpoint.",
    lower_bound=1.0,
)
flags.DEFINE_float(
    "wait_for_workers_seconds",
    600.0,
    "With --cluster: seconds to wait for workers that are not up, or are lost.",
    lower_bound=0.0,
)
flags.DEFINE_bool(
    "elastic",
    False,
    "Continue on the devices that are left when a worker is lost or a device fails, "
    "and on more when workers come back. The model is cut again; results keep their "
    "bytes.",
)
flags.DEFINE_integer(
    "min_devices",
    1,
    "With --elastic: the number of devices below which the job waits for workers, or "
    "ends if there are none to wait for.",
    lower_bound=1,
)
flags.DEFINE_float(
    "lost_worker_seconds",
    60.0,
    "With --elastic and --cluster: seconds to wait for a worker before the job "
    "continues without it.",
    lower_bound=0.0,
)
flags.DEFINE_float(
    "grow_seconds",
    600.0,
    "With --elastic and --cluster: the least seconds that the job trains before it "
    "restarts, after a checkpoint, with workers that are back.",
    lower_bound=0.0,
)
flags.DEFINE_string(
    "model_params_override",
    "",
    "Params to change: 'task.train.learning_rate : 0.1; input.batch_size : 32'.",
    allow_overwrite=False,
)
flags.DEFINE_string(
    "data_dir", None, "Folder of data sets; sets input.data_dir of all inputs."
)
flags.DEFINE_string(
    "dataset",
    None,
    "Images to train and evaluate on, in place of the model's own: a folder in "
    "--data_dir with train/CLASS/IMAGE.jpg and test/CLASS/IMAGE.jpg, or a name in "
    "TensorFlow Datasets. Sets input.dataset of all inputs.",
)
flags.DEFINE_list(
    "model_imports",
    [],
    "Your own packages to import, which register models.",
    allow_overwrite=False,
)
flags.DEFINE_bool("list_models", False, "Print the names of all models.")
flags.DEFINE_bool("traceback", False, "Show the whole traceback of an error.")

# Jobs that use the weights of a run. Interrupted ones start again from the beginning.
USING_JOBS = ("evaler", "decoder", "exporter")


def our_flags() -> set[str]:
    """Returns the names of the trainer's flags."""
    return {flag.name for flag in FLAGS.get_flags_for_module(sys.modules[__name__])}


def given_flags() -> set[str]:
    """Returns the names of the trainer's flags that are on the command line."""
    return {name for name in our_flags() if FLAGS[name].present}
