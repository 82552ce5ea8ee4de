"""Reads the ```console blocks of a document, runs their commands and compares the shape of what they print.

    $ armillary verify --strategy ring --world 4      one command
    ring forward: exact. world 4, 30 ops in 4 steps   its output, standard error last
    ...                                               any lines
    $ armillary plan --strategy nonsense              # exits with 2

Two lines have the same shape if they are equal after every number is replaced by `#` and every run of blanks
by one; the `mfu` of a busy machine may be `-`. `python tests/documents/console_blocks.py docs/quickstart.md`
writes a document's outputs anew."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDERS = ("armillary", "cli", "cmake", "docs", "examples", "python", "recipes", "tests", "tools")
# Files of the project, as names from its root.
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for top in [*ROOT.glob("*.md"), *ROOT.glob("*.t*"), *(ROOT / folder for folder in FOLDERS)]
    for path in ([top] if top.is_file() else top.rglob("*"))
    if path.is_file() and path.suffix != ".pyc"
)
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
EXIT = re.compile(r"\s+# exits with (\d+)$")
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
ANY = "..."


@dataclasses.dataclass
class Command:
    text: str
    status: int
    expected: list


def commands(document):
    """All commands of a document, in order."""
    blocks = []
    for block in BLOCK.findall(document):
        for line in block.splitlines():
            if line.startswith("$ "):
                status = EXIT.search(line)
                blocks.append(Command(EXIT.sub("", line[2:]), int(status.group(1)) if status else 0, []))
            else:
                blocks[-1].expected.append(line)
    return blocks


def run(command, folder):
    """(exit code, lines) of a command. `runs/` of the command is below `folder`."""
    path = f"{ROOT / 'build' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-c", command.text.replace("runs/", f"{folder}/")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"PATH": path, "LC_ALL": "C"},
    )
    return result.returncode, (result.stdout + result.stderr).rstrip().splitlines()


def shape(line):
    line = line.replace("mfu: -", "mfu: 0%")
    return re.sub(r"\s+", " ", NUMBER.sub("#", line)).strip()


def same_shape(expected, lines):
    """Whether the lines agree, `...` standing for any number of lines."""
    if not expected:
        return not lines
    if expected[0] == ANY:
        return any(same_shape(expected[1:], lines[i:]) for i in range(len(lines) + 1))
    return bool(lines) and shape(expected[0]) == shape(lines[0]) and same_shape(expected[1:], lines[1:])


def written(document, folder):
    """The document with the outputs of today; those with `...` keep their own."""

    def block(match):
        lines = []
        for command in commands(match.group(0)):
            status = f"  # exits with {command.status}" if command.status else ""
            lines.append(f"$ {command.text}{status}")
            lines += command.expected if ANY in command.expected else run(command, folder)[1]
        return "```console\n" + "\n".join(lines) + "\n```"

    return BLOCK.sub(block, document)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        path.write_text(written(path.read_text(encoding="utf-8"), "runs"), encoding="utf-8")
