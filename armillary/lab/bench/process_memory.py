"""Peak memory of running processes, as the system counts it.

`VmHWM` of a process is the most that it held, shared pages of libraries included; the sum of `Pss` counts a
page that n processes share as a part of n in each. Private memory is what is resident but for pages of files,
such as libraries: a page that forks share, and shared memory, count in each that has them."""

import contextlib
import pathlib
import threading
import time

LOOK_S = 0.05
START_LOOK_S = 0.01  # until the ranks of a run have met


def sizes(pid="self", file="status"):
    """Bytes by name, of the lines `name: N kB` of /proc/PID/FILE; none if the process has ended."""
    with contextlib.suppress(OSError):
        lines = (pathlib.Path("/proc") / str(pid) / file).read_text(encoding="utf-8").splitlines()
        fields = [line.partition(":") for line in lines if line.endswith(" kB")]
        return {name: 1024 * int(value.split()[0]) for name, _, value in fields}
    return {}


def private(kinds):
    """Private memory of a process with those sizes."""
    return kinds.get("VmRSS", 0) - kinds.get("RssFile", 0)


def private_peak(kinds):
    """The most that it was: pages of files are those of now, and files stay mapped."""
    return kinds.get("VmHWM", 0) - kinds.get("RssFile", 0)


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
    largest sum of Pss, which is looked at every `pss_s` seconds, or never. `private_peaks` are those of
    private memory; `before` is what that was just before rank 0 locked `run_folder`, as `armillary train`
    does when its ranks have met and its data is read, before parameters are made and the step is proved."""

    def __init__(self, program, mark, count, pss_s=None, run_folder=None):
        self.program, self.mark, self.count, self.pss_s = program, mark, count, pss_s
        self.lock = run_folder and pathlib.Path(run_folder) / "lock"
        self.peaks, self.private_peaks, self.before, self.pss_bytes = {}, {}, {}, 0
        self.met = False
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

    def private_peak_bytes(self):
        return sum(self.private_peaks.values())

    def before_bytes(self):
        """All processes together, or None if one was not seen then."""
        complete = self.met and len(self.before) == self.count and self.before.keys() == self.peaks.keys()
        return sum(self.before.values()) if complete else None

    def _look(self):
        pids, next_s = [], 0
        while not self.done.wait(START_LOOK_S if self.lock and not self.met else LOOK_S):
            if len(pids) < self.count:
                pids = processes_of(self.program, self.mark)
            look = {pid: sizes(pid) for pid in pids}
            for pid, of_process in look.items():
                self.peaks[pid] = max(self.peaks.get(pid, 0), of_process.get("VmHWM", 0))
                self.private_peaks[pid] = max(self.private_peaks.get(pid, 0), private_peak(of_process))
            if self.lock and not self.met:
                self.met = self.lock.exists()  # after the look, which else counts as one before
                if not self.met:
                    self.before = {pid: private(of_process) for pid, of_process in look.items()}
            if self.pss_s is not None and time.monotonic() >= next_s:
                self.pss_bytes = max(
                    self.pss_bytes, sum(sizes(pid, "smaps_rollup").get("Pss", 0) for pid in pids)
                )
                next_s = time.monotonic() + self.pss_s
