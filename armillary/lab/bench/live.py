"""How far simulated times are from measured ones.

First `armillary calibrate` describes the ranks as a cluster; then layers run on these ranks, and the same
plans are simulated on that cluster. The ratio is simulated over measured time, "compute" that of the same
layer whose messages move nothing. At the end: the median and the worst of |simulated - measured| over
measured. Ranks are threads, processes of MPI, or processes on emulated hosts: network namespaces of this
machine whose links are limited (root, `ip` and `tc` required; removed at the end, also after a failure)."""

import argparse
import pathlib
import re
import signal
import statistics
import sys
import tempfile

from bench.contest import (
    PROGRAM,
    RefusedError,
    Table,
    add_flags,
    at_least_one,
    number,
    on_engine,
    output,
    program,
    results_of,
    run,
)
from bench.overlap import emulated_hosts, on_mpi

PLACES = ("threads", "mpi", "hosts2", "hosts4")
STRATEGIES = ("ring", "allgather", "usp:u=2", "tokenring")
RATES = ("200mbit", "500mbit", "1gbit")
TOKENS = (512, 1024, 2048)
RATE = r"(\d+(?:\.\d+)?)([kmg])bit"
CORES = 2  # Emulated hosts share those of this machine.


def link_rate(text):
    """The type of a flag: the rate of a link, as `tc` writes it."""
    if not re.fullmatch(RATE, text):
        raise argparse.ArgumentTypeError(f"{text!r} given; a number with kbit, mbit or gbit is required")
    return text


def burst_of(rate):
    """Bytes that the link of a host may send at once after a pause: a millisecond of its rate, which
    `armillary calibrate` finds. Less needs more timers, which slow compute; with 128 kB at 200 Mbit/s a tenth
    of a layer's messages cost nothing."""
    number, unit = re.fullmatch(RATE, rate).groups()
    bits = float(number) * {"k": 1e3, "m": 1e6, "g": 1e9}[unit]
    return max(int(bits / 8 * 1e-3), 16_000)


def shape_of(args):
    return ["--heads", args.heads, "--head-dim", args.head_dim, "--dtype", args.dtype]


def words(flags):
    return [str(flag) for flag in flags]


class Place:
    """Ranks of one kind: runs a command on all of them and returns the output of the first."""

    def __init__(self, world, start, flags=()):
        self.world = world
        self.start = start
        self.flags = flags

    def calibrate(self, args, path):
        command = [PROGRAM, "calibrate", "--world", self.world, *self.flags, *shape_of(args), "--out", path]
        self.start(words([*command, "--tokens", max(args.tokens) * 2]))

    def rows(self, args, path, tokens):
        strategies = [word for strategy in args.strategies for word in ("--strategy", strategy)]
        flags = ["--world", self.world, "--tokens", tokens, "--cluster", path, *shape_of(args), *strategies]
        limits = ["--seconds", args.seconds or 0, "--least", args.least]
        return results_of(self.start(program("live", *flags, *limits)))


def on_this_machine(name):
    """The place of ranks that are not on emulated hosts."""
    return Place(2, lambda command: output(on_engine(name, 2, command)))


def measure(place, name, rate, args, table):
    """All cells of one place; returns the errors."""
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(args.keep or folder) / f"{name}_{rate or 'local'}.toml"
        place.calibrate(args, path)
        for tokens in args.tokens:
            for row in place.rows(args, path, tokens):
                table.add(row | {"place": name, "rate": rate or "-"})
                errors.append(abs(row["ratio"] - 1))
    return errors


COLUMNS = {
    "isa": lambda row: row["isa"],
    "dtype": lambda row: row["dtype"],
    "place": lambda row: row["place"],
    "rate": lambda row: row["rate"],
    "strategy": lambda row: row["strategy"],
    "ranks": lambda row: row["world"],
    "tokens a rank": lambda row: f"{row['tokens']:,}",
    "pass": lambda row: row["pass"],
    "measured, ms": number("seconds", "{:.2f}", 1e3),
    "simulated, ms": number("simulated_seconds", "{:.2f}", 1e3),
    "ratio": number("ratio", "{:.3f}"),
    "compute, ms": number("compute_seconds", "{:.2f}", 1e3),
    "ratio of compute": number("compute_ratio", "{:.3f}"),
}


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench live", description=__doc__))
    parser.add_argument("--places", nargs="+", default=list(PLACES), choices=PLACES)
    parser.add_argument(
        "--rates", type=link_rate, nargs="+", default=list(RATES), help="of each emulated host [all three]"
    )
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--tokens", type=at_least_one, nargs="+", default=list(TOKENS), help="of a rank")
    parser.add_argument("--heads", type=at_least_one, default=4)
    parser.add_argument("--head-dim", type=at_least_one, default=64)
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--least", type=at_least_one, default=5, help="turns at least [5]")
    parser.add_argument("--limit", type=at_least_one, default=600, help="seconds of a command at most [600]")
    parser.add_argument("--keep", help="folder for the cluster files [none]")
    args = parser.parse_args()
    if args.quick:
        args.places, args.tokens, args.rates = args.places[:1], args.tokens[:2], args.rates[:1]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # hosts are removed then
    table = Table(args.json, COLUMNS)
    errors = []
    for name in args.places:
        if not name.startswith("hosts"):
            errors += measure(on_this_machine(name), name, None, args, table)
            continue
        emulated = emulated_hosts()
        count = int(name.removeprefix("hosts"))
        for rate in args.rates:
            with emulated.Hosts(count, rate, burst_of(rate)) as hosts:

                def start(command, hosts=hosts, count=count):
                    return on_mpi(hosts, count, command, args.limit)

                flags = ["--ranks-per-node", 1, "--cores", CORES]
                errors += measure(Place(count, start, flags), name, rate, args, table)
    if not errors:
        raise RefusedError("nothing was measured")
    if not args.json:
        worst, middle = max(errors), statistics.median(errors)
        print(f"\n{len(errors)} cells: median error {100 * middle:.1f} %, worst {100 * worst:.1f} %")


if __name__ == "__main__":
    run(main)
