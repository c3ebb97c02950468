"""A Bazel test that runs pytest."""

def pytest_test(name, srcs, deps = [], data = [], exhaustive_shards = 0, **kwargs):
    """Declares a test target that runs the tests in `srcs` with pytest.

    Third-party packages come with the Python environment and are no dependencies.
    `--test_filter=EXPRESSION` selects tests as pytest's `-k` does, and
    `--test_arg=ARGUMENT` reaches pytest. Tests marked `exhaustive` are left out; they
    are a target of their own, NAME_exhaustive, which `//...` does not include.

    Args:
      name: Name of the target.
      srcs: Python files, or filegroups of such. Those named *_test.py are run; others
        only lie beside them.
      deps: The py_library targets that the tests import.
      data: Files that the tests read.
      exhaustive_shards: Number of processes for the tests marked `exhaustive`; 0 if
        there are none.
      **kwargs: As for py_test: size, timeout, tags, shard_count and so on.
    """
    arguments = ["$(rootpaths %s)" % src for src in srcs]
    kwargs.update(
        srcs = srcs + ["//tests:conftest.py", "//tools:run_pytest.py"],
        main = "//tools:run_pytest.py",
        data = data + ["//:pyproject.toml"],
        python_version = "PY3",
        visibility = ["//tests:__pkg__"],
        deps = deps + ["//tests/support:cases"],
    )
    native.py_test(name = name, args = arguments, **kwargs)
    if exhaustive_shards:
        kwargs.update(
            size = "enormous",
            shard_count = exhaustive_shards,
            tags = kwargs.get("tags", []) + ["manual"],
        )
        native.py_test(
            name = name + "_exhaustive",
            args = arguments + ["-m=exhaustive"],
            **kwargs
        )
