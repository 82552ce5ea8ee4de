"""Peak memory of running processes, as the system counts it.

`VmHWM` of a process is the most that it held, shared pages of libraries included; the sum of `Pss` counts a
page that n processes share as a part of n in each."""

import contextlib
import pathlib
import threading
import time

LOOK_S = 0.05


def field(pid, file, name):
    """Bytes of a line `name: N kB` of /proc/PID/FILE, or 0: the process may have ended."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = (pathlib.Path("/proc") / str(pid) / file).read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])
    return 0


def peak_bytes(pid="self"):
    return field(pid, "status", "VmHWM")


def forget_peak():
    """This process's peak begins anew, where the system allows it."""
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def processes_of(program, mark):
    """Pids of the processes of a program whose command line has the mark."""
    pids = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if words.split(b"\0")[0].endswith(program.encode()) and mark.encode() in words:
                pids.append(int(process.name))
    return pids


class Watch:
    """Looks at the processes of a run until the block ends: `peaks` has VmHWM by pid, `pss_bytes` the
    largest sum of Pss, which is looked at every `pss_s` seconds, or never."""

    def __init__(self, program, mark, count, pss_s=None):
        self.program, self.mark, self.count, self.pss_s = program, mark, count, pss_s
        self.peaks, self.pss_bytes = {}, 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()

    def peak_bytes(self):
        """All processes together."""
        return sum(self.peaks.values())

    def _look(self):
        pids, next_s = [], 0
        while not self.done.wait(LOOK_S):
            if len(pids) < self.count:
                pids = processes_of(self.program, self.mark)
            for pid in pids:
                self.peaks[pid] = max(self.peaks.get(pid, 0), peak_bytes(pid))
            if self.pss_s is not None and time.monotonic() >= next_s:
                self.pss_bytes = max(self.pss_bytes, sum(field(pid, "smaps_rollup", "Pss") for pid in pids))
                next_s = time.monotonic() + self.pss_s
