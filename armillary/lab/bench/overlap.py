"""How much of the communication between hosts is hidden behind compute.

Hosts are network namespaces of this machine, joined by a switch that limits what each sends. A layer is
timed whole, then its compute alone, whose messages move nothing, then its messages alone. "exposed" is the
time of the layer beyond its compute, over that of its messages; "by the plan" the share of the bytes that are
sent when the rank attends nothing, which no engine can hide. "link" is what the messages alone reached of the
rate: out of the host that sends least, and of the one that sends most. Needs root, `ip` and `tc`; hosts are
removed at the end, also after a failure.

With --step it is the communication of a training step instead, on this machine by threads and MPI, or, with
--rates, on such hosts by MPI and by threads with a link each that needs no core (steps.py)."""

import argparse
import importlib.util
import os
import signal
import subprocess
import sys

from bench import steps
from bench.contest import (
    ROOT,
    RefusedError,
    Table,
    add_flags,
    at_least_one,
    number,
    percent,
    program,
    results_of,
    run,
    short,
)

ENGINES = ("mpi", "c10d")
RATES = {"1gbit": 1e9 / 8, "200mbit": 2e8 / 8}  # bytes a second
TOKENS = {"1gbit": 4096, "200mbit": 16384}  # of a rank: long enough to hide what can be hidden
# Strategy, ranks of a host. The heads of usp are exchanged inside the hosts.
CELLS = (
    ("ring", 1),
    ("bidirectional_ring", 1),
    ("allgather:slices=4", 1),
    ("tokenring", 1),
    ("usp:u=2", 2),
)
PORT = 29431


def emulated_hosts():
    """The module of tests/multihost that makes hosts. @raises RefusedError where there can be none."""
    path = ROOT / "tests" / "multihost" / "hosts.py"
    spec = importlib.util.spec_from_file_location("hosts", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if reason := module.why_not():
        raise RefusedError(f"emulated hosts: {reason}")
    return module


def on_mpi(hosts, ranks, command, deadline_s):
    """Standard output of the command on all ranks."""
    result = hosts.mpirun(ranks, command, timeout_s=deadline_s)
    if result.returncode != 0:
        raise RefusedError(short((result.stderr.strip().splitlines() or ["mpirun"])[-1]))
    return result.stdout


def on_c10d(hosts, ranks, command, deadline_s):
    """The same by processes that meet at the first host."""
    a_host = ranks // hosts.count
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "net0"}
    processes = []
    try:
        for rank in range(ranks):
            place = ["--engine", "c10d", "--rank", str(rank), "--master", f"{hosts.address(0)}:{PORT}"]
            inside = ["ip", "netns", "exec", hosts.name(rank // a_host), *command, *place]
            processes.append(
                subprocess.Popen(inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
            )
        out, err = processes[0].communicate(timeout=deadline_s)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if processes[0].returncode != 0 or not out:
        raise RefusedError(short((err.strip().splitlines() or ["c10d"])[-1]))
    return out


def rows(hosts, args, engine, rate, cell):
    strategy, a_host = cell
    ranks = a_host * hosts.count
    tokens = (args.tokens or TOKENS.get(rate, 4096)) // a_host
    shape = ["--tokens", tokens, "--heads", args.heads, "--head-dim", args.head_dim, "--dtype", args.dtype]
    shape += ["--world", ranks, "--strategy", strategy, "--ranks-per-node", a_host]
    limits = ["--seconds", args.seconds or 0, "--least", args.least, "--deadline", 600]
    start = on_mpi if engine == "mpi" else on_c10d
    for line in results_of(start(hosts, ranks, program("overlap", *shape, *limits), args.limit)):
        host_bytes = [sum(line["sent_bytes"][h * a_host : (h + 1) * a_host]) for h in range(hosts.count)]
        lone = [sum(line["lone_bytes"][h * a_host : (h + 1) * a_host]) for h in range(hosts.count)]
        capacity = RATES[rate] * line["messages_seconds"]
        yield line | {
            "rate": rate,
            "hosts": hosts.count,
            "by_the_plan": max(lone) / max(host_bytes),
            "link_least": min(host_bytes) / capacity,
            "link_most": max(host_bytes) / capacity,
        }


COLUMNS = {
    "isa": lambda row: row["isa"],
    "dtype": lambda row: row["dtype"],
    "engine": lambda row: row["engine"],
    "rate": lambda row: row["rate"],
    "strategy": lambda row: row["strategy"],
    "ranks": lambda row: row["world"],
    "tokens a rank": lambda row: f"{row['tokens']:,}",
    "pass": lambda row: row["pass"],
    "layer, ms": number("seconds", "{:.1f}", 1e3),
    "compute, ms": number("compute_seconds", "{:.1f}", 1e3),
    "messages, ms": number("messages_seconds", "{:.1f}", 1e3),
    "exposed": percent("exposed"),
    "by the plan": percent("by_the_plan"),
    "link": lambda row: f"{100 * row['link_least']:.0f}, {100 * row['link_most']:.0f} %",
}


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench overlap", description=__doc__))
    parser.add_argument("--rates", nargs="+", choices=RATES, help="of each host [both; with --step no hosts]")
    parser.add_argument("--step", action="store_true", help="a training step, not a layer")
    parser.add_argument("--layers", type=at_least_one, default=8, help="of the step [8]")
    parser.add_argument("--dim", type=at_least_one, default=512, help="width of the step [512]")
    parser.add_argument("--engines", nargs="+", choices=("threads", *ENGINES), help="[mpi c10d; threads mpi]")
    parser.add_argument("--strategies", nargs="+", help="some of the strategies [all]")
    parser.add_argument("--tokens", type=at_least_one, help="of a host's rank, if it has one [4096, 16384]")
    parser.add_argument("--heads", type=at_least_one, default=4)
    parser.add_argument("--head-dim", type=at_least_one, default=32)
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--least", type=at_least_one, default=3, help="turns at least [3]")
    parser.add_argument("--limit", type=at_least_one, default=600, help="seconds of a cell at most [600]")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # hosts are removed then
    if args.step:
        table = Table(args.json, steps.COLUMNS)
        for row in () if args.rates else steps.rows(args):
            table.add(row)
        engines = args.engines or ("threads", "mpi")
        for rate in args.rates or ():
            for row in steps.rows_of_links(args, rate, RATES[rate]) if "threads" in engines else ():
                table.add(row)
            if "mpi" not in engines:
                continue
            with emulated_hosts().Hosts(2, rate) as hosts:
                for row in steps.rows_of_hosts(hosts, args, rate, on_mpi):
                    table.add(row)
        return
    args.engines = args.engines or list(ENGINES)
    if "threads" in args.engines:
        parser.error("--engines threads: hosts have processes; --step is required")
    cells = [cell for cell in CELLS if not args.strategies or cell[0] in args.strategies]
    cells = cells[:1] if args.quick else cells
    emulated = emulated_hosts()
    args.rates = args.rates or list(RATES)
    table = Table(args.json, COLUMNS)
    for rate in args.rates[:1] if args.quick else args.rates:
        with emulated.Hosts(2, rate) as hosts:
            for engine in args.engines:
                for cell in cells:
                    for row in rows(hosts, args, engine, rate, cell):
                        table.add(row)


if __name__ == "__main__":
    run(main)
