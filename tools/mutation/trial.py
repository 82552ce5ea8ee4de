"""Runs mutants through the test programs of a build, and says what became of them."""

import dataclasses
import json
import pathlib
import threading

from . import build as building
from .mutant import Mutant

LONGEST_S = 1800


class FailsAnywayError(Exception):
    """A test program fails without any mistake, so it can say nothing of mutants."""


@dataclasses.dataclass
class Verdict:
    """The fate of a mutant: killed, survived, same (it compiles to the same code) or not compiled."""

    mutant: Mutant
    kind: str
    by: str = ""

    def line(self):
        where = f"{self.mutant.file}:{self.mutant.line}"
        text = f"{self.kind:12} {where} {self.by}\n    - {self.mutant.before.strip()}\n"
        return text + f"    + {self.mutant.after.strip()}"

    def record(self):
        return dataclasses.asdict(self)


class Known:
    """Seconds of programs that passed, in a file, for as long as they are not built again."""

    def __init__(self, path):
        self.path = path
        self.lock = threading.Lock()
        self.of = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def get(self, program):
        built, seconds = self.of.get(program.name, (None, None))
        return seconds if built == program.stat().st_mtime_ns else None

    def put(self, program, seconds):
        with self.lock:
            self.of[program.name] = (program.stat().st_mtime_ns, seconds)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.of), encoding="utf-8")


class Trial:
    """Runs mutants through the test programs of one build."""

    def __init__(self, build, jobs, own_only=False):
        self.build = build
        self.own_only = own_only
        self.jobs = jobs
        self.free = [build.folder / "mutants" / str(i) for i in range(jobs)]
        self.lock = threading.Lock()
        self.known = Known(build.folder / "mutants" / "seconds.json")
        self.locks = {program: threading.Lock() for program in build.links}

    def seconds_of(self, program):
        """Seconds that a test program takes without a mistake; runs it when it is asked for first."""
        path = self.build.folder / "bin" / program
        with self.locks[program]:
            seconds = self.known.get(path)
            if seconds is None:
                folder = self.build.folder / "mutants" / f"unchanged_{program}"
                folder.mkdir(parents=True, exist_ok=True)
                failed, seconds = building.run_tests(path, self.build.folder, folder, LONGEST_S)
                if failed:
                    raise FailsAnywayError(f"{program}: {failed}")
                print(f"unchanged    {program}: {seconds:.1f} s", flush=True)
                self.known.put(path, seconds)
            return seconds

    def linking(self, file):
        """Test programs that link `file`; with `own_only` those of its folder, if it has any."""
        linked = [p for p in self.build.links if self.build.touched(p, file)]
        own = self.own(file)
        return [p for p in linked if p in own] or linked if self.own_only else linked

    @staticmethod
    def own(file):
        return {f"armillary_{part}_test" for part in pathlib.PurePath(file).parts[:-1]}

    def programs(self, file):
        """Test programs that link `file`, one after the other: its folder's own, then the fastest."""
        own = self.own(file)
        linking = self.linking(file)
        yield from [p for p in linking if p in own]
        yield from sorted([p for p in linking if p not in own], key=self.seconds_of)

    def run(self, mutant):
        with self.lock:
            folder = self.free.pop()
        try:
            return self._run(mutant, building.Overlay(self.build, folder))
        except building.NotCompiledError:
            return Verdict(mutant, "not compiled")
        finally:
            with self.lock:
                self.free.append(folder)

    def _run(self, mutant, overlay):
        text = mutant.source((self.build.root / mutant.file).read_text(encoding="utf-8"))
        if text is None:
            return Verdict(mutant, "gone", "the line has changed")
        overlay.change(mutant.file, text)
        differs = False
        # Objects that take long to compile only if the others noticed nothing.
        for slow in (False, True):
            for program in self.programs(mutant.file):
                touched = self.build.touched(program, mutant.file)
                late = [o for o in touched if self.build.seconds.get(o, 0) > building.SLOW_COMPILE_S]
                if slow and not late:
                    continue
                now = touched if slow or len(late) == len(touched) else [o for o in touched if o not in late]
                changed = [overlay.compile(output) for output in now]
                if not any(changed):
                    continue
                differs = True
                linked = overlay.link(program, now)
                patience = 5 * self.seconds_of(program) + building.PATIENCE_S
                failed, _ = building.run_tests(linked, self.build.folder, overlay.folder, patience)
                if failed:
                    return Verdict(mutant, "killed", f"by {program}: {failed}")
        if not differs:
            return Verdict(mutant, "same")
        return Verdict(mutant, "survived", f"{len(self.linking(mutant.file))} test programs")
