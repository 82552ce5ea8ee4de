"""Runs clang-tidy over every .cpp of a build's compile_commands.json, in parallel, remembering clean files.

    python3 tools/lint_tidy.py BUILD_FOLDER [FILE...]     files as in the project; default: all of ours

A file that was clean is not looked at again until it, a header of ours that it includes, the
configuration, the compile command or clang-tidy itself changes (.cache/tidy: one empty file per clean key).

Reading libtorch's headers is nearly all of the time of a file that includes them: 10 sources of a folder
together take as long as one. So if more than two such sources with equal commands are to be looked at,
batches of 16 are, each as one source that includes them. One or two are looked at alone, as are programs
and all sources without libtorch.
Exit code: 0 clean, 1 findings.
"""

import argparse
import concurrent.futures
import dataclasses
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


BATCH = 16
# In a batch, findings lie in included sources.
IN_SOURCES = r"--header-filter=/(armillary|cli|tests|bench|examples)/[^ ]*\.(h|cpp)$"


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


@dataclasses.dataclass
class Job:
    """Sources that one clang-tidy looks at: one, or a batch with a source of its own that includes them."""

    source: pathlib.Path
    build: pathlib.Path  # folder with the compile_commands.json of `source`
    keys: list[str]
    name: str
    batch: bool = False


def lint(tidy, job):
    """(exit status, findings, seconds) of clang-tidy on one job."""
    # clang brings no omp.h; without it, torch's headers take their serial path.
    command = [tidy, "-p", str(job.build), "--quiet", "--extra-arg=-fno-openmp", str(job.source)]
    if job.batch:
        command += [IN_SOURCES, f"--config-file={ROOT / '.clang-tidy'}"]
    if job.batch or uses_torch(job.source):
        command += ["--checks=" + ",".join(TORCH_CHECKS), "--extra-arg=-fdelayed-template-parsing"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    findings = done.stdout
    if done.returncode != 0 and not findings.strip():
        findings = done.stderr  # clang-tidy itself failed
    return done.returncode, findings, time.monotonic() - start


def batch_of(build, number, members):
    """A job for several (path, words, key): a source that includes them, with the command of the first."""
    folder = build / "tidy" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "batch.cpp"
    source.write_text("".join(f'#include "{path}"\n' for path, _, _ in members), encoding="utf-8")
    path, words, _ = members[0]
    entry = {
        "directory": str(build.resolve()),
        "file": str(source),
        "arguments": [str(source) if word == str(path) else word for word in words],
    }
    (folder / "compile_commands.json").write_text(json.dumps([entry]), encoding="utf-8")
    name = f"{path.parent.relative_to(ROOT)}: {', '.join(path.stem for path, _, _ in members)}"
    return Job(source, folder, [key for _, _, key in members], name, batch=True)


def jobs_of(build, todo):
    """Jobs for (path, words, key), the slow ones first."""
    groups = {}
    alone = []
    for path, words, key in todo:
        if not uses_torch(path) or "int main(" in path.read_text(encoding="utf-8"):
            alone.append((path, key))
            continue
        # Tests apart from sources, and each program's own definitions apart, as they are linked.
        flags = [word for word in words if word != str(path)]
        kind = (path.parent, path.stem.endswith("_test"), tuple(flags))
        groups.setdefault(kind, []).append((path, words, key))
    jobs = []
    for members in groups.values():
        if len(members) <= 2:
            alone = [(path, key) for path, _, key in members] + alone
            continue
        for begin in range(0, len(members), BATCH):
            jobs.append(batch_of(build, len(jobs), members[begin : begin + BATCH]))
    return jobs + [Job(path, build, [key], str(path.relative_to(ROOT))) for path, key in alone]


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
            todo.append((path, command, key))

    CACHE.mkdir(parents=True, exist_ok=True)
    jobs = jobs_of(args.build, sorted(todo))
    print(f"clang-tidy: {len(todo)} files to look at, in {len(jobs)} runs", flush=True)
    reported = set()
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(lint, tidy, job): job for job in jobs}
        for done in concurrent.futures.as_completed(running):
            job = running[done]
            status, findings, seconds = done.result()
            print(f"  {job.name} {seconds:.0f} s{'' if status == 0 else ' FAILED'}", flush=True)
            if status == 0:
                for key in job.keys:
                    (CACHE / key).touch()
                continue
            failed += 1
            if findings not in reported:  # a header's finding comes back with every file that includes it
                reported.add(findings)
                print(findings, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
