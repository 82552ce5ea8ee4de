"""What all benchmarks share: contenders that take turns, medians, tables, JSON.

A contender is a process that prints one JSON object when it is ready (`sides`: what it can run, and what
else is known of it), then runs one side for every line that it is given and answers {"side": .., "value":
..} or {"side": .., "error": ..}. `armillary bench NAME --on-request` is one; those in bench/peers/ are the
others. A process that waits for its turn reads a pipe and takes no time from who runs."""

import argparse
import contextlib
import json
import os
import pathlib
import select
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "bin" / "armillary"
LEAST_CORES = 1.8  # of two peaks over one, in a round that counts (armillary/bench/cores.h)


class RefusedError(Exception):
    """A contender cannot do what it was asked: the reason, and the exit code if it ended."""

    def __init__(self, reason, code=1):
        super().__init__(reason)
        self.code = code


class Contender:
    """One process of the contest, ended with all its children at the end of the `with`."""

    def __init__(self, command, timeout_s=600):
        self.command = [str(part) for part in command]
        self.timeout_s = timeout_s
        self.buffer = b""
        self.process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self.facts = self._answer()
        except BaseException:
            self.close()
            raise

    def _line(self):
        deadline = time.monotonic() + self.timeout_s
        stdout, stderr = self.process.stdout.fileno(), self.process.stderr.fileno()
        complaint = b""
        waited_for = [stdout, stderr]
        while b"\n" not in self.buffer:
            ready, _, _ = select.select(waited_for, [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise RefusedError(f"no answer within {self.timeout_s} s")
            if stderr in ready:
                part = os.read(stderr, 65536)
                complaint = (complaint + part)[-4096:]
                if not part:
                    waited_for.remove(stderr)
            if stdout in ready:
                part = os.read(stdout, 65536)
                if not part:
                    complaint += self._rest_of_stderr()
                    reason = last_line(complaint) or "it ended without an answer"
                    raise RefusedError(reason, self.process.poll())
                self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def _rest_of_stderr(self):
        try:
            return self.process.communicate(timeout=5)[1] or b""
        except (subprocess.TimeoutExpired, ValueError):
            return b""

    def _answer(self):
        answer = json.loads(self._line())
        if "error" in answer:
            raise RefusedError(answer["error"])
        return answer

    def run(self, side):
        """The value of one run of a side."""
        try:
            self.process.stdin.write(side.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise RefusedError("it has ended") from error
        return self._answer()["value"]

    def close(self):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the process and its children, nobody else
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def last_line(stderr):
    lines = stderr.decode(errors="replace").strip().splitlines()
    last = lines[-1].removeprefix("armillary: ") if lines else ""
    module = last.removeprefix("ModuleNotFoundError: No module named ")
    return last if module == last else f"not installed: {module}"


def program(*flags, on_request=True):
    """The command line of one of our own benches."""
    last = ["--on-request"] if on_request else ["--json"]
    return [str(PROGRAM), "bench", *(str(flag) for flag in flags), *last]


def peer(name, *flags):
    """The command line of one of bench/peers/."""
    return [sys.executable, "-m", f"bench.peers.{name}", *(str(flag) for flag in flags)]


def output(command, timeout_s=600):
    """What a program prints. @raises RefusedError with its reason."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as late:
        raise RefusedError(f"not done within {timeout_s} s") from late
    if done.returncode != 0:
        raise RefusedError(last_line(done.stderr) or f"exit code {done.returncode}", done.returncode)
    return done.stdout


def results(command, timeout_s=600):
    """The JSON lines of a program that takes its own turns."""
    return [json.loads(line) for line in output(command, timeout_s).splitlines()]


def run(main):
    """Runs a benchmark's main(): what ends it is one line on standard error, bad input exit code 2."""
    try:
        main()
    except RefusedError as refused:
        print(f"bench: {refused}", file=sys.stderr)
        sys.exit(2 if refused.code == 2 else 1)
    except FileNotFoundError as missing:
        print(f"bench: {missing.filename} is not there; it is required: ./dev build", file=sys.stderr)
        sys.exit(1)


def take_turns(runs, seconds, least=3):
    """Runs every callable of {name: run} once a round, for about `seconds` and at least `least` rounds.

    Returns ({name: median}, {name: reason}, counts); a side that refuses has a reason instead of a median.
    A round in which the side "cores" finds no second core is left out; counts say so (`with_cores`)."""
    rounds, reasons, begin = [], {}, time.monotonic()
    while len(rounds) < least or time.monotonic() - begin < seconds:
        rounds.append({})
        for name, run in runs.items():
            if name in reasons:
                continue
            try:
                rounds[-1][name] = run()
            except RefusedError as refused:
                reasons[name] = str(refused)
    kept, counts = with_cores(rounds)
    medians = {name: statistics.median(one[name] for one in kept) for name in runs if name not in reasons}
    return medians, reasons, counts


def with_cores(rounds):
    """The rounds ({side: value}) that had a second core, and what a row says of the others.

    "cores" of a round is the rate of two peaks over one. It is the rule of armillary/bench/rounds.h: a round
    without that side counts; where no round had two cores all are kept, and `all_left_out` says so."""
    kept = [one for one in rounds if one.get("cores", LEAST_CORES) >= LEAST_CORES]
    left_out = [one["cores"] for one in rounds if one.get("cores", LEAST_CORES) < LEAST_CORES]
    counts = {"rounds": len(kept or rounds)}
    if any("cores" in one for one in rounds):
        counts |= {
            "left_out_rounds": len(left_out),
            "left_out_cores": left_out,
            "all_left_out": not kept,
        }
    return kept or rounds, counts


class Budget:
    """The two minutes of --quick: what does not fit any more is left out, and said so."""

    QUICK_S = 85  # a cell that begins then still ends in time

    def __init__(self, quick):
        self.end = time.monotonic() + (self.QUICK_S if quick else float("inf"))

    def left_s(self):
        return self.end - time.monotonic()

    def of(self, cells):
        """The cells, as long as there is time."""
        cells = list(cells)
        for done, one in enumerate(cells):
            if self.left_s() < 0:
                print(f"bench: no time left for {len(cells) - done} of {len(cells)} cells", file=sys.stderr)
                return
            yield one


class Table:
    """Prints rows as they come: a Markdown table, or with --json each row's own object.

    `columns` is {title: text of a row}; a row is a dict."""

    def __init__(self, as_json, columns):
        self.as_json = as_json
        self.columns = columns
        if not as_json:
            print("| " + " | ".join(columns) + " |")
            print("|" + "---|" * len(columns), flush=True)

    def add(self, row):
        if self.as_json:
            print(json.dumps(row), flush=True)
        else:
            print("| " + " | ".join(str(text(row)) for text in self.columns.values()) + " |", flush=True)


def number(key, form="{:.3g}", scale=1):
    """The text of a column: the row's number, or its reason where there is none."""

    def text(row):
        if row.get(key) is not None:
            return form.format(scale * row[key])
        return row.get("reasons", {}).get(key, "-").partition(";")[0]

    return text


def percent(key):
    return number(key, "{:.0f} %", 100)


def left_out(row):
    """The text of a column: rounds without a second core, and what two cores had of one in them."""
    if "left_out_rounds" not in row:
        return "-"
    cores = row["left_out_cores"]
    if not cores:
        return "0"
    found = f"cores {min(cores):.2f} to {max(cores):.2f}"
    if row["all_left_out"]:
        return f"ALL {len(cores)} ({found}): medians of all"
    return f"{len(cores)} of {len(cores) + row['rounds']} ({found})"


def add_flags(parser):
    """The flags that every benchmark takes."""
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cells: below 2 minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--seconds", type=int, help="of turns, for each cell; at least 3 rounds")
    return parser


def seconds_of(args, quick, full):
    """How long to take turns in a cell."""
    return args.seconds if args.seconds is not None else quick if args.quick else full


def cpu_multiplies_bf16():
    """Whether it has instructions for it. Without, PyTorch multiplies bf16 at 1 GFLOP/s."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    flags = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    return "avx512_bf16" in flags or "amx_bf16" in flags


def at_least_one(text):
    """An argparse type: a size."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' given; a whole number of at least 1 is required")
    return int(text)
