"""Runs clang-tidy over every .cpp of a build's compile_commands.json, in parallel, remembering clean files.

    python3 tools/lint_tidy.py BUILD_FOLDER [FILE...]     files as in the project; default: all of ours

A file that was clean is not looked at again until it, a header of ours that it includes, the
configuration, the compile command or clang-tidy itself changes (.cache/tidy: one empty file per clean key).
Exit code: 0 clean, 1 findings.
"""

import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "tidy"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)

# Each check walks the whole of torch's headers: all of them take 35 s a file, these 20 s. Files without
# torch get the full list of .clang-tidy.
TORCH_CHECKS = [
    "-*",
    "readability-identifier-naming",
    "readability-function-size",
    "modernize-use-override",
    "modernize-use-nullptr",
    "misc-unused-parameters",
    "bugprone-use-after-move",
    "bugprone-dangling-handle",
    "bugprone-unused-raii",
    "bugprone-undelegated-constructor",
]


@functools.cache
def own_files(path):
    """`path` and all headers of ours that it includes, directly or not."""
    found = {path}
    waiting = [path]
    while waiting:
        source = waiting.pop()
        for name in INCLUDE.findall(source.read_text(encoding="utf-8")):
            header = ROOT / name
            if header.is_file() and header not in found:
                found.add(header)
                waiting.append(header)
    return found


def configuration(path):
    """The .clang-tidy files that apply to `path`, nearest first."""
    return [
        p / ".clang-tidy" for p in path.parents if (p / ".clang-tidy").is_file() and p.is_relative_to(ROOT)
    ]


def key_of(path, command, version):
    digest = hashlib.sha256(version.encode() + repr(command).encode() + repr(TORCH_CHECKS).encode())
    for part in [*sorted(own_files(path)), *configuration(path)]:
        digest.update(part.relative_to(ROOT).as_posix().encode() + b"\0" + part.read_bytes() + b"\0")
    return digest.hexdigest()


def uses_torch(path):
    pattern = re.compile(r"^\s*#\s*include\s*<(torch|ATen|c10)/", re.MULTILINE)
    return any(pattern.search(p.read_text(encoding="utf-8")) for p in own_files(path))


def lint(tidy, build, path):
    """(exit status, findings, seconds) of clang-tidy on one file."""
    # clang brings no omp.h; without it, torch's headers take their serial path.
    command = [tidy, "-p", str(build), "--quiet", "--extra-arg=-fno-openmp", str(path)]
    if uses_torch(path):
        command += ["--checks=" + ",".join(TORCH_CHECKS), "--extra-arg=-fdelayed-template-parsing"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    findings = done.stdout
    if done.returncode != 0 and not findings.strip():
        findings = done.stderr  # clang-tidy itself failed
    return done.returncode, findings, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("files", type=pathlib.Path, nargs="*")
    args = parser.parse_args()

    tidy = shutil.which("clang-tidy-14") or shutil.which("clang-tidy")
    if tidy is None:
        sys.exit("lint_tidy: clang-tidy is not installed; run ./dev setup lint")
    version = subprocess.run([tidy, "--version"], capture_output=True, text=True, check=True).stdout

    wanted = {p.resolve() for p in args.files}
    todo = []
    for entry in json.loads((args.build / "compile_commands.json").read_text(encoding="utf-8")):
        path = pathlib.Path(entry["file"])
        if not path.is_file() or not path.is_relative_to(ROOT) or (wanted and path not in wanted):
            continue
        # The object's name and place say nothing about the findings, nor does what `lint` takes away.
        words = shlex.split(entry["command"])
        command = [word for word in words if not word.endswith(".o") and word != "-fopenmp"]
        key = key_of(path, [word.replace(str(ROOT), ".") for word in command], version)
        if not (CACHE / key).exists():
            todo.append((path, key))

    CACHE.mkdir(parents=True, exist_ok=True)
    todo.sort(key=lambda item: (not uses_torch(item[0]), item[0]))  # the slow ones first
    print(f"clang-tidy: {len(todo)} files to look at", flush=True)
    reported = set()
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {pool.submit(lint, tidy, args.build, path): (path, key) for path, key in todo}
        for job in concurrent.futures.as_completed(jobs):
            path, key = jobs[job]
            status, findings, seconds = job.result()
            print(
                f"  {path.relative_to(ROOT)} {seconds:.0f} s{'' if status == 0 else ' FAILED'}",
                flush=True,
            )
            if status == 0:
                (CACHE / key).touch()
                continue
            failed += 1
            if findings not in reported:  # a header's finding comes back with every file that includes it
                reported.add(findings)
                print(findings, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
