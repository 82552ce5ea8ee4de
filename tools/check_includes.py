"""Checks that includes only point the way docs/architecture.md allows.

python3 tools/check_includes.py     lists every broken rule; exits with 1 if there is one
"""

import pathlib
import re
import sys

# Room -> other rooms that it may include. The first folder that a path is in counts, so comm/c10d stands
# before comm.
MAY_USE = {
    "armillary/core": [],
    "armillary/plan": ["core"],
    "armillary/comm/c10d": ["core", "comm"],
    "armillary/comm": ["core"],
    "armillary/io": ["core"],
    "armillary/text": ["core", "io"],
    "armillary/predict": ["core", "plan", "io"],
    "armillary/proof": ["core", "plan", "comm", "io"],
    "armillary/host": ["core", "plan", "io"],
    "armillary/kernel": ["core", "plan"],
    "armillary/model": ["core", "predict", "kernel"],
    "armillary/runtime": ["core", "plan", "comm", "proof", "host", "kernel"],
    "armillary/attention": ["core", "plan", "comm", "predict", "proof", "host", "kernel", "runtime"],
    "armillary/train": [
        *("core", "plan", "comm", "io", "text", "predict", "proof", "host"),
        *("kernel", "model", "runtime", "attention"),
    ],
    "armillary/serve": [
        *("core", "plan", "comm", "io", "text", "predict", "proof", "host"),
        *("kernel", "model", "runtime", "attention", "train"),
    ],
    "armillary/lab": [
        *("core", "plan", "comm", "predict", "proof", "host", "kernel", "runtime", "attention"),
        *("model", "train"),
    ],
}
# Folders of a room that has more than one target: each may use those before it.
ORDER = {
    "armillary/text": ["tokenizer", "corpus"],
    "armillary/predict": ["sim", "cost", "tune"],
    "armillary/host": ["recorder", "launch", "doctor"],
    "armillary/lab": ["bench", "calibrate", "validate", "report", "sweep"],
}
# These may use every folder above, and nobody may use them, but for tests: those of tests/ may include
# cli/program.h, and every _test.cpp the headers of tests/.
TOP = ["cli", "python", "tests", "examples"]

# A kernel is told which keys a query sees and where tokens lie; it knows no problem, plan or strategy.
KERNEL_SEES_OF_PLAN = {"mask", "layout", "runs", "blocks"}

# The machine below plans knows no attention. Its tests may use plans as examples.
MACHINE = "armillary/plan/program/"

# The caches of the project: programs, proofs of a group, answers of the tuner.
CACHE = "armillary/core/recent.h"
CACHES = {
    "armillary/runtime/program_cache.cpp",
    "armillary/runtime/group_state.h",
    "armillary/predict/tune/automatic.cpp",
}

TORCH_FREE = tuple(
    f"armillary/{folder}/"
    for folder in [
        *("core", "plan", "comm", "io", "text", "predict", "proof", "host"),
        *("lab/validate", "lab/report", "lab/sweep"),
    ]
)
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


def broken_order(home, path, included):
    """The rule that an include within a room breaks, or None."""
    order = ORDER.get(home)
    if order is None:
        return None
    places = [order.index(file.removeprefix(home + "/").split("/")[0]) for file in (path, included)]
    return f"{home} has the order {', '.join(order)}" if places[1] > places[0] else None


def broken_rule(path, bracket, included, root):
    """The rule that `#include <included>` breaks in the file `path` of `root`, or None."""
    home = folder_of(path)
    if TORCH.match(included):
        if home != "armillary/comm/c10d" and path.startswith(TORCH_FREE):
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
    if included == CACHE and path not in CACHES and not path.endswith("_test.cpp"):
        return f"there are {len(CACHES)} caches: {', '.join(sorted(CACHES))}"
    above = included.startswith("armillary/plan/") and not included.startswith(MACHINE)
    if path.startswith(MACHINE) and above and not path.endswith("_test.cpp"):
        return f"{MACHINE} knows no attention; of armillary/plan it uses itself alone"
    if target == home:
        return broken_order(home, path, included)
    if target not in TOP and home in TOP:
        return None
    if home == "tests" and included == "cli/program.h":
        return None
    if target == "tests" and path.endswith("_test.cpp"):
        return None  # tolerances and cases that tests beside the sources share with those above
    if target.removeprefix("armillary/") not in MAY_USE.get(home, []):
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


def main():
    complaints = check(pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(complaints), file=sys.stderr, end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
