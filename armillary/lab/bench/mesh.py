"""Training a GPT or a Llama on four processes, or two, of two cores by `armillary train` and by PyTorch: DDP
(zero 0), DDP with ZeroRedundancyOptimizer (1), FSDP2 (2: kept gathered after forward, 3: gathered again),
with the ring of its context parallel; all on Gloo.

Both start from the same parameters and take the same sequences; each loss of the first steps must agree to
1e-4 before anything is compared. Places are this machine, and hosts that are network namespaces, joined by a
switch that limits what each sends (needs root, `ip` and `tc`). Ours are processes of MPI unless --engines
says otherwise; threads and c10d run on this machine alone. Runs take turns. "memory" are the peaks of
private memory (process_memory.py) of all processes together, of which a small model takes little; "training"
is what that is beyond the memory of the same processes when they have met and their tokens are read, before
the model is made. "sent" is what the hosts send in a step. "waits" is the time of a step in which our ranks
wait for gathers and sums of parameters, "of messages" that over the gathers and sums of all layers alone;
ranks that have no core of their own wait for that too."""

import argparse
import contextlib
import itertools
import os
import pathlib
import shlex
import signal
import sys
import tempfile

from bench.contest import (
    ENGINES,
    PROGRAM,
    ROOT,
    Budget,
    RefusedError,
    Table,
    add_flags,
    at_least_one,
    counts,
    left_out,
    number,
    on_engine,
    output,
    peer,
    percent,
    program,
    results,
    results_of,
    run,
    short,
)
from bench.overlap import RATES, emulated_hosts, on_mpi

MESHES = {"cp 4": (1, 4), "dp 2 x cp 2": (2, 2), "dp 4": (4, 1), "dp 2": (2, 1)}
PLACES = ["here", *(f"{hosts} x {rate}" for rate in RATES for hosts in (2, 4))]
OURS, THEIRS = "ours", "PyTorch"
LOSS_BOUND = 1e-4
STEPS = 2  # of a turn, after one that warms up
DEADLINE_S = 600


def write_text(folder, tokens):
    """A document of `tokens` bytes: with the separator behind it, sequences and their labels."""
    text = (ROOT / "docs" / "architecture.md").read_bytes()
    path = pathlib.Path(folder) / "text.txt"
    path.write_bytes((text * (tokens // len(text) + 1))[:tokens])
    return path


def settings_of(args):
    """The recipe of our runs, but for lengths and the mesh."""
    return [
        f"model.name={args.model}",
        f"model.dim={args.dim}",
        f"model.n_layers={args.layers}",
        f"model.n_heads={args.heads}",
        "optimizer.lr=3e-4",
        "lr_scheduler.warmup_steps=0",
        "lr_scheduler.decay_ratio=0",
        "parallelism.strategy=ring",
        "parallelism.layout=zigzag",
        "parallelism.mask=causal",
        "training.check_replicas=0",
        f"comm.train_timeout_seconds={DEADLINE_S}",
    ]


def write_start(args, folder):
    """The parameters with which all runs begin, as a folder: a step too small to change one of them."""
    small = {
        "training.dataset_path": write_text(folder, 64),
        "training.seq_len": 16,
        "training.steps": 1,
        "optimizer.lr": 1e-30,
        "checkpoint.enable": "true",
        "job.dump_folder": f"{folder}/start",
        "parallelism.context_parallel_degree": 1,
    }
    settings = [*settings_of(args), *(f"{key}={value}" for key, value in small.items())]
    flags = [part for setting in settings for part in ("--set", setting)]
    output([PROGRAM, "train", ROOT / "recipes" / "default.toml", *flags])
    output([PROGRAM, "export", f"{folder}/start", f"{folder}/parameters", "--format", "armillary"])


class Place:
    """This machine, or emulated hosts, with the commands that start our ranks there."""

    def __init__(self, name, hosts=None):
        self.name, self.hosts = name, hosts

    @property
    def names(self):
        return [] if self.hosts is None else [self.hosts.name(host) for host in range(self.hosts.count)]

    def launcher(self, engine, ranks):
        """Our program with what starts its ranks, before its verb."""
        if self.hosts is not None:
            return self.hosts.mpirun_command(ranks, [PROGRAM])
        return on_engine(engine, ranks, [str(PROGRAM)])

    def messages_s(self, args, engine, ranks):
        """Seconds of the gathers and sums of all layers in a step of ZeRO-3, each alone."""
        share = sum(layer_shapes(args)) // ranks
        command = program("collectives", "--world", ranks, "--bytes", 4 * share, "--seconds", 0)
        if self.hosts is not None:
            lines = results_of(on_mpi(self.hosts, ranks, command, DEADLINE_S))
        else:
            lines = results(on_engine(engine, ranks, command), DEADLINE_S)
        seconds = {line["operation"]: line["seconds"] for line in lines}
        return args.layers * (2 * seconds["all_gather"] + seconds["reduce_scatter"])


def layer_shapes(args):
    """Elements of the matrices of a layer."""
    hidden = -(-(8 * args.dim // 3) // 256) * 256 if args.model == "llama" else 4 * args.dim
    return [*4 * [args.dim**2], *(3 if args.model == "llama" else 2) * [args.dim * hidden]]


def ranks_of(cell):
    dp, cp = MESHES[cell["mesh"]]
    return dp * cp


def host_flags(place):
    return ["--hosts", *place.names] if place.names else []


def our_peer(args, place, cell, folder):
    dp, cp = MESHES[cell["mesh"]]
    settings = [
        *settings_of(args),
        f"training.dataset_path={folder}/text.txt",
        f"training.seq_len={cell['tokens'] * cp}",
        f"training.global_batch_size={dp}",
        f"training.steps={1 + STEPS}",
        f"parallelism.data_parallel_shard_degree={dp}",
        f"parallelism.context_parallel_degree={cp}",
        f"parallelism.zero={cell['zero']}",
    ]
    flags = ["--name", OURS, "--tokens", cell["tokens"], "--folder", f"{folder}/run"]
    launcher = place.launcher(cell["engine"], ranks_of(cell))
    flags += ["--program", shlex.join(map(str, launcher)), *host_flags(place)]
    flags += ["--processes", 1 if cell["engine"] == "threads" else ranks_of(cell)]
    return peer("armillary_mesh", *flags, *(word for setting in settings for word in ("--set", setting)))


def their_peer(args, place, cell, folder, start):
    shape = ["--model", args.model, "--dim", args.dim, "--layers", args.layers, "--heads", args.heads]
    mesh = ["--cp", MESHES[cell["mesh"]][1], "--zero", cell["zero"], "--tokens", cell["tokens"]]
    flags = ["--text", f"{folder}/text.txt", "--parameters", f"{start}/parameters", "--steps", STEPS]
    more = ["--ranks", ranks_of(cell), "--rotation", args.rotation, *host_flags(place)]
    return peer("gloo_train", "--name", THEIRS, *flags, *shape, *mesh, *more)


def measure(args, place, cell, start):
    """The row of a cell."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = ranks_of(cell) * cell["tokens"]  # of a step
        write_text(folder, tokens)
        peers = [*our_peer(args, place, cell, folder), *their_peer(args, place, cell, folder, start)]
        least = args.least or (1 if "200mbit" in place.name else 2)  # messages take the most of it there
        limits = ["--seconds", args.seconds or 0, "--least", least, "--deadline", DEADLINE_S]
        (turns,) = results(program("turns", "--cores", *peers, *limits))
    row = {"bench": "mesh", "place": place.name, "model": args.model, "dim": args.dim, **cell}
    row |= {"layers": args.layers, **counts(turns)}
    facts, reasons = {}, {}
    for name, contender in zip((OURS, THEIRS), turns["contenders"], strict=True):
        key = "ours" if name == OURS else "pytorch"
        if name not in turns["medians"]:
            reasons[f"{key}_tokens_per_s"] = short(turns["reasons"].get(name) or contender["reason"])
            continue
        facts[key] = contender["facts"]
        row[f"{key}_tokens_per_s"] = tokens / turns["medians"][name]
        row[f"{key}_memory_bytes"] = facts[key]["memory_bytes"]
        if "before_bytes" in facts[key]:
            row[f"{key}_before_bytes"] = facts[key]["before_bytes"]
            row[f"{key}_training_bytes"] = facts[key]["memory_bytes"] - facts[key]["before_bytes"]
        row[f"{key}_losses"] = facts[key]["losses"]
        if place.names:
            row[f"{key}_sent_bytes"] = facts[key]["sent_bytes"]
    if "pytorch" in facts:
        row["pytorch_late_modules"] = facts["pytorch"]["late_modules"]
    if "exposed_s" in facts.get("ours", {}):
        row["waits"] = facts["ours"]["exposed_s"] / turns["medians"][OURS]
        if cell["zero"] == 3:
            row["waits_of_messages"] = facts["ours"]["exposed_s"] / messages_s(args, place, cell)
    return compared(row) | {"reasons": reasons}


MESSAGES_S = {}  # measured once for each place, engine and number of ranks


def messages_s(args, place, cell):
    key = (place.name, cell["engine"], ranks_of(cell))
    if key not in MESSAGES_S:
        MESSAGES_S[key] = place.messages_s(args, *key[1:])
    return MESSAGES_S[key]


def compared(row):
    """The row with ratios, if both sides ran. @raises RefusedError if they are not the same mathematics."""
    if "ours_losses" not in row or "pytorch_losses" not in row:
        return row
    losses = list(zip(row["ours_losses"], row["pytorch_losses"], strict=False))
    row["loss_difference"] = max(abs(ours - theirs) for ours, theirs in losses)
    if not row["loss_difference"] <= LOSS_BOUND:  # NaN too
        raise RefusedError(
            f"{row['place']}, {row['mesh']}, zero {row['zero']}: losses {losses} of ours and PyTorch; within "
            f"{LOSS_BOUND} of each other is required; nothing is compared"
        )
    row["over_pytorch"] = row["ours_tokens_per_s"] / row["pytorch_tokens_per_s"]
    row["memory_over_pytorch"] = row["ours_memory_bytes"] / row["pytorch_memory_bytes"]
    if "ours_training_bytes" in row:
        row["training_over_pytorch"] = row["ours_training_bytes"] / row["pytorch_training_bytes"]
    return row


COLUMNS = {
    "place": lambda row: row["place"],
    "engine": lambda row: row["engine"],
    "mesh": lambda row: row["mesh"],
    "zero": lambda row: row["zero"],
    "tokens a rank": lambda row: f"{row['tokens']:,}",
    "tokens/s": number("ours_tokens_per_s", "{:.0f}"),
    "PyTorch": number("pytorch_tokens_per_s", "{:.0f}"),
    "over PyTorch": number("over_pytorch", "{:.2f}"),
    "memory GiB": number("ours_memory_bytes", "{:.2f}", 2**-30),
    "memory over PyTorch": number("memory_over_pytorch", "{:.2f}"),
    "training GiB": number("ours_training_bytes", "{:.2f}", 2**-30),
    "training over PyTorch": number("training_over_pytorch", "{:.2f}"),
    "sent MB": number("ours_sent_bytes", "{:.1f}", 1e-6),
    "PyTorch MB": number("pytorch_sent_bytes", "{:.1f}", 1e-6),
    "losses differ by": number("loss_difference", "{:.0e}"),
    "waits": percent("waits"),
    "of messages": percent("waits_of_messages"),
    "turns left out": left_out,
}


def cells_of(args, places):
    """Cells in the order of what they tell first, each a place and the rest."""
    lengths = args.tokens or ([256] if args.quick else [512, 1024])
    meshes = args.meshes or (list(MESHES)[1::2] if args.quick else MESHES)
    cells = [
        (place, {"engine": engine, "mesh": mesh, "zero": zero, "tokens": tokens})
        for tokens in lengths
        for zero in args.zero or ([3, 0] if args.quick else range(4))
        for place in places
        for engine in (args.engines if place == "here" else ["mpi"])
        for mesh in meshes
        # Two ranks on two cores show what compute hides; otherwise they are as four.
        if args.meshes or mesh != "dp 2" or zero == 3
        if place == "here" or ranks_of({"mesh": mesh}) % int(place.partition(" x ")[0]) == 0
    ]

    def first(cell):
        """This machine in all stages, hosts in the stages that send least and most, other lengths here; then
        the rest. Cells of a place follow each other."""
        place, what = cell
        if what["tokens"] == lengths[0]:
            return 0 if place == "here" else 1 if what["zero"] in (0, 3) else 3, places.index(place)
        return 2 if place == "here" else 3, places.index(place)

    return sorted(cells, key=first)


def hosts_at(place):
    """The emulated hosts of a place, or None here."""
    if place == "here":
        return contextlib.nullcontext()
    count, _, rate = place.partition(" x ")
    return emulated_hosts().Hosts(int(count), rate)


def places_of(args):
    """Those that were asked for, or those that this machine can have."""
    if args.places:
        return args.places
    try:
        emulated_hosts()
    except RefusedError as refused:
        print(f"bench: {refused}; their cells are left out", file=sys.stderr)
        return PLACES[:1]
    return PLACES[:2] if args.quick else PLACES


def measure_all(args, table):
    budget = Budget(args.quick, 60 * args.minutes)
    with tempfile.TemporaryDirectory() as start:
        # Peers begin often; their modules are compiled once.
        if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
            os.environ.setdefault("PYTHONPYCACHEPREFIX", f"{start}/bytecode")
        write_start(args, start)
        cells = budget.of(cells_of(args, places_of(args)))
        for name, at_place in itertools.groupby(cells, key=lambda cell: cell[0]):
            with hosts_at(name) as hosts:
                for _, cell in at_place:
                    table.add(measure(args, Place(name, hosts), cell, start))


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench mesh", description=__doc__))
    parser.add_argument("--tokens", type=at_least_one, nargs="+", help="of a rank in a step [512 1024]")
    parser.add_argument("--meshes", nargs="+", choices=MESHES, help="[those of 4, dp 2 in zero 3]")
    parser.add_argument("--zero", nargs="+", type=int, choices=range(4), help="stages [0 1 2 3]")
    parser.add_argument("--places", nargs="+", choices=PLACES, help="[all]")
    parser.add_argument("--engines", nargs="+", default=["mpi"], choices=ENGINES, help="of ours [mpi]")
    parser.add_argument("--rotation", default="alltoall", choices=("alltoall", "allgather"), help="PyTorch's")
    parser.add_argument("--model", default="gpt", choices=("gpt", "llama"))
    parser.add_argument("--dim", type=at_least_one, default=256, help="width")
    parser.add_argument("--layers", type=at_least_one, default=4)
    parser.add_argument("--heads", type=at_least_one, default=8)
    parser.add_argument("--least", type=at_least_one, help="turns at least [2; 1 at 200mbit]")
    parser.add_argument("--minutes", type=float, default=11, help="no cell begins later [11]")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # hosts are removed then
    measure_all(args, Table(args.json, COLUMNS))


if __name__ == "__main__":
    run(main)
