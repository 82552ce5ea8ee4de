"""Causal attention over two processes with one thread each, on Gloo over loopback: a peer of
lab/bench/strategies.py, and of lab/bench/package.py, which asks for the Python package as one more method.

Sides: METHOD PASS, in seconds between barriers, PASS forward or forward+backward. Every method is checked
first. Facts: "methods", all of them; "max_error" by method, the largest difference to one process over the
largest value, of the output and, if there is a backward, of the gradients; "reasons" by method, for those
that cannot be run and have no sides."""

import argparse
import contextlib
import math
import os
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn import functional

from bench.peers.gloo_ours import package
from bench.peers.gloo_plain import ZigzagRing, ulysses
from bench.peers.gloo_public import context_parallel, yunchang
from bench.peers.protocol import UnableError, claim_stdout, reason, serve

WORLD = 2
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PASSES = ("forward", "forward+backward")

# name: (layout, whether there is a backward pass, how to make it)
METHODS = {
    "plain zigzag ring": ("zigzag", True, lambda: ZigzagRing.apply),
    "plain Ulysses": ("contiguous", True, lambda: ulysses),
    "PyTorch context parallel, ring": ("zigzag", True, lambda: context_parallel("alltoall")),
    "PyTorch context parallel, all-gather": ("zigzag", True, lambda: context_parallel("allgather")),
    "yunchang ring": ("contiguous", False, lambda: yunchang("basic_pytorch", 1)),
    "yunchang zigzag": ("zigzag", False, lambda: yunchang("zigzag", 1)),
    "yunchang Ulysses": ("contiguous", False, lambda: yunchang("basic_pytorch", WORLD)),
}


OURS = {"armillary package": ("zigzag", True, package)}


def rows_of(layout, rank, tokens):
    """Positions of a rank's tokens."""
    if layout == "contiguous":
        return torch.arange(tokens).chunk(WORLD)[rank]
    pieces = torch.arange(tokens).chunk(2 * WORLD)
    return torch.cat([pieces[rank], pieces[2 * WORLD - 1 - rank]])


class Problem:
    """The tensors of the whole sequence, equal on every rank, and the methods that were made so far."""

    def __init__(self, args):
        generator = torch.Generator().manual_seed(7)
        shape = (1, args.heads, WORLD * args.tokens, args.head_dim)
        self.whole = [torch.randn(shape, generator=generator).to(DTYPES[args.dtype]) for _ in range(4)]
        self.instances = {}
        self.shards = {}

    def attention(self, method):
        if method.startswith("PyTorch"):  # its rotation is a setting of the whole process
            return METHODS[method][2]()
        if method not in self.instances:
            self.instances[method] = METHODS[method][2]()
        return self.instances[method]

    def compute(self, method, both):
        """This rank's output, or output and gradients."""
        attend = self.attention(method)
        *inputs, dout = self.mine(method)
        if not both:
            with torch.no_grad():
                return [attend(*inputs)]
        inputs = [x.requires_grad_(True) for x in inputs]
        out = attend(*inputs)
        return [out.detach(), *torch.autograd.grad(out, inputs, dout)]

    def mine(self, method):
        """This rank's q, k, v and dout, cut once."""
        layout = METHODS[method][0]
        if layout not in self.shards:
            rows = rows_of(layout, dist.get_rank(), self.whole[0].size(2))
            self.shards[layout] = [x.index_select(2, rows) for x in self.whole]
        return [x.detach() for x in self.shards[layout]]

    def seconds(self, method, both):
        dist.barrier()
        begin = time.perf_counter()
        self.compute(method, both)
        dist.barrier()
        return time.perf_counter() - begin

    def error(self, method):
        layout, has_backward, _ = METHODS[method]
        q, k, v, dout = (x.detach() for x in self.whole)
        inputs = [x.requires_grad_(has_backward) for x in (q, k, v)]
        out = functional.scaled_dot_product_attention(*inputs, is_causal=True)
        exact = [out.detach(), *(torch.autograd.grad(out, inputs, dout) if has_backward else [])]
        errors = []
        for part, whole in zip(self.compute(method, has_backward), exact, strict=True):
            parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(WORLD)]
            dist.all_gather(parts, part.contiguous())
            for rank, of_rank in enumerate(parts):
                at = whole.index_select(2, rows_of(layout, rank, whole.size(2)))
                errors.append((of_rank.float() - at.float()).abs().max() / whole.float().abs().max())
        worst = float(torch.stack(errors).max())  # NaN if one of them is
        if not math.isfinite(worst):
            raise UnableError("its result is not finite")
        return worst


def do(problem, side):
    """One line, as every rank does it: METHOD PASS, or METHOD error."""
    method, _, what = side.rpartition(" ")
    if method not in METHODS:
        raise UnableError(f"{method}; one of {', '.join(METHODS)} is required")
    if what == "error":
        return problem.error(method)
    if what == "forward+backward" and not METHODS[method][1]:
        raise UnableError("no backward")
    return problem.seconds(method, what == "forward+backward")


def follow(problem):
    """The other ranks: they do what rank 0 does, until it ends. A failure here fails there too, and rank 0
    tells the reason."""
    while True:
        line = [None]
        dist.broadcast_object_list(line, 0)
        if line[0] is None:
            return
        with contextlib.suppress(Exception):
            do(problem, line[0])


def check_all(run):
    """Runs every method once against one process: the facts of this peer."""
    errors, reasons = {}, {}
    for method in METHODS:
        try:
            errors[method] = run(f"{method} error")
        except Exception as error:  # noqa: BLE001, a method that cannot be run is a row of the table
            reasons[method] = reason(error)
    sides = [f"{method} {direction}" for method in errors for direction in PASSES]
    return {"sides": sides, "methods": list(METHODS), "max_error": errors, "reasons": reasons}


def rank_main(rank, args, meeting, answers_fd):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=args.timeout),
    )
    torch.set_num_threads(1)
    problem = Problem(args)

    def run(side):
        dist.broadcast_object_list([side], 0)
        return do(problem, side)

    if rank == 0:
        with os.fdopen(answers_fd, "w") as answers:
            serve(answers, check_all(run) | {"torch": torch.__version__}, run)
        dist.broadcast_object_list([None], 0)
    else:
        follow(problem)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=1024, help="of a rank")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", default="fp32", choices=DTYPES)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--ours", action="store_true", help="the Python package too")
    args = parser.parse_args()
    if args.ours:
        METHODS.update(OURS)
    answers = claim_stdout()
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        context = mp.get_context("fork")
        other = context.Process(target=rank_main, args=(1, args, meeting, -1), daemon=True)
        other.start()
        rank_main(0, args, meeting, answers.fileno())
        other.join(10)


if __name__ == "__main__":
    main()
