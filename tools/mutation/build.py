"""Compiles and links one changed file into the test programs of a build; the checkout stays as it is.

A changed file lies in a folder of its own that is searched before the checkout. The objects that include it
are compiled again there, and a test program is linked with its usual command, those objects first: a
library's member that defines nothing missing is not taken.
"""

import collections
import functools
import json
import os
import pathlib
import re
import resource
import shlex
import subprocess
import time

SLOW_COMPILE_S = 25  # Objects that take longer are compiled again only if the others noticed nothing.
PATIENCE_S = 20  # Beyond five times the seconds of the tests without a mistake.
MEMORY_BYTES = 12 << 30
FILE_BYTES = 1 << 30


@functools.cache
def cpu_flags():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        return set(re.search(r"^flags\s*:(.*)$", info.read(), re.MULTILINE)[1].split())


class NotCompiledError(Exception):
    """The changed source does not compile or link."""


class Build:
    """A build folder as ninja knows it: objects, their sources and commands, programs and their parts."""

    def __init__(self, root, folder):
        self.root = pathlib.Path(root)
        self.folder = pathlib.Path(folder)
        entries = json.loads((self.folder / "compile_commands.json").read_text(encoding="utf-8"))
        self.commands = {}
        self.source_of = {}
        for entry in entries:
            command = shlex.split(entry["command"])
            output = command[command.index("-o") + 1]
            self.commands[output] = command
            self.source_of[output] = os.path.relpath(entry["file"], self.root)
        self.objects_of_library = collections.defaultdict(list)
        for output in self.commands:
            target = re.search(r"^(.*?)CMakeFiles/([^/]+)\.dir/", output)
            self.objects_of_library[f"{target[1]}lib{target[2]}.a"].append(output)
        self.dependents = self._read_dependents()
        self.seconds = self._read_log()
        self.links = {}
        for target in self._test_targets():
            self.links[target] = shlex.split(self._ninja("-t", "commands", f"bin/{target}").splitlines()[-1])

    def _ninja(self, *arguments):
        return subprocess.run(
            ["ninja", "-C", str(self.folder), "--quiet", *arguments],
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def _test_targets(self):
        targets = {line.split(":")[0] for line in self._ninja("-t", "targets", "all").splitlines()}
        return sorted(t[4:] for t in targets if re.fullmatch(r"bin/armillary_\w+_test", t))

    def _read_dependents(self):
        """Objects by the files of ours that they are made of."""
        dependents = collections.defaultdict(set)
        current = None
        for line in self._ninja("-t", "deps").splitlines():
            if line and not line.startswith(" "):
                current = line.split(":")[0]
            elif line.strip() and current in self.commands:
                path = os.path.normpath(self.folder / line.strip())
                if path.startswith(f"{self.root}/"):
                    dependents[os.path.relpath(path, self.root)].add(current)
        for output, source in self.source_of.items():
            dependents[source].add(output)
        return dependents

    def _read_log(self):
        """Seconds that each object took to compile when it was last built."""
        seconds = {}
        for line in (self.folder / ".ninja_log").read_text(encoding="utf-8").splitlines()[1:]:
            start, end, _, output, _ = line.split("\t")
            seconds[output] = (int(end) - int(start)) / 1000
        return seconds

    def runs_here(self, output):
        """False if the object is of an instruction set that this CPU does not have."""
        flags = {o[2:] for o in self.commands[output] if re.fullmatch(r"-m(avx|amx)[a-z0-9-]*", o)}
        names = {w.replace("avx512bf16", "avx512_bf16").replace("-", "_") for w in flags}
        return names <= cpu_flags()

    def parts(self, program):
        """The objects of ours that a test program is linked from."""
        objects = []
        for word in self.links[program]:
            if word in self.commands:
                objects.append(word)
            elif word in self.objects_of_library:
                objects += self.objects_of_library[word]
        return objects

    def touched(self, program, file):
        """Objects of `program` that must be compiled again when `file` changes."""
        affected = self.dependents[file]
        return [part for part in self.parts(program) if part in affected and self.runs_here(part)]


class Overlay:
    """One changed file, and what was compiled and linked with it, in a folder emptied for the next."""

    def __init__(self, build, folder):
        self.build = build
        self.folder = pathlib.Path(folder)
        self.objects = {}

    def change(self, file, text):
        subprocess.run(["rm", "-rf", self.folder], check=True)
        path = self.folder / "source" / file
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        (self.folder / "objects").mkdir()
        self.objects = {}

    def compile(self, output):
        """Compiles one object again. True if it is another program than before."""
        if output in self.objects:
            return self.objects[output] is not None
        build = self.build
        changed = self.folder / "source"
        target = self.folder / "objects" / output.replace("/", "_")
        command = list(build.commands[output])
        command[command.index("-o") + 1] = str(target)
        if (changed / build.source_of[output]).exists():
            command[-1] = str(changed / build.source_of[output])
        compiler = next(i for i, word in enumerate(command) if word.endswith("++"))
        # Warnings are errors in our builds: a mutant that only warns is a mutant that the build notices.
        command[compiler + 1 : compiler + 1] = [f"-I{changed}", f"-ffile-prefix-map={changed}={build.root}"]
        result = subprocess.run(command, cwd=build.folder, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise NotCompiledError(result.stderr)
        same = target.read_bytes() == (build.folder / output).read_bytes()
        self.objects[output] = None if same else target
        return not same

    def link(self, program, outputs):
        """Links a test program with what was compiled again of `outputs`; None if nothing of it differs."""
        replaced = {o: self.objects[o] for o in outputs if self.objects.get(o) is not None}
        if not replaced:
            return None
        command = []
        for word in self.build.links[program]:
            if word not in replaced:
                command.append(word)
        inside = command.index("-o")
        command[inside:inside] = [str(path) for path in replaced.values()]
        target = self.folder / program
        command[command.index("-o") + 1] = str(target)
        words = [word for word in command if word not in (":", "&&")]
        result = subprocess.run(words, cwd=self.build.folder, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise NotCompiledError(result.stderr)
        return target


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_tests(program, folder, output_folder, timeout_s):
    """Runs a test program in `folder` to its first failure. Returns (what failed or None, seconds)."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", GTEST_FAIL_FAST="1", GTEST_BRIEF="1")
    for name in [n for n in environment if n.startswith("ARMILLARY_TEST")]:
        del environment[name]
    begin = time.monotonic()
    with open(pathlib.Path(output_folder) / "output", "w+", encoding="utf-8", errors="replace") as output:
        try:
            code = subprocess.run(
                [str(program)],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                preexec_fn=limit,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return f"no end in {timeout_s:.0f} s", time.monotonic() - begin
        seconds = time.monotonic() - begin
        if code == 0:
            return None, seconds
        output.seek(0)
        failed = re.search(r"\[  FAILED  \] ([\w/.]+)", output.read())
        return (failed[1] if failed else f"exit code {code}"), seconds
