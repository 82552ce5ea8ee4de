"""flex_attention, compiled for CPUs, forward only (it has no backward there): a peer of lab/bench/kernel.py.

The side "flex" is one attention, in seconds. The fact "max_error" is the largest difference to fp64, over the
largest value, of some rows of the first head."""

import argparse
import time

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from bench.peers.protocol import claim_stdout, serve

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def visible(mask, tokens):
    """The mask of that name as a function of query and key positions."""
    name, _, arguments = mask.partition(":")
    if name == "full":
        return lambda q, k: (q >= 0) & (k >= 0)
    if name == "causal":
        return lambda q, k: q >= k
    if name == "window":
        left = int(dict(part.split("=") for part in arguments.split(","))["left"])
        return lambda q, k: (q >= k) & (q - k <= left)
    if name == "documents":
        lengths = torch.tensor([int(length) for length in arguments.split(",")])
        document = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        assert len(document) == tokens
        return lambda q, k: (q >= k) & (document[q] == document[k])
    raise ValueError(f"mask {mask}; full, causal, window or documents is required")


class Cell:
    """Inputs and the compiled function of one cell. Making it compiles, which takes up to a minute."""

    def __init__(self, args):
        tokens = args.tokens
        self.see = visible(args.mask, tokens)
        generator = torch.Generator().manual_seed(7)
        shape = (1, args.heads, tokens, args.head_dim)
        self.inputs = [torch.randn(shape, generator=generator).to(DTYPES[args.dtype]) for _ in range(3)]
        blocks = create_block_mask(
            lambda b, h, q, k: self.see(q, k), None, None, tokens, tokens, device="cpu"
        )
        compiled = torch.compile(flex_attention, dynamic=False)
        self.attend = lambda: compiled(*self.inputs, block_mask=blocks)
        self.attend()

    def seconds(self):
        begin = time.perf_counter()
        self.attend()
        return time.perf_counter() - begin

    def error(self):
        q, k, v = (x[0, 0].double() for x in self.inputs)
        rows = torch.linspace(0, len(q) - 1, min(len(q), 64)).long()
        scores = q[rows] @ k.T * q.size(-1) ** -0.5
        visible = self.see(rows[:, None], torch.arange(len(k))[None, :])
        exact = torch.softmax(scores.masked_fill(~visible, float("-inf")), -1) @ v
        return float((self.attend()[0, 0, rows].double() - exact).abs().max() / exact.abs().max())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", default="fp32", choices=DTYPES)
    parser.add_argument("--mask", default="causal")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    answers = claim_stdout()
    torch.set_num_threads(args.threads)
    with torch.no_grad():
        cell = Cell(args)
        facts = {"sides": ["flex"], "max_error": cell.error(), "torch": torch.__version__}
        serve(answers, facts, lambda _: cell.seconds())


if __name__ == "__main__":
    main()
