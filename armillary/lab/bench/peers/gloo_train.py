"""The GPT or Llama of plain_decoder.py, trained by processes of PyTorch on Gloo, one thread each: a peer of
lab/bench/mesh.py.

A sequence is shared by the ranks of a row of the mesh dp x cp, by PyTorch's ring engine with the CPU kernel
handed in (gloo_public.py): its `context_parallel` itself refuses CPUs. Parameters are replicated or divided
over all ranks:

    zero 0   DDP                                                zero 2   FSDP2, kept gathered after forward
    zero 1   DDP, its AdamW divided by ZeroRedundancyOptimizer  zero 3   FSDP2, gathered again in backward

The side NAME is the median of a few steps, in seconds; a step before the first turn warms it up. Facts:
"losses" of the first steps; "memory_bytes", the peaks of private memory of all processes together, and
"before_bytes", that memory when the ranks have met and their tokens are read, before the model is made
(process_memory.py); "late_modules", how many of Python rank 0 loads after that; "sent_bytes", what hosts
send in a step; "torch"."""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import distribute_tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from bench.peers.gloo_public import context_parallel
from bench.peers.hosts import DEVICE, enter, sent_bytes
from bench.peers.plain_decoder import FEED_FORWARDS, SEPARATOR, Decoder, causal, parameters_of
from bench.peers.protocol import claim_stdout, serve
from bench.process_memory import forget_peak, private, private_peak, sizes

SETTINGS = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}


def fill(model, parameters):
    """Gives each parameter, whole or divided, its values."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = parameters[name]
            if hasattr(parameter, "to_local"):
                divided = distribute_tensor(
                    values, parameter.device_mesh, parameter.placements, src_data_rank=None
                )
                parameter.to_local().copy_(divided.to_local())
            else:
                parameter.copy_(values)


class Trainer:
    """A rank: its model, its tokens of the one batch, and its optimizer."""

    def __init__(self, args):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.args, self.losses = args, []
        rows = init_device_mesh("cpu", (ranks // args.cp, args.cp), mesh_dim_names=("dp", "cp"))
        row, place = divmod(rank, args.cp)
        begin = row * args.tokens * args.cp
        text = args.text.read_bytes()[begin : begin + args.tokens * args.cp + 1]
        tokens = torch.tensor([*text, SEPARATOR])  # the last label of the text, unless there is one
        pieces = torch.arange(args.tokens * args.cp).chunk(2 * args.cp)
        self.positions_L = torch.cat([pieces[place], pieces[2 * args.cp - 1 - place]])
        self.tokens_BL, self.labels_L = tokens[self.positions_L][None], tokens[self.positions_L + 1]
        attend = causal if args.cp == 1 else context_parallel(args.rotation, rows["cp"].get_group())
        self.before_bytes, self.modules = private(sizes()), len(sys.modules)
        with torch.device("meta"):
            model = Decoder(args.dim, args.layers, args.heads, args.model, attend)
        if args.zero >= 2:
            for part in [*model.layers, model]:
                fully_shard(
                    part, mesh=init_device_mesh("cpu", (ranks,)), reshard_after_forward=args.zero == 3
                )
        model.to_empty(device="cpu")
        fill(model, parameters_of(args.parameters))
        if args.zero < 2:
            model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        if args.zero == 1:
            self.adamw = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **SETTINGS)
        else:
            self.adamw = torch.optim.AdamW(model.parameters(), **SETTINGS)
        self.model = model
        forget_peak()

    def step(self):
        """Takes a step, whose loss is a mean over the tokens of all ranks; all have equally many."""
        logits = self.model(self.tokens_BL, self.positions_L)
        loss = functional.cross_entropy(logits.flatten(0, 1), self.labels_L)
        loss.backward()  # gradients are means over the ranks
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        total = loss.detach().clone()
        dist.all_reduce(total)
        self.losses.append(float(total) / dist.get_world_size())

    def steps(self, count):
        """Seconds of each of `count` steps."""
        seconds = []
        for _ in range(count):
            dist.barrier()
            begin = time.perf_counter()
            self.step()
            seconds.append(time.perf_counter() - begin)
        return seconds

    def memory(self):
        """Facts of all ranks together."""
        totals = torch.tensor([private_peak(sizes()), self.before_bytes])
        dist.all_reduce(totals)
        return dict(zip(("memory_bytes", "before_bytes"), totals.tolist(), strict=True))


def lead(trainer, answers):
    """Rank 0: all ranks do what it is asked."""
    args = trainer.args

    def run(_):
        dist.broadcast_object_list([args.steps], 0)
        before = sent_bytes(args.hosts)
        seconds = trainer.steps(args.steps)
        facts = {"sent_bytes": (sent_bytes(args.hosts) - before) / args.steps, "losses": trainer.losses}
        facts["late_modules"] = len(sys.modules) - trainer.modules
        return statistics.median(seconds), facts | trainer.memory()

    serve(answers, {"sides": [args.name], "torch": torch.__version__}, run)
    dist.broadcast_object_list([0], 0)


def follow(trainer):
    """The other ranks, until rank 0 ends."""
    while True:
        steps = [0]
        dist.broadcast_object_list(steps, 0)
        if steps[0] == 0:
            return
        trainer.steps(steps[0])
        trainer.memory()


def rank_main(rank, args, meeting, answers_fd):
    if args.hosts:
        enter(args.hosts[rank * len(args.hosts) // args.ranks])
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE if args.hosts else "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=args.ranks,
        timeout=timedelta(seconds=args.timeout),
    )
    trainer = Trainer(args)
    trainer.steps(1)
    if rank == 0:
        with os.fdopen(answers_fd, "w") as answers:
            lead(trainer, answers)
    else:
        follow(trainer)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="step", help="of the side")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="the sequences, one after the other")
    parser.add_argument("--parameters", type=pathlib.Path, required=True, help="folder of `armillary export`")
    parser.add_argument("--model", default="gpt", choices=FEED_FORWARDS)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512, help="of a rank in a step")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--cp", type=int, default=1, help="ranks that share a sequence")
    parser.add_argument("--zero", type=int, default=0, choices=range(4))
    parser.add_argument("--rotation", default="alltoall", choices=("alltoall", "allgather"))
    parser.add_argument("--steps", type=int, default=2, help="of a turn")
    parser.add_argument("--hosts", nargs="*", default=[], help="names, if the ranks are on several")
    parser.add_argument("--timeout", type=float, default=1800)
    args = parser.parse_args()
    answers = claim_stdout()
    import torch._dynamo  # noqa: F401, AdamW does in each rank otherwise

    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        context = mp.get_context("fork")
        others = [
            context.Process(target=rank_main, args=(rank, args, meeting, -1), daemon=True)
            for rank in range(1, args.ranks)
        ]
        for other in others:
            other.start()
        rank_main(0, args, meeting, answers.fileno())
        for other in others:
            other.join(10)


if __name__ == "__main__":
    main()
