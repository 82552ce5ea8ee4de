"""How much of the communication of ZeRO compute hides in a training step of a Llama, ranks along dp.

A step is timed whole, then without its messages, then its gathers and sums alone, in turns of one run, after
loss and norm of the gradient were found to be those of one rank. "exposed" is the time of the step beyond its
compute, over that of its messages; "by the plan" the share of the values that only the embedding could hide;
"of the rest" what is exposed of the others, and "bytes of it" that beyond a step whose messages have no
bytes, in which ranks wait for each other's compute alone. Times are the least of all turns: what else runs
only adds."""

from bench.contest import number, on_engine, percent, program, results, results_of

RANKS = (2, 4)

COLUMNS = {
    "engine": lambda row: row["engine"],
    "rate": lambda row: row["rate"],
    "ranks": lambda row: row["world"],
    "zero": lambda row: row["zero"],
    "layers x dim": lambda row: f"{row['layers']} x {row['dim']}",
    "tokens a rank": lambda row: f"{row['tokens']:,}",
    "step, ms": number("seconds", "{:.0f}", 1e3),
    "compute, ms": number("compute_seconds", "{:.0f}", 1e3),
    "messages, ms": number("messages_seconds", "{:.1f}", 1e3),
    "exposed": percent("exposed"),
    "by the plan": percent("by_the_plan"),
    "of the rest": percent("exposed_of_the_rest"),
    "bytes of it": percent("exposed_bytes_of_the_rest"),
    "turns": lambda row: row["turns"],
}


def command_of(args, ranks, zero, tokens, *flags):
    """The command of a cell, without its ranks."""
    shape = ["--layers", args.layers, "--dim", args.dim, "--heads", args.heads]
    cell = ["--world", ranks, "--zero", zero, "--tokens", args.tokens or tokens]
    limits = ["--seconds", args.seconds or 0, "--least", args.least, "--deadline", 600]
    return program("overlap", "--step", *cell, *shape, *limits, *flags)


def rows(args):
    """The row of each engine, number of ranks and stage."""
    for engine in args.engines or ("threads", "mpi"):
        for ranks in RANKS[:1] if args.quick else RANKS:
            for zero in (3,) if args.quick else (3, 2, 1):
                command = command_of(args, ranks, zero, 1024)
                for row in results(on_engine(engine, ranks, command), args.limit):
                    yield row | {"rate": "memory"}


def rows_of_links(args, rate, bytes_per_s):
    """The row of each stage, two threads with a link each that needs no core."""
    for zero in (3,) if args.quick else (3, 2, 1):
        command = command_of(args, 2, zero, 4096, "--link", round(bytes_per_s * 8 / 1e6))
        for row in results(command, args.limit):
            yield row | {"rate": f"link of {rate}"}


def rows_of_hosts(hosts, args, rate, start):
    """The row of each stage, a rank on each host; `start` gives what a command prints there."""
    for zero in (3,) if args.quick else (3, 2, 1):
        command = command_of(args, hosts.count, zero, 4096)
        for row in results_of(start(hosts, hosts.count, command, args.limit)):
            yield row | {"rate": rate}
