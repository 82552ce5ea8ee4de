"""Renews tests/golden/validate.txt, and the errors of each source at the end of docs/validation.md.

python3 tools/validation.py build-plan/bin/armillary
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / "docs" / "validation.md"
GOLDEN = ROOT / "tests" / "golden" / "validate.txt"
LINE = "<!-- What follows is an excerpt of what `armillary simulate --published` prints. -->\n\n"


def excerpt(printed):
    """The errors of each source."""
    lines = ["| source | errors, without their signs |", "|---|---|"]
    for source in re.split(r"^## ", printed, flags=re.MULTILINE)[2:]:
        errors = re.search(r"^Fitted: .*$", source, flags=re.MULTILINE).group()
        lines.append(f"| {source.splitlines()[0]} | {errors.replace('|error| ', '')} |")
    return "\n".join(lines) + "\n"


def main():
    printed = subprocess.run(
        [sys.argv[1], "simulate", "--published"], check=True, capture_output=True, text=True
    ).stdout
    GOLDEN.write_text(printed, encoding="utf-8")
    prose = PAGE.read_text(encoding="utf-8").split(LINE)[0]
    PAGE.write_text(prose + LINE + excerpt(printed), encoding="utf-8")


if __name__ == "__main__":
    main()
