"""GPT and Llama of `armillary train` in plain PyTorch on one process: a peer of lab/bench/train.py.

Pre-norm with RMSNorm, rotary positions, GELU or SwiGLU, no biases; same names, parameters from a folder of
`armillary export`, AdamW. The side NAME is one step of training, in seconds; a step before the first turn
warms it up. Facts: "loss" and "grad_norm" of that first step, and "memory_bytes", the most that the process
ever held."""

import argparse
import json
import pathlib
import resource
import time

import torch
from torch import nn
from torch.nn import functional

from bench.peers.protocol import claim_stdout, serve

SEPARATOR = 256  # ends a document; all other tokens are bytes


def rotate(x_BHLD, cos, sin):
    first, second = x_BHLD.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def causal(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    def __init__(self, dim, heads, attend):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x_BLE, cos, sin):
        q, k, v = (
            w(x_BLE).unflatten(2, (self.heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        q, k = (rotate(x.float(), cos, sin).to(v.dtype) for x in (q, k))
        out = self.attend(q, k, v)
        return self.wo(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w1 = nn.Linear(dim, 4 * dim, bias=False)
        self.w2 = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x_BLE):
        return self.w2(functional.gelu(self.w1(x_BLE)))


class SwiGlu(nn.Module):
    """The width is that of llama_options in model/llama.h with multiple_of 256."""

    def __init__(self, dim):
        super().__init__()
        hidden = -(-(8 * dim // 3) // 256) * 256
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x_BLE):
        return self.w2(functional.silu(self.w1(x_BLE)) * self.w3(x_BLE))


FEED_FORWARDS = {"gpt": FeedForward, "llama": SwiGlu}


class Layer(nn.Module):
    def __init__(self, dim, heads, model, attend):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim, 1e-5), nn.RMSNorm(dim, 1e-5)
        self.attention, self.feed_forward = Attention(dim, heads, attend), FEED_FORWARDS[model](dim)

    def forward(self, x_BLE, cos, sin):
        x_BLE = x_BLE + self.attention(self.attention_norm(x_BLE), cos, sin)
        return x_BLE + self.feed_forward(self.ffn_norm(x_BLE))


class Decoder(nn.Module):
    """`attend` is given rotated queries and keys, [B, H, L, D] each."""

    def __init__(self, dim, layers, heads, model, attend=causal):
        super().__init__()
        self.tok_embeddings = nn.Embedding(SEPARATOR + 1, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, model, attend) for _ in range(layers))
        self.norm = nn.RMSNorm(dim, 1e-5)
        self.output = nn.Linear(dim, SEPARATOR + 1, bias=False)
        self.head_dim = dim // heads

    def forward(self, tokens_BL, positions_L=None):
        if positions_L is None:
            positions_L = torch.arange(tokens_BL.size(1))
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        angles = torch.outer(positions_L.double(), 10000**-exponents)
        cos, sin = angles.cos().float(), angles.sin().float()
        x_BLE = self.tok_embeddings(tokens_BL)
        for layer in self.layers:
            x_BLE = layer(x_BLE, cos, sin)
        return self.output(self.norm(x_BLE))


def parameters_of(folder):
    """The fp32 tensors of a folder, by name. The format is read here: safetensors may not be installed."""
    tensors = {}
    for path in folder.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:begin])
        header.pop("__metadata__", None)
        for name, info in header.items():
            first, last = info["data_offsets"]
            values = torch.frombuffer(data[begin + first : begin + last], dtype=torch.float32)
            tensors[name] = values.view(info["shape"])
    return tensors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="step", help="of the side")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="one document: the only sequence")
    parser.add_argument("--parameters", type=pathlib.Path, required=True, help="folder of `armillary export`")
    parser.add_argument("--model", default="gpt", choices=FEED_FORWARDS)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    args = parser.parse_args()
    answers = claim_stdout()
    torch.set_num_threads(args.threads)
    model = Decoder(args.dim, args.layers, args.heads, args.model)
    model.load_state_dict(parameters_of(args.parameters))
    adamw = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    tokens = torch.tensor([*args.text.read_bytes(), SEPARATOR])

    def step():
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16"):
            logits = model(tokens[None, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[1:])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        return time.perf_counter() - begin, {"loss": float(loss.detach()), "grad_norm": float(norm)}

    def run(_):
        seconds, _ = step()
        return seconds, {"memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}

    _, first = step()
    serve(answers, {"sides": [args.name], **first, "torch": torch.__version__}, run)


if __name__ == "__main__":
    main()
