"""Renews the tables of docs/validation.md.

python3 tools/validation.py build-plan/bin/armillary
"""

import pathlib
import subprocess
import sys

LINE = "<!-- What follows is printed by `armillary validate`. -->\n\n"


def main():
    path = pathlib.Path(__file__).parent.parent / "docs" / "validation.md"
    prose = path.read_text().split(LINE)[0]
    printed = subprocess.run([sys.argv[1], "validate"], check=True, capture_output=True, text=True)
    path.write_text(prose + LINE + printed.stdout)


if __name__ == "__main__":
    main()
