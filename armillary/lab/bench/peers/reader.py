"""A model that reads a prompt and continues it, in a process of its own: a peer of lab/bench/serve.py.

The side `NAME prefill` reads all ids into an empty cache; its value is the seconds until the logits of the
last token are there. `NAME decode`, behind it, adds --new tokens one by one, each the most likely one; its
value is the median of their seconds. Facts: "tokens", the first of which follows the prompt; "memory_bytes",
the most that its private memory was once it was warm (process_memory.py). The logits are written to --logits.

transformers has its SDPA, its cache and the last token's logits alone. Its rotary angles are fp64 before they
are rounded, as ours: those of fp32 differ the more the longer a prompt is. llama.cpp has a cache in fp32."""

import argparse
import statistics
import time

import numpy

from bench.peers.protocol import UnableError, claim_stdout, serve
from bench.process_memory import forget_peak, private_peak, sizes

PAGE = 16
WARM_TOKENS = 128


class OurReader:
    """Sessions of the Python package; ranks are threads of this process."""

    def __init__(self, args, tokens):
        import torch

        import armillary

        passes = -(-tokens // args.chunk) if args.chunk else 1
        # Equal parts, what a rank may have above them in a pass, and pages that are not full.
        of_rank = -(-(tokens + args.new) // args.ranks) + 2 * passes + 4 * PAGE
        self.sessions = armillary.Sessions(
            args.model,
            ranks=args.ranks,
            pages=-(-of_rank // PAGE) + 2,
            page=PAGE,
            chunk=args.chunk,
            dtype=torch.float32 if args.dtype == "fp32" else torch.bfloat16,
            timeout=3600,
        )
        self.session = None

    def prefill(self, ids):
        if self.session is not None:
            self.sessions.release(self.session)
            self.session = None
        self.session, logits_V = self.sessions.prefill(ids.tolist())
        return logits_V.float().numpy()

    def decode(self, token):
        return self.sessions.decode({self.session: token})[0].float().numpy()


def fp64_angles(config):
    """Cosines and sines of positions, whose angles are fp64 before they are rounded."""
    import torch

    class Angles(torch.nn.Module):
        def __init__(self):
            super().__init__()
            powers = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
            self.frequencies = config.rope_parameters["rope_theta"] ** -powers

        def forward(self, x, position_ids):
            angles = position_ids[..., None].double() * self.frequencies
            angles = torch.cat([angles, angles], -1)
            return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    return Angles()


class TransformersReader:
    def __init__(self, args, _):
        import torch
        import transformers

        torch.set_num_threads(args.threads)
        torch.set_grad_enabled(False)
        self.torch = torch
        dtype = torch.float32 if args.dtype == "fp32" else torch.bfloat16
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            args.model, dtype=dtype, attn_implementation="sdpa", local_files_only=True
        ).eval()
        if self.model.config.rope_parameters["rope_type"] == "default":
            self.model.model.rotary_emb = fp64_angles(self.model.config)
        self.cache = None

    def _read(self, ids):
        result = self.model(
            self.torch.tensor([ids]), past_key_values=self.cache, use_cache=True, logits_to_keep=1
        )
        self.cache = result.past_key_values
        return result.logits[0, -1].float().numpy()

    def prefill(self, ids):
        self.cache = None
        return self._read(ids.tolist())

    def decode(self, token):
        return self._read([token])


class LlamaReader:
    def __init__(self, args, tokens):
        import llama_cpp

        fp32 = 0  # GGML_TYPE_F32
        self.library = llama_cpp
        self.llama = llama_cpp.Llama(
            args.model,
            n_ctx=tokens + args.new + 1,
            n_threads=args.threads,
            n_threads_batch=args.threads,
            type_k=fp32,
            type_v=fp32,
            verbose=False,
        )

    def _read(self, ids):
        self.llama.eval(ids)
        pointer = self.library.llama_get_logits_ith(self.llama.ctx, -1)
        return numpy.ctypeslib.as_array(pointer, (self.llama.n_vocab(),)).copy()

    def prefill(self, ids):
        self.llama.reset()
        return self._read(ids.tolist())

    def decode(self, token):
        return self._read([token])


READERS = {"ours": OurReader, "transformers": TransformersReader, "llama.cpp": LlamaReader}


class Run:
    """The two sides of a reader, warm."""

    def __init__(self, args):
        self.args = args
        self.ids = numpy.load(args.ids)
        self.reader = READERS[args.library](args, len(self.ids))
        self.reader.decode(int(self.reader.prefill(self.ids[:WARM_TOKENS]).argmax()))
        self.next = None
        self.facts = {}
        forget_peak()

    def side(self, name):
        value = self.prefill() if name.endswith(" prefill") else self.decode()
        self.facts["memory_bytes"] = private_peak(sizes())
        return value, self.facts

    def prefill(self):
        begin = time.perf_counter()
        logits_V = self.reader.prefill(self.ids)
        seconds = time.perf_counter() - begin
        numpy.save(self.args.logits, logits_V)
        self.next = int(logits_V.argmax())
        return seconds

    def decode(self):
        if self.next is None:
            raise UnableError("no prompt was read")
        tokens, times = [self.next], []
        self.next = None
        for _ in range(self.args.new):
            begin = time.perf_counter()
            tokens.append(int(self.reader.decode(tokens[-1]).argmax()))
            times.append(time.perf_counter() - begin)
        self.facts["tokens"] = tokens
        return statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True, help="of the sides")
    parser.add_argument("--library", required=True, choices=READERS)
    parser.add_argument("--model", required=True, help="folder; of llama.cpp a GGUF file")
    parser.add_argument("--ids", required=True, help="of the prompt, .npy")
    parser.add_argument("--logits", required=True, help="behind the prompt, .npy")
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--ranks", type=int, default=1, help="of ours, which take all cores")
    parser.add_argument("--threads", type=int, default=1, help="of others")
    parser.add_argument("--chunk", type=int, default=0, help="of ours")
    parser.add_argument("--new", type=int, default=32, help="tokens of a continuation")
    parser.add_argument("--once", action="store_true", help="read the prompt once and end")
    args = parser.parse_args()
    answers = claim_stdout()
    run = Run(args)
    if args.once:
        run.prefill()
        return
    serve(answers, {"sides": [f"{args.name} prefill", f"{args.name} decode"]}, run.side)


if __name__ == "__main__":
    main()
