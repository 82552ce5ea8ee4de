"""Shared by all benchmarks: command lines, the budget of --quick, tables, JSON.

A benchmark measures nothing itself. It runs `armillary bench`, which checks results, lets all sides take
turns and prints medians as JSON, and makes a table of that. Alternatives that a user has are contenders: the
peers in lab/bench/peers/, which `armillary bench .. --against COMMAND` starts (lab/bench/contender.h)."""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import time

BENCH = pathlib.Path(__file__).resolve().parent
ROOT = BENCH.parent.parent.parent
PROGRAM = ROOT / "build" / "bin" / "armillary"
COUNTS = ("turns", "left_out_turns", "left_out_cores", "all_left_out")  # of each result


class RefusedError(Exception):
    """A program cannot do what it was asked: the reason, and its exit code."""

    def __init__(self, reason, code=1):
        super().__init__(reason)
        self.code = code


def short(reason):
    """A reason as a row says it: the last line of a program's standard error, without what is obvious."""
    reason = reason.removeprefix("armillary: ")
    module = reason.removeprefix("ModuleNotFoundError: No module named ")
    return reason if module == reason else f"not installed: {module}"


def program(*flags):
    """The command line of one of the benches of our program."""
    return [str(PROGRAM), "bench", *(str(flag) for flag in flags), "--json"]


def on_engine(engine, world, command):
    """The command of one of our benches whose ranks are threads, or processes that meet by `engine`."""
    if engine == "threads":
        return command
    launch = ["launch", "-n", str(world), "--engine", engine, "--no-prefix", "--"]
    return [command[0], *launch, *command[1:]]


ENGINES = ("threads", "mpi", "c10d")


def peer(name, *flags):
    """The flags with which one of lab/bench/peers/ takes part in a bench of our program."""
    command = [sys.executable, str(BENCH), f"peers.{name}", *(str(flag) for flag in flags)]
    return ["--against", shlex.join(command)]


def output(command, timeout_s=None):
    """Standard output of a program. @raises RefusedError with its reason."""
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as late:
        raise RefusedError(f"not done within {timeout_s} s") from late
    if result.returncode != 0:
        lines = result.stderr.decode(errors="replace").strip().splitlines()
        raise RefusedError(short(lines[-1]) if lines else f"exit code {result.returncode}", result.returncode)
    return result.stdout


def results(command, timeout_s=None):
    """The JSON lines of a program."""
    return results_of(output(command, timeout_s))


def results_of(text):
    """The JSON lines of an output."""
    return [json.loads(line) for line in text.splitlines()]


def counts(row):
    """How many turns the medians of a result were taken from, and how many were left out."""
    return {key: row[key] for key in COUNTS if key in row}


def run(main):
    """Runs main() of a benchmark: an error is one line on standard error; bad input has exit code 2."""
    try:
        main()
    except RefusedError as refused:
        print(f"bench: {refused}", file=sys.stderr)
        sys.exit(2 if refused.code == 2 else 1)
    except FileNotFoundError as missing:
        print(f"bench: {missing.filename} is not there; it is required: ./dev build", file=sys.stderr)
        sys.exit(1)


class Budget:
    """The two minutes of --quick, or others: cells that do not fit are left out, with a line that says so."""

    QUICK_S = 85  # a cell that begins before then still ends in time

    def __init__(self, quick, full_s=float("inf")):
        self.end = time.monotonic() + (self.QUICK_S if quick else full_s)

    def left_s(self):
        return self.end - time.monotonic()

    def of(self, cells):
        """The cells, as long as there is time."""
        cells = list(cells)
        for position, one in enumerate(cells):
            if self.left_s() < 0:
                print(
                    f"bench: no time left for {len(cells) - position} of {len(cells)} cells", file=sys.stderr
                )
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
    """The text of a column: turns without a second core, and the rate of two cores over one in them."""
    if "left_out_turns" not in row:
        return "-"
    cores = row["left_out_cores"]
    if not cores:
        return "0"
    span = f"cores {min(cores):.2f} to {max(cores):.2f}"
    if row["all_left_out"]:
        return f"ALL {len(cores)} ({span}): medians of all"
    return f"{len(cores)} of {len(cores) + row['turns']} ({span})"


def add_flags(parser):
    """The flags that every benchmark takes."""
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cells: below 2 minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--seconds", type=int, help="how long each cell takes turns; at least 3 turns")
    return parser


def seconds_of(args, quick, full):
    """How long to take turns in a cell."""
    return args.seconds if args.seconds is not None else quick if args.quick else full


def cpu_multiplies_bf16():
    """Whether the CPU has instructions for it. Without them PyTorch is very slow in bf16."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    flags = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    return "avx512_bf16" in flags or "amx_bf16" in flags


def at_least_one(text):
    """An argparse type: a size."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' given; a whole number of at least 1 is required")
    return int(text)
