"""A Bazel test that runs pytest."""

def pytest_test(name, srcs, deps = [], data = [], args = [], **kwargs):
    """Declares a test target that runs the tests in `srcs` with pytest.

    Third-party packages come with the Python environment and are no dependencies.
    `--test_filter=EXPRESSION` selects tests as pytest's `-k` does, and
    `--test_arg=ARGUMENT` reaches pytest.

    Args:
      name: Name of the target.
      srcs: Python files. Those named *_test.py are run; others, such as a
        conftest.py, only lie beside them.
      deps: The py_library targets that the tests import.
      data: Files that the tests read.
      args: Arguments for pytest.
      **kwargs: As for py_test: size, timeout, tags, flaky and so on.
    """
    test_files = [src for src in srcs if src.endswith("_test.py")]
    if not test_files:
        # pytest without files would look for tests by itself.
        fail("pytest_test %s must have a *_test.py in srcs; got %s" % (name, srcs))
    native.py_test(
        name = name,
        srcs = srcs + ["//tools:run_pytest.py"],
        main = "//tools:run_pytest.py",
        args = ["$(rootpath %s)" % file for file in test_files] + args,
        data = data + ["//:pyproject.toml"],
        python_version = "PY3",
        deps = deps,
        **kwargs
    )
