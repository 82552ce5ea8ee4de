"""Checks that no source file is longer than 600 lines: a file that needs a table of contents is two files."""

import pathlib
import sys

HARD_LIMIT = 600
TOPS = ["armillary", "cli", "python", "tests", "examples", "tools", "cmake"]
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    files = [p for top in TOPS for p in (root / top).rglob("*") if p.suffix in SUFFIXES]
    lengths = {p.relative_to(root): len(p.read_text(encoding="utf-8").splitlines()) for p in files}
    for path, lines in sorted(lengths.items()):
        if lines > HARD_LIMIT:
            print(f"{path}: {lines} lines; at most {HARD_LIMIT}", file=sys.stderr)
    return 1 if max(lengths.values(), default=0) > HARD_LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
