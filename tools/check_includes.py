"""Checks that includes only point the way docs/architecture.md allows.

python3 tools/check_includes.py               check the project, list every broken rule, exit 1 if any
python3 tools/check_includes.py --self-test   plant one include per rule in a scratch tree, expect it caught
"""

import argparse
import pathlib
import re
import sys
import tempfile

# Folder -> other folders of this project that it may include. The first folder that a path is in counts, so
# comm/c10d stands before comm.
MAY_USE = {
    "armillary/core": [],
    "armillary/plan": ["armillary/core"],
    "armillary/sim": ["armillary/core", "armillary/plan"],
    "armillary/validate": ["armillary/core", "armillary/plan", "armillary/sim"],
    "armillary/comm/c10d": ["armillary/core", "armillary/comm"],
    "armillary/comm": ["armillary/core"],
    "armillary/kernel": ["armillary/core", "armillary/plan"],
    "armillary/io": ["armillary/core"],
    "armillary/tune": ["armillary/core", "armillary/plan", "armillary/sim", "armillary/io"],
    "armillary/launch": ["armillary/core"],
    "armillary/doctor": ["armillary/core", "armillary/launch"],
    "armillary/recorder": ["armillary/core", "armillary/plan", "armillary/io"],
    "armillary/report": ["armillary/core", "armillary/plan", "armillary/sim", "armillary/recorder"],
    "armillary/sweep": ["armillary/core", "armillary/plan", "armillary/sim"],
    "armillary/proof": ["armillary/core", "armillary/plan", "armillary/comm", "armillary/io"],
    "armillary/runtime": [
        "armillary/core",
        "armillary/plan",
        "armillary/comm",
        "armillary/kernel",
        "armillary/proof",
        "armillary/recorder",
    ],
    "armillary/attention": [
        "armillary/core",
        "armillary/plan",
        "armillary/comm",
        "armillary/kernel",
        "armillary/proof",
        "armillary/runtime",
        "armillary/recorder",
        "armillary/tune",
    ],
    "armillary/train": [
        "armillary/core",
        "armillary/plan",
        "armillary/comm",
        "armillary/kernel",
        "armillary/runtime",
        "armillary/attention",
        "armillary/io",
        "armillary/proof",
        "armillary/recorder",
        "armillary/sim",
        "armillary/tune",
    ],
    "armillary/bench": [
        "armillary/core",
        "armillary/plan",
        "armillary/comm",
        "armillary/kernel",
        "armillary/runtime",
        "armillary/attention",
        "armillary/proof",
        "armillary/recorder",
    ],
    "armillary/calibrate": [
        "armillary/core",
        "armillary/plan",
        "armillary/comm",
        "armillary/kernel",
        "armillary/runtime",
        "armillary/attention",
        "armillary/proof",
        "armillary/recorder",
        "armillary/sim",
        "armillary/bench",
        "armillary/tune",
    ],
}
# These may use every folder above, and nobody may use them, but for tests: those of tests/ may include
# cli/program.h, and every _test.cpp the headers of tests/.
TOP = ["cli", "python", "tests", "bench", "examples"]

# A kernel is told which keys a query sees and where tokens lie; it knows no problem, plan or strategy.
KERNEL_SEES_OF_PLAN = {"mask", "layout", "runs", "blocks"}

TORCH_FREE = {
    "armillary/core",
    "armillary/plan",
    "armillary/sim",
    "armillary/validate",
    "armillary/comm",
    "armillary/io",
    "armillary/tune",
    "armillary/launch",
    "armillary/doctor",
    "armillary/proof",
    "armillary/recorder",
    "armillary/report",
    "armillary/sweep",
}
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
HEAVY = {
    "torch/torch.h",
    "torch/extension.h",
    "ATen/ATen.h",
}  # 6 to 15 s in every file that includes them

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def folder_of(path):
    """'armillary/plan/strategies/ring.h' -> 'armillary/plan'; 'cli/plan.cpp' -> 'cli'; else None."""
    for folder in [*MAY_USE, *TOP]:
        if path.startswith(folder + "/"):
            return folder
    return None


def broken_rule(path, bracket, included, root):
    """The rule that `#include <included>` breaks in the file `path` of `root`, or None."""
    home = folder_of(path)
    if TORCH.match(included):
        if home in TORCH_FREE:
            return f"{home} is free of torch"
        if path.endswith(".h") and included in HEAVY:
            return "headers include <ATen/core/Tensor.h> at most; this belongs in a .cpp"
        return None
    if included == "armillary/version.h":  # macros alone, of no folder
        return None
    target = folder_of(included)
    if target is None:
        return None if bracket == "<" else 'a quoted include names a file from the root: "armillary/..."'
    if not (root / included).is_file():
        return "no such file"
    if target == home or (target not in TOP and home in TOP):
        return None
    if home == "tests" and included == "cli/program.h":
        return None
    if target == "tests" and path.endswith("_test.cpp"):
        return None  # tolerances and cases that tests beside the sources share with those above
    if target not in MAY_USE.get(home, []):
        allowed = ", ".join(MAY_USE.get(home, [])) or "nothing"
        return f"{home} may use {allowed}"
    of_plan = pathlib.PurePath(included).stem in KERNEL_SEES_OF_PLAN
    if home == "armillary/kernel" and target == "armillary/plan" and not of_plan:
        return "armillary/kernel sees of armillary/plan only " + ", ".join(sorted(KERNEL_SEES_OF_PLAN))
    return None


def check(root):
    """One line per broken rule below `root`."""
    complaints = []
    sources = [p for top in ["armillary", *TOP] for p in sorted((root / top).rglob("*"))]
    for source in sources:
        if source.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        path = source.relative_to(root).as_posix()
        text = source.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            rule = broken_rule(path, match[1], match[2], root)
            if rule:
                line = text.count("\n", 0, match.start(1)) + 1
                complaints.append(f"{path}:{line}: include of {match[2]}: {rule}")
    return complaints


# (file, its include, whether it is allowed). Every rule above appears once broken and once kept.
CASES = [
    ("armillary/plan/x.cpp", '"armillary/core/x.h"', True),
    ("armillary/plan/strategies/x.cpp", '"armillary/plan/x.h"', True),
    ("armillary/plan/x.cpp", '"armillary/comm/x.h"', False),
    ("armillary/core/y.h", '"armillary/plan/x.h"', False),
    ("armillary/io/x.cpp", '"armillary/train/x.h"', False),
    ("armillary/train/x.cpp", '"armillary/plan/x.h"', True),
    ("armillary/train/x.cpp", '"cli/x.h"', False),
    ("armillary/kernel/x.cpp", '"armillary/plan/mask.h"', True),
    ("armillary/kernel/x.cpp", '"armillary/plan/x.h"', False),
    ("armillary/plan/x.h", "<ATen/core/Tensor.h>", False),
    ("armillary/comm/x.cpp", "<c10/util/Exception.h>", False),
    ("armillary/comm/c10d/x.cpp", "<torch/csrc/distributed/c10d/Work.hpp>", True),
    ("armillary/comm/c10d/x.cpp", '"armillary/comm/x.h"', True),
    ("armillary/comm/x.cpp", '"armillary/comm/c10d/x.h"', False),
    ("armillary/kernel/x.h", "<ATen/core/Tensor.h>", True),
    ("armillary/kernel/x.h", "<ATen/ATen.h>", False),
    ("armillary/train/x.h", "<torch/torch.h>", False),
    ("armillary/train/x.cpp", "<torch/torch.h>", True),
    ("cli/x.cpp", '"armillary/train/x.h"', True),
    ("tests/error/x_test.cpp", '"cli/x.h"', False),
    ("tests/error/x.h", '"cli/program.h"', True),
    ("armillary/plan/x_test.cpp", '"tests/tolerance.h"', True),
    ("armillary/plan/x.cpp", '"tests/tolerance.h"', False),
    ("armillary/plan/x.cpp", '"x.h"', False),
    ("armillary/plan/x.cpp", '"armillary/plan/absent.h"', False),
    ("armillary/plan/x.cpp", "<vector>", True),
    ("armillary/plan/x.cpp", '"armillary/version.h"', True),
]


def self_test():
    """Runs `check` on one scratch tree per case; returns the cases judged wrongly."""
    wrong = []
    for path, included, allowed in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            root = pathlib.Path(scratch)
            targets = [included.strip('"')] if "absent" not in included else []
            for file in [path, *(t for t in targets if folder_of(t))]:
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text("#pragma once\n", encoding="utf-8")
            (root / path).write_text(f"#pragma once\n#include {included}\n", encoding="utf-8")
            complaints = check(root)
            if allowed != (not complaints) or (complaints and f"{path}:2:" not in complaints[0]):
                wrong.append(
                    f"self test: {path} including {included}: allowed is {allowed}, got {complaints}"
                )
    return wrong


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--self-test", action="store_true", help="check the checker")
    args = parser.parse_args()
    complaints = self_test() if args.self_test else check(pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(complaints), file=sys.stderr, end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
