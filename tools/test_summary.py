"""Counts the test cases of every results folder and names those that failed; the count is the last line.

    python3 tools/test_summary.py build/test-results build-asan/test-results ...

A folder holds ctest*.xml (one entry per test program) and, per program, GoogleTest's <program>.json; perhaps
pytest*.xml. A program that died leaves no JSON, or one without the failure: it counts as one failure.
Exit code: 0 if something passed and nothing failed.
"""

import json
import pathlib
import sys
import xml.etree.ElementTree


class Count:
    """Totals, and the names of what failed."""

    def __init__(self):
        self.passed = 0
        self.skipped = 0
        self.failures = []

    def add_googletest(self, where, report):
        """Adds a GoogleTest JSON report; returns the number of failures in it."""
        before = len(self.failures)
        for suite in report["testsuites"]:
            for case in suite["testsuite"]:
                if case["result"] == "SKIPPED":
                    self.skipped += 1
                elif case.get("failures"):
                    self.failures.append(f"{where}: {suite['name']}.{case['name']}")
                elif case["status"] == "RUN":
                    self.passed += 1
        return len(self.failures) - before

    def add_junit_case(self, where, case):
        """Adds one case of ctest's or pytest's XML."""
        if case.find("failure") is not None or case.find("error") is not None:
            self.failures.append(where)
        elif case.find("skipped") is not None:
            self.skipped += 1
        else:
            self.passed += 1

    def add_ctest(self, folder, results):
        for case in xml.etree.ElementTree.parse(results).iter("testcase"):
            where = f"{folder.parent.name}: {case.get('name')}"
            report = folder / f"{case.get('name')}.json"
            if not report.is_file():
                self.add_junit_case(where, case)
                continue
            failures = self.add_googletest(where, json.loads(report.read_text(encoding="utf-8")))
            if case.get("status") == "fail" and failures == 0:
                self.failures.append(f"{where}: the program failed after its tests")


def main():
    count = Count()
    for folder in map(pathlib.Path, sys.argv[1:]):
        for results in sorted(folder.glob("ctest*.xml")):
            count.add_ctest(folder, results)
        for results in sorted(folder.glob("pytest*.xml")):
            for case in xml.etree.ElementTree.parse(results).iter("testcase"):
                count.add_junit_case(f"pytest: {case.get('classname')}.{case.get('name')}", case)
    for failure in count.failures:
        print(f"FAILED {failure}")
    skipped = f", {count.skipped} skipped" if count.skipped else ""
    print(f"{count.passed} passed, {len(count.failures)} failed{skipped}")
    return 0 if count.passed and not count.failures else 1


if __name__ == "__main__":
    sys.exit(main())
