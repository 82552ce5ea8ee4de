"""Runs of the program that a fault strikes, and all that such a run may leave behind.

with Run(folder, engine="mpi", world=3) as run:
    run.wait_for_step(3)
    run.strike(1, signal.SIGKILL)
    ending = run.end()          how, after how many seconds, and what is left
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "bin" / "armillary"
ENGINES = ("mpi", "c10d")
LIMIT_S = 120  # a run that takes longer to start or to end hangs
LAST_S = 30  # for processes that outlive their launcher
MARKS = (b"armillary-torch", b"armillary-bench")
OPS = slice(3584, 67584)  # of a flight file, armillary/host/recorder/format.h
VARIABLE = "ARMILLARY_TEST_RUN"  # the folder of the run, for processes without it in their command line


def why_not(engine):
    """The reason why runs on this engine are not possible here, or an empty text."""
    if not PROGRAM.is_file():
        return "build/bin/armillary is not built: ./dev build"
    return "no MPI: ./dev setup mpi" if engine == "mpi" and shutil.which("mpirun") is None else ""


def train(folder, world, deadline_s, **keys):
    """The words of `train` with a small recipe. Keys have two underscores for the dot."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_bytes(b"a" * 4000 + b"b" * 4000)
    settings = {
        "training.dataset_path": text,
        "job.dump_folder": folder / "run",
        "parallelism.context_parallel_degree": world,
        "training.steps": 100000,
        "training.seq_len": 192,
        "model.dim": 32,
        "model.n_layers": 2,
        "lr_scheduler.warmup_steps": 1,
        "comm.train_timeout_seconds": deadline_s,
    } | {key.replace("__", "."): value for key, value in keys.items()}
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["train", str(ROOT / "recipes" / "default.toml"), *flags]


def command(engine, world, words):
    """The command line that runs the words on the engine."""
    if engine == "threads":
        return [str(PROGRAM), *words]
    return [str(PROGRAM), "launch", "-n", str(world), "--engine", engine, "--", *words]


def preloaded(folder, name):
    """A source beside this file as a library for ranks. Compiled where the run lies."""
    source = pathlib.Path(__file__).with_name(name)
    library = folder / source.with_suffix(".so").name
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


def words_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def variable_of(pid, names):
    """The value of the first of these variables that the process has, or None."""
    try:
        entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    values = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
    return next((values[name].decode() for name in map(str.encode, names) if name in values), None)


def processes_of(folder):
    """Pids of all processes of the run in the folder: launchers, mpirun, ranks."""
    mark = str(folder)
    pids = [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()]
    pids.remove(os.getpid())
    return [pid for pid in pids if mark.encode() in words_of(pid) or variable_of(pid, [VARIABLE]) == mark]


def sockets_of(pids):
    """Numbers of the sockets that processes hold."""
    numbers = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(entry)
                    if target.startswith("socket:["):
                        numbers.add(target[8:-1])
    return numbers


def sockets_there():
    """Numbers of the sockets of this machine that listen, or that are connected."""
    numbers = set()
    for name, column in (("tcp", 9), ("tcp6", 9), ("unix", 6)):
        with contextlib.suppress(OSError):
            for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                numbers.add(line.split()[column])
    return numbers


@dataclasses.dataclass
class Ending:
    code: int  # negative: the signal that ended the launcher
    seconds: float  # from the fault to the end of every process
    output: str
    left: list  # texts about what the run has left

    def cause(self):
        """The line that names the root cause; empty without one."""
        lines = [line for line in self.output.splitlines() if line.startswith("armillary: launch: ")]
        return lines[0] if len(lines) == 1 else ""


class Run:
    """One run of `train`. Everything that it leaves is looked for at its end, and removed."""

    def __init__(self, folder, engine, world, deadline_s=2, preload=None, words=None, **keys):
        self.folder = pathlib.Path(folder)
        self.engine = engine
        self.world = world
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.words = words or train(self.folder, world, deadline_s, **keys)
        self.env = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary)}
        self.env[VARIABLE] = str(self.folder)
        if preload:
            self.env["LD_PRELOAD"] = preloaded(self.folder, preload)
        self.struck = None
        self.sockets = set()

    def __enter__(self):
        self.output = open(self.folder / "output", "w+", encoding="utf-8")
        self.launcher = subprocess.Popen(
            command(self.engine, self.world, self.words),
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=self.output,
            env=self.env,
        )
        return self

    def __exit__(self, *_):
        self.launcher.kill()
        self.launcher.wait()
        for pid in processes_of(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.output.close()

    def text(self):
        return (self.folder / "output").read_text(encoding="utf-8", errors="replace")

    def steps(self):
        metrics = self.folder / "run" / "metrics.jsonl"
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def ranks(self):
        """{rank: pid} of the ranks that are there. Threads have one pid."""
        if self.engine == "threads":
            return dict.fromkeys(range(self.world), self.launcher.pid)
        names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
        numbers = {}
        for pid in processes_of(self.folder):
            rank = variable_of(pid, names) if any(mark in words_of(pid) for mark in MARKS) else None
            if rank is not None:
                numbers[int(rank)] = pid
        return numbers

    def wait_for(self, condition):
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, f"it does not start:\n{self.text()}"
            assert self.launcher.poll() is None, f"it has ended:\n{self.text()}"
            time.sleep(0.01)

    def wait_for_ranks(self):
        self.wait_for(lambda: len(self.ranks()) == self.world)

    def wait_for_step(self, step):
        self.wait_for(lambda: self.steps() >= step)

    def wait_for_ops(self, folder, pattern="**/rank*"):
        """Until each rank has recorded an op in its flight file below the folder."""
        self.wait_for(lambda: sum(any(path.read_bytes()[OPS]) for path in folder.glob(pattern)) == self.world)

    def strike(self, rank, number):
        """Sends a signal to a rank. Returns its pid."""
        self.sockets = sockets_of(processes_of(self.folder))
        pid = self.ranks()[rank]
        self.struck = time.monotonic()
        os.kill(pid, number)
        return pid

    def end(self):
        """Waits for the end of every process, and looks for what is left."""
        begin = self.struck or time.monotonic()
        late = []
        try:
            code = self.launcher.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            code, late = 0, [f"the launcher runs after {LIMIT_S} s"]
        # A launcher that was killed is survived by its ranks for a moment.
        last = time.monotonic() + LAST_S
        while processes_of(self.folder) and time.monotonic() < last:
            time.sleep(0.01)
        seconds = time.monotonic() - begin
        left = late + [f"process {pid}: {words_of(pid)[:80]}" for pid in processes_of(self.folder)]
        shared = pathlib.Path("/dev/shm").glob(f"armillary-{self.launcher.pid}-*")
        left += [f"shared memory {path}" for path in shared]
        left += [f"temporary file {path}" for path in self.temporary.rglob("*")]
        left += [f"socket {number}" for number in self.sockets & sockets_there()]
        return Ending(code, seconds, self.text(), left)
