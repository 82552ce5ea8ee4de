"""Runs clang-tidy over every .cpp of a build's compile_commands.json, in parallel, remembering clean files.

    python3 tools/lint_tidy.py BUILD_FOLDER [FILE...]     paths of sources; default: all of ours

A file that was clean is not looked at again until it, a header of ours that it includes, the
configuration, the compile command or clang-tidy itself changes: one empty file per clean key in
$XDG_CACHE_HOME/armillary/tidy, or ~/.cache/armillary/tidy, for all checkouts.

Most of the time of a file goes into reading headers of others, which no check looks into. So if more than
two sources of one target and with equal commands are to be looked at, they are in batches, each one source
that includes them, as in a unity build. One or two are looked at alone, as are programs, and the sources of a
batch that does not compile. A source that two targets compile is looked at once.
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
CACHE = (
    pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "armillary" / "tidy"
)
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
# Sources with libtorch have these; the others the full list of .clang-tidy.
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
BATCH = 48
# In a batch, findings lie in included sources.
IN_SOURCES = r"--header-filter=/(armillary|cli|tests|examples)/[^ ]*\.(h|cpp)$"


@functools.cache
def headers_of(path):
    """Headers of ours that a file includes itself."""
    names = INCLUDE.findall(path.read_text(encoding="utf-8"))
    return [ROOT / name for name in names if (ROOT / name).is_file()]


@functools.cache
def digest_of(path):
    return hashlib.sha256(path.read_bytes()).digest()


def own_files(path):
    """`path` and all headers of ours that it includes, directly or not."""
    files = {path}
    waiting = [path]
    while waiting:
        new = set(headers_of(waiting.pop())) - files
        files |= new
        waiting += new
    return files


def configuration(path):
    """The .clang-tidy files that apply to `path`, nearest first."""
    return tuple(
        p / ".clang-tidy" for p in path.parents if (p / ".clang-tidy").is_file() and p.is_relative_to(ROOT)
    )


def key_of(path, command, version):
    digest = hashlib.sha256(version.encode() + repr(command).encode() + repr(TORCH_CHECKS).encode())
    for part in [*sorted(own_files(path)), *configuration(path)]:
        digest.update(str(part).removeprefix(str(ROOT)).encode() + b"\0" + digest_of(part))
    return digest.hexdigest()


def uses_torch(path):
    pattern = re.compile(r"^\s*#\s*include\s*<(torch|ATen|c10)/", re.MULTILINE)
    return any(pattern.search(p.read_text(encoding="utf-8")) for p in own_files(path))


@dataclasses.dataclass
class Source:
    """A source that is to be looked at."""

    path: pathlib.Path
    target: str  # the folder of its target's objects
    words: list[str]  # its compile command, without the object
    key: str  # of the file that says that it was clean


@dataclasses.dataclass
class Job:
    """Sources that one clang-tidy looks at: one, or a batch with a source of its own that includes them."""

    source: pathlib.Path
    build: pathlib.Path  # folder with the compile_commands.json of `source`
    name: str
    members: list[Source]


def alone(build, member):
    return Job(member.path, build, str(member.path.relative_to(ROOT)), [member])


def run_tidy(tidy, job):
    """(exit status, findings) of one clang-tidy."""
    # clang brings no omp.h; without OpenMP, torch's headers take their serial path; g++ has flags of its own,
    # and finds what is deprecated, which for clang is also in the library of g++.
    flags = ("-fno-openmp", "-Wno-unused-command-line-argument", "-Wno-deprecated-declarations")
    command = [tidy, "-p", str(job.build), "--quiet", str(job.source)]
    command += [f"--extra-arg={flag}" for flag in flags]
    checks = TORCH_CHECKS if any(uses_torch(member.path) for member in job.members) else []
    if len(job.members) > 1:  # a batch includes sources
        checks = [*checks, "-bugprone-suspicious-include"]
        command.append(IN_SOURCES)
    if checks:
        command.append("--checks=" + ",".join(checks))
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    findings = result.stdout
    if result.returncode != 0 and not findings.strip():
        findings = result.stderr  # clang-tidy itself failed
    return result.returncode, findings


def lint(tidy, build, job):
    """(exit status, findings, seconds) of a job, file by file if a batch does not compile."""
    start = time.monotonic()
    status, findings = run_tidy(tidy, job)
    if len(job.members) > 1 and "clang-diagnostic-error" in findings:
        results = [run_tidy(tidy, alone(build, member)) for member in job.members]
        status = max(status for status, _ in results)
        findings = "".join(findings for _, findings in results)
    return status, findings, time.monotonic() - start


def batch_of(build, number, members):
    """A job for several sources: one that includes them, with command and .clang-tidy of the first."""
    folder = build / "tidy" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "batch.cpp"
    source.write_text("".join(f'#include "{member.path}"\n' for member in members), encoding="utf-8")
    first = members[0]
    entry = {
        "directory": str(build.resolve()),
        "file": str(source),
        "arguments": [str(source) if word == str(first.path) else word for word in first.words],
    }
    (folder / "compile_commands.json").write_text(json.dumps([entry]), encoding="utf-8")
    shutil.copy(configuration(first.path)[0], folder)
    name = f"{first.path.parent.relative_to(ROOT)}: {', '.join(member.path.stem for member in members)}"
    return Job(source, folder, name, members)


def jobs_of(build, todo):
    """Jobs for sources: batches first, those of most text before others."""
    groups = {}
    single = []
    for source in todo:
        if "int main(" in source.path.read_text(encoding="utf-8"):
            single.append(source)
            continue
        # The names that are local to a file are unique in its target. Sources with libtorch get fewer checks.
        flags = tuple(word for word in source.words if word != str(source.path))
        kind = (not uses_torch(source.path), source.target, configuration(source.path), flags)
        groups.setdefault(kind, []).append(source)
    jobs = []
    for _, members in sorted(groups.items()):
        if len(members) <= 2:
            single += members
            continue
        batches = -(-len(members) // BATCH)
        for i in range(batches):
            begin, end = len(members) * i // batches, len(members) * (i + 1) // batches
            jobs.append(batch_of(build, len(jobs), members[begin:end]))
    jobs.sort(key=lambda job: -sum(member.path.stat().st_size for member in job.members))
    return jobs + [alone(build, source) for source in single]


def todo_of(build, paths, version):
    """The sources of a build that were not clean, each once, by path."""
    todo = {}
    clean = set()
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = pathlib.Path(entry["file"])
        if path in todo or path in clean or not path.is_file() or not path.is_relative_to(ROOT):
            continue
        if paths and path not in paths:
            continue
        # Object names do not change findings, nor does -fopenmp: run_tidy() turns it off.
        words = [word for word in shlex.split(entry["command"]) if word != "-fopenmp"]
        place = words.index("-o")
        target = words[place + 1].split(".dir/")[0]
        del words[place : place + 2]
        key = key_of(path, [word.replace(str(ROOT), ".") for word in words], version)
        if (CACHE / key).exists():
            clean.add(path)
        else:
            todo[path] = Source(path, target, words, key)
    return [todo[path] for path in sorted(todo)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("files", type=pathlib.Path, nargs="*")
    args = parser.parse_args()

    tidy = ROOT / ".venv" / "bin" / "clang-tidy"
    if not tidy.is_file():
        sys.exit("lint_tidy: .venv has no clang-tidy; run ./dev setup lint")
    version = subprocess.run([tidy, "--version"], capture_output=True, text=True, check=True).stdout

    todo = todo_of(args.build, {p.resolve() for p in args.files}, version)
    CACHE.mkdir(parents=True, exist_ok=True)
    jobs = jobs_of(args.build, todo)
    print(f"clang-tidy: {len(todo)} files to look at, in {len(jobs)} runs", flush=True)
    reported = set()
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(lint, tidy, args.build, job): job for job in jobs}
        for future in concurrent.futures.as_completed(running):
            job = running[future]
            status, findings, seconds = future.result()
            print(f"  {job.name} {seconds:.0f} s{'' if status == 0 else ' FAILED'}", flush=True)
            if status == 0:
                for member in job.members:
                    (CACHE / member.key).touch()
                continue
            failed += 1
            if findings not in reported:  # a header's finding comes back with every file that includes it
                reported.add(findings)
                print(findings, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
