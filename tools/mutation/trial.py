"""Runs mutants through the test programs of a build, and says what became of them."""

import dataclasses
import pathlib
import threading

from . import build as building
from .mutant import Mutant


@dataclasses.dataclass
class Verdict:
    """What became of a mutant: killed, survived, same (it compiles to the same code) or not compiled."""

    mutant: Mutant
    kind: str
    by: str = ""

    def line(self):
        where = f"{self.mutant.file}:{self.mutant.line}"
        text = f"{self.kind:12} {where} {self.by}\n    - {self.mutant.before.strip()}\n"
        return text + f"    + {self.mutant.after.strip()}"

    def record(self):
        return dataclasses.asdict(self)


class Trial:
    """Runs mutants through the test programs of one build."""

    def __init__(self, build, jobs):
        self.build = build
        self.jobs = jobs
        self.free = [build.folder / "mutants" / str(i) for i in range(jobs)]
        self.lock = threading.Lock()
        self.seconds = {}

    def measure(self):
        """Runs every test program without a mistake; returns those that fail."""
        failures = []
        for program in self.build.links:
            folder = self.build.folder / "mutants" / "unchanged"
            folder.mkdir(parents=True, exist_ok=True)
            failed, seconds = building.run_tests(self.build.folder / "bin" / program, folder, 1800)
            self.seconds[program] = seconds
            print(f"unchanged    {program}: {seconds:.1f} s", flush=True)
            if failed:
                failures.append(f"{program}: {failed}")
        return failures

    def programs(self, file):
        """Test programs that link `file`: its folder's own first, then the fastest."""
        linked = [p for p in self.build.links if self.build.touched(p, file)]
        own = {f"armillary_{part}_test" for part in pathlib.PurePath(file).parts[:-1]}
        return sorted(linked, key=lambda p: (p not in own, self.seconds[p]))

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
        programs = self.programs(mutant.file)
        differs = False
        # Objects that take long to compile only if the others noticed nothing.
        for slow in (False, True):
            for program in programs:
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
                patience = 5 * self.seconds[program] + building.PATIENCE_S
                failed, _ = building.run_tests(linked, overlay.folder, patience)
                if failed:
                    return Verdict(mutant, "killed", f"by {program}: {failed}")
        if not differs:
            return Verdict(mutant, "same")
        return Verdict(mutant, "survived", f"{len(programs)} test programs")
