"""The project's Python: a virtual environment made from the locked requirements.

The environment is a repository: Bazel makes it on first use, and again when the lock
file or LINGVO_PIPE_PYTHON changes. An attempt that failed or was interrupted leaves
nothing behind, since Bazel starts each attempt with an empty folder.
"""

_BUILD = """\
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

py_runtime(
    name = "runtime",
    interpreter_path = "{python}",
    python_version = "PY3",
    stub_shebang = "#!{python}",
)

py_runtime_pair(
    name = "runtime_pair",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

_PIP_FAILED = """

The Python environment could not be made: pip failed. The end of what it wrote:

{output}

What to do: see that a package index can be reached (pip's own settings and variables,
such as PIP_INDEX_URL, hold here) and that the disk has 4 GB free, then run the same
command again. It starts afresh.
"""

def _say(ctx, text):
    # Unlike print(), this shows at once and without a trace.
    ctx.execute(["echo", "lingvo_pipe: " + text], quiet = False)

def _python_environment_impl(ctx):
    # Asking for a label's path makes the rule run again when that file changes.
    requirements = ctx.path(ctx.attr.requirements)
    find_python = ctx.path(ctx.attr._find_python)
    run_pip = ctx.path(ctx.attr._run_pip)

    found = ctx.execute([find_python])
    if found.return_code:
        fail("\n\n" + found.stderr)
    python = found.stdout.strip()

    # Bazel does not look into the environment. Its path, which every Python program
    # depends on, names its contents, so that no test result outlives a change.
    contents = hash(python + ctx.read(requirements))
    environment = ctx.path("env%d" % contents)
    _say(ctx, "setting up the Python environment with %s." % python)
    _say(ctx, "pip installs TensorFlow and more: this takes some minutes, once.")
    made = ctx.execute([python, "-I", "-m", "venv", environment])
    if made.return_code:
        fail("\n\n%s -m venv failed:\n%s%s" % (python, made.stdout, made.stderr))

    environment_python = environment.get_child("bin").get_child("python")
    installed = ctx.execute(
        [environment_python, "-I", run_pip, "install"] +
        # The lock is complete: pip has nothing to choose.
        ["--require-hashes", "--no-deps", "--requirement", requirements] +
        # The same way for each pip to build the one package that has no wheel.
        ["--use-pep517"] +
        ["--disable-pip-version-check", "--no-input", "--quiet"],
        timeout = 3 * 3600,
    )
    if installed.return_code:
        lines = (installed.stdout + installed.stderr).strip().split("\n")
        fail(_PIP_FAILED.format(output = "\n".join(lines[-20:])))

    ctx.file("BUILD", _BUILD.format(python = environment_python))

python_environment = repository_rule(
    implementation = _python_environment_impl,
    doc = "Makes a virtual environment and the Python toolchain that uses it.",
    attrs = {
        "requirements": attr.label(
            doc = "Locked requirements: exact versions, with hashes.",
            allow_single_file = True,
            mandatory = True,
        ),
        "_find_python": attr.label(default = "//tools:find_python.sh"),
        "_run_pip": attr.label(default = "//tools:run_pip.py"),
    },
    environ = ["LINGVO_PIPE_PYTHON"],
)
