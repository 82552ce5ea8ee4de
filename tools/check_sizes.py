"""Checks that no source file is longer than 600 lines: a file that needs a table of contents is two files.

A file of ALGORITHMS is one algorithm and has at most 800."""

import pathlib
import sys

HARD_LIMIT, ALGORITHM_LIMIT = 600, 800
ALGORITHMS = {"armillary/kernel/cpu/amx-inl.h", "armillary/kernel/cpu/amx_scores-inl.h"}
TOPS = ["armillary", "cli", "python", "tests", "examples", "tools", "cmake"]
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    files = [p for top in TOPS for p in (root / top).rglob("*") if p.suffix in SUFFIXES]
    lengths = {p.relative_to(root): len(p.read_text(encoding="utf-8").splitlines()) for p in files}
    limits = {path: ALGORITHM_LIMIT if path.as_posix() in ALGORITHMS else HARD_LIMIT for path in lengths}
    long = [path for path in sorted(lengths) if lengths[path] > limits[path]]
    for path in long:
        print(f"{path}: {lengths[path]} lines; at most {limits[path]}", file=sys.stderr)
    return 1 if long else 0


if __name__ == "__main__":
    sys.exit(main())
