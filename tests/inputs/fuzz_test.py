"""Changed files of every kind are read or refused in one line: a few inputs of tools/fuzz.py."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build" / "bin" / "armillary"
#: A busy machine is slow; the number of inputs is what ends a run.
SECONDS = 300

built = pytest.mark.skipif(
    not (PROGRAM.with_name("armillary-torch")).is_file(),
    reason="[SKIP] build/bin has no armillary-torch: ./dev build",
)


def fuzz(*words, program=PROGRAM):
    command = [sys.executable, ROOT / "tools" / "fuzz.py", *words, "--program", program, "--timeout", "100"]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=SECONDS)


@built
@pytest.mark.parametrize(("kind", "count"), [("tokenizer", 60), ("gguf", 25), ("jsonl", 60), ("shards", 25)])
def test_changed_files_are_read_or_refused_in_one_line(tmp_path, kind, count):
    finished = fuzz(kind, "--seed", 49, "--count", count, "--seconds", SECONDS, "--out", tmp_path / "kept")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    counts = re.search(r"(\d+) inputs in .*, (\d+) refused, (\d+) accepted, 0 faults", finished.stdout)
    inputs, refused, accepted = map(int, counts.groups())
    assert inputs == count == refused + accepted
    assert refused > 0 and accepted > 0, finished.stdout


@pytest.mark.parametrize(
    ("end", "fault"),
    [
        ("exit 1", "exit code 1"),
        ("kill -SEGV $$", "signal 11"),
        ("exit 2", "no line for a terminal"),
        ("printf 'armillary: a\\nb\\n' >&2; exit 2", "no line for a terminal"),
        ("echo 'armillary: std::bad_alloc' >&2; exit 2", "std::"),
    ],
)
def test_a_run_that_ends_otherwise_is_a_fault_that_is_kept(tmp_path, end, fault):
    """A program that reads the two valid files and fails at the first changed one."""
    program = tmp_path / "program"
    runs = tmp_path / "runs"
    program.write_text(f'#!/bin/sh\necho run >>"{runs}"\n[ "$(wc -l <"{runs}")" -le 2 ] && exit 0\n{end}\n')
    program.chmod(0o755)
    finished = fuzz("tokenizer", "--count", 1, "--out", tmp_path / "kept", program=program)
    assert finished.returncode == 1, finished.stderr
    assert fault in finished.stdout and "0 accepted, 1 faults" in finished.stdout
    assert (tmp_path / "kept" / "tokenizer-1-0" / "tokenizer.json").is_file()
