"""A Bazel test that runs pytest."""

# Environments in which TensorFlow rounds as on processors with fewer instruction sets.
# They limit the kernels of XLA and of oneDNN, each of which adds up in its own order.
# Without AVX-512 VNNI and AMX, TensorFlow leaves all but products to Eigen.
_PROCESSORS = {
    name: {
        "ONEDNN_MAX_CPU_ISA": of_onednn,
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "XLA_FLAGS": "--xla_cpu_max_isa=" + of_xla,
    }
    for name, of_onednn, of_xla in [
        ("sse41", "SSE41", "SSE4_2"),
        ("avx2", "AVX2", "AVX2"),
        ("avx512", "AVX512_CORE", "AVX512"),
    ]
}

def pytest_test(
        name,
        srcs,
        deps = [],
        data = [],
        exhaustive_shards = 0,
        on_processors = False,
        avx2_sample = "",
        **kwargs):
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
      on_processors: Whether to declare NAME_processors, a suite that repeats the tests
        with fewer instruction sets. `//...` does not include it.
      avx2_sample: Expression of pytest's `-k`. If there is one, `//...` repeats the
        tests that it selects as on a processor without AVX-512.
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
    if avx2_sample:
        sample = dict(kwargs, shard_count = 1)
        native.py_test(
            name = name + "_avx2_sample",
            args = arguments + ["'-k=%s'" % avx2_sample],
            env = _PROCESSORS["avx2"],
            **sample
        )
    kwargs["tags"] = kwargs.get("tags", []) + ["manual"]
    if on_processors:
        for processor, env in _PROCESSORS.items():
            native.py_test(
                name = "%s_%s" % (name, processor),
                args = arguments,
                env = env,
                **kwargs
            )
        native.test_suite(
            name = name + "_processors",
            tags = ["manual"],
            tests = [":%s_%s" % (name, processor) for processor in _PROCESSORS],
            visibility = ["//tests:__pkg__"],
        )
    if exhaustive_shards:
        kwargs.update(size = "enormous", shard_count = exhaustive_shards)
        native.py_test(
            name = name + "_exhaustive",
            args = arguments + ["-m=exhaustive"],
            **kwargs
        )
