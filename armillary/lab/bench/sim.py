"""How long the simulator takes: 1,024 ranks one by one, and 16,384 folded.

1,024 tokens a rank, 64 query and 8 KV heads, d = 128, bf16, on nodes of eight H100. 1,024 ranks: causal,
zigzag. 16,384: a full mask, where one rank of each kind is simulated. Seconds are those of the whole call:
programs, lanes and events; an event is the start or the end of a message, of which those that are alike
are worked on at once, and events a second are those of the part of the call that is left when all programs
are made."""

import argparse

from bench.contest import ROOT, Table, add_flags, number, results, run

WORLDS = (1024, 16384)
COLUMNS = {
    "strategy": lambda row: row["strategy"],
    "ranks": lambda row: f"{row['world']:,}",
    "simulated": lambda row: f"{row['simulated_ranks']:,}",
    "pass": lambda row: row["pass"],
    "flow events": lambda row: f"{row['flow_events']:,}",
    "s": number("seconds", "{:,.2f}"),
    "s of events": number("event_seconds", "{:,.2f}"),
    "events/s": number("events_per_s", "{:,.0f}"),
}


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench sim", description=__doc__))
    parser.add_argument("--world", type=int, nargs="+", choices=WORLDS, help="ranks [1024 16384]")
    args = parser.parse_args()
    table = Table(args.json, COLUMNS)
    for world in args.world or (WORLDS[1:] if args.quick else WORLDS):
        for row in results([str(ROOT / "build" / "bin" / "sim_bench"), str(world)], 3600):
            table.add(row)


if __name__ == "__main__":
    run(main)
