"""Prints how many tests passed and failed in a run of Bazel.

Usage: count_tests.py EVENTS STATUS, with the file that --build_event_json_file wrote
and Bazel's exit status.
"""

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from urllib.parse import unquote, urlparse


def _count_target(result: dict) -> Counter:
    """Counts the tests of one target by their outcome."""
    counts: Counter = Counter()
    for output in result.get("testActionOutput", []):
        if output["name"] == "test.xml":
            path = unquote(urlparse(output["uri"]).path)
            for case in ElementTree.parse(path).iter("testcase"):
                outcomes = {child.tag for child in case}
                if outcomes & {"failure", "error"}:
                    counts["failed"] += 1
                elif "skipped" in outcomes:
                    counts["skipped"] += 1
                else:
                    counts["passed"] += 1
    if result["status"] != "PASSED" and not counts["failed"]:
        counts["failed"] += 1  # such as a timeout, or no test collected
    return counts


def _shard(identity: dict) -> tuple:
    """Returns what tells a test's shards apart; attempts at one are the same."""
    return identity["label"], identity.get("run"), identity.get("shard")


def main(events_path: str, status: int) -> None:
    """Prints the counts, of which none failed only where the status is 0."""
    with open(events_path, encoding="utf-8") as lines:
        events = [json.loads(line) for line in lines]
    last_results = {
        _shard(event["id"]["testResult"]): event["testResult"]
        for event in events
        if "testResult" in event
    }
    counts = sum(map(_count_target, last_results.values()), Counter())
    if status and not counts["failed"]:
        counts["failed"] = 1  # the build itself
    if counts["skipped"]:
        print(f"{counts['skipped']} skipped")
    print(f"{counts['passed']} passed, {counts['failed']} failed")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
