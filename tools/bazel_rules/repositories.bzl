"""Local stand-ins for the rule repositories that Bazel 4 would download.

Bazel's own build files load rules for C++ and Java, and its tests a coverage tool,
even where a workspace holds nothing but Python. What they load is native in Bazel 4,
so that a few names passed on are enough, and a build downloads nothing.
"""

_STAND_INS = ["remote_coverage_tools", "rules_cc", "rules_java"]

def bazel_rule_repositories():
    """Declares the stand-ins, except for a later Bazel, which wants the originals."""

    # Debian's build of Bazel 4 states no version.
    if native.bazel_version and not native.bazel_version.startswith("4."):
        return
    for name in _STAND_INS:
        native.local_repository(
            name = name,
            path = "tools/bazel_rules/" + name,
        )
