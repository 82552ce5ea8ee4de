"""Gives changed files to the program and finds those that it neither reads nor refuses in one line.

    python3 tools/fuzz.py KIND [--seconds S] [--seed N] [--count N]

KIND is tokenizer, gguf, jsonl or shards. Each input is a small valid file with a few changes, drawn from the
seed and its number. The program must end in time with exit code 0, or with 2 and one line on standard error.
An input on which it does not is kept under --out, and the command to repeat it is printed. Exit code: 0 no
fault, 1 faults, 2 bad input.
"""

import argparse
import itertools
import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import unicodedata

from fuzzing import files
from fuzzing.kinds import KINDS

ROOT = pathlib.Path(__file__).resolve().parent.parent
#: Words of libraries, of broken invariants, and of processes that ended by themselves.
FOREIGN = ["std::", "json.exception", "basic_string", "vector::", "map::at", "filesystem error", "bad_alloc"]
FOREIGN += ["invariant broken", "c10::", "Traceback", "terminate", "Sanitizer"]
MOST_BYTES = 4 << 30  # that the program may allocate
MOST_LINE = 8100  # bytes of an error


class Runner:
    """Runs the program in a folder that holds an input and nothing else; None: it did not end in time."""

    def __init__(self, program, folder, timeout):
        self.program, self.folder, self.timeout = program, folder, timeout

    def __call__(self, contents, command):
        shutil.rmtree(self.folder, ignore_errors=True)
        base = {"text.txt": files.TEXT.encode(), "recipe.toml": files.RECIPE.encode()}
        for name, data in (base | contents).items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        words = [self.program, *command]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        options = {"cwd": self.folder, "env": environment, "timeout": self.timeout}
        try:
            return subprocess.run(words, capture_output=True, **options)
        except subprocess.TimeoutExpired:
            return None


def fault_of(finished):
    """Why a run is none that the program promises; empty if it is one."""
    if finished is None:
        return "it did not end in time"
    code, error = finished.returncode, finished.stderr
    if code < 0:
        return f"it ended by signal {-code}"
    if code not in (0, 2):
        return f"exit code {code}: {error.decode(errors='replace').strip()}"
    try:
        text = error.decode()
    except UnicodeDecodeError as reason:
        return f"standard error is not UTF-8: {reason}"
    word = next((word for word in FOREIGN if word in text), None)
    if word:
        return f"{word} in: {text.strip()}"
    line = text.removesuffix("\n")
    is_line = line != text and line.startswith("armillary: ") and len(line.splitlines()) == 1
    is_line = is_line and len(error) < MOST_LINE and not any(unicodedata.category(c) == "Cc" for c in line)
    return "" if code == 0 or is_line else f"no line for a terminal: {text!r}"


def words_of_shell(folder, program, command):
    quoted = [word if word.isalnum() else f"'{word}'" for word in command]
    return f"cd {folder} && {program} {' '.join(quoted)}"


def main(arguments):
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with tempfile.TemporaryDirectory(prefix="armillary_fuzz_") as scratch:
        run = Runner(arguments.program, pathlib.Path(scratch) / "input", arguments.timeout)
        kind = KINDS[arguments.kind](run)
        for contents, command in kind.valid():
            finished = run(contents, command)
            if finished is None or finished.returncode != 0:
                print(f"fuzz: a valid file is refused by {' '.join(command)}: {finished}", file=sys.stderr)
                return 2
        counts = {"refused": 0, "accepted": 0, "faults": 0}
        begin = time.monotonic()
        for number in itertools.count(arguments.first):
            if time.monotonic() - begin > arguments.seconds or number - arguments.first == arguments.count:
                break
            contents, command = kind.changed(random.Random(f"{arguments.kind} {arguments.seed} {number}"))
            finished = run(contents, command)
            fault = fault_of(finished)
            if not fault:
                counts["accepted" if finished.returncode == 0 else "refused"] += 1
                continue
            counts["faults"] += 1
            folder = arguments.out.resolve() / f"{arguments.kind}-{arguments.seed}-{number}"
            shutil.copytree(run.folder, folder, dirs_exist_ok=True)
            print(f"fault {fault[:2000]}\n  {words_of_shell(folder, run.program, command)}", flush=True)
    seconds, texts = time.monotonic() - begin, ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{arguments.kind}: {sum(counts.values())} inputs in {seconds:.0f} s, {texts}")
    return 1 if counts["faults"] else 0


def parsed(words):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=60, help="time of all inputs [60]")
    parser.add_argument("--seed", type=int, default=1, help="another seed draws other inputs [1]")
    parser.add_argument("--first", type=int, default=0, help="number of the first input [0]")
    parser.add_argument("--count", type=int, default=-1, help="inputs at most [any]")
    parser.add_argument("--timeout", type=float, default=20, help="seconds that a run may take [20]")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "bin" / "armillary")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "fuzz")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(parsed(sys.argv[1:])))
