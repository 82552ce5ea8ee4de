"""flex_attention, compiled for CPUs, forward only (it has no backward there): a peer of bench/kernel.py.

A side is a cell as JSON (tokens, heads, head_dim, dtype, mask, threads), whose value is seconds; with
"error " before it the largest difference to fp64, over the largest value, of some rows of the first head.
The first run of a cell compiles."""

import json
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
    """Inputs, and the compiled function, of one cell."""

    def __init__(self, tokens, heads, head_dim, dtype, mask, threads):
        torch.set_num_threads(threads)
        torch._dynamo.reset()  # what was compiled for another shape is of no use
        see = visible(mask, tokens)
        generator = torch.Generator().manual_seed(7)
        self.inputs = [
            torch.randn(1, heads, tokens, head_dim, generator=generator).to(DTYPES[dtype]) for _ in range(3)
        ]
        self.see = see
        blocks = create_block_mask(lambda b, h, q, k: see(q, k), None, None, tokens, tokens, device="cpu")
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
        seen = self.see(rows[:, None], torch.arange(len(k))[None, :])
        exact = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1) @ v
        return float((self.attend()[0, 0, rows].double() - exact).abs().max() / exact.abs().max())


def main():
    answers = claim_stdout()
    cells = {}

    def run(side):
        wants_error = side.startswith("error ")
        text = side.removeprefix("error ")
        if text not in cells:
            cells.clear()  # one at a time: long ones are large
            cells[text] = Cell(**json.loads(text))
        return cells[text].error() if wants_error else cells[text].seconds()

    with torch.no_grad():
        serve(answers, {"sides": "any cell", "torch": torch.__version__}, run)


if __name__ == "__main__":
    main()
