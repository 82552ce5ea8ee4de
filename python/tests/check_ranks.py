"""A rank of check_test.py, started as by torchrun: prints reports of good and of wrong models as JSON."""

import json
import sys

import hf_models
import torch
import torch.distributed as dist
import transformers

import armillary
from armillary import hf


class Leaky(torch.nn.Module):
    """Attention over ranks, and then a sum over its own tokens that no mask knows of."""

    def __init__(self, leaks):
        super().__init__()
        torch.manual_seed(1)
        self.embed = torch.nn.Embedding(hf_models.VOCABULARY, 16)
        self.head = torch.nn.Linear(16, hf_models.VOCABULARY)
        self.leaks = leaks


def run(model, batch, sp):
    """One layer without parameters between an embedding and a head."""
    mine = sp.shard(input_ids=batch["input_ids"], labels=batch["labels"])
    x = model.embed(mine["input_ids"])
    if model.leaks:
        x = x + x.mean(1, keepdim=True)
    heads = x.unflatten(-1, (2, 8))
    return sp.loss(model.head(x + sp.attention(heads, heads, heads).flatten(-2)), mine["labels"])


def wrong_scale(model, sp):
    """An installed model whose attention over ranks has another scale."""

    def attend(batch_model, batch, group):
        with hf.install(batch_model, group) as installation:
            if group.world > 1:
                installation.sp = _Scaled(group)
            return batch_model(**hf.shard(group, **batch)).loss

    return attend


class _Scaled:
    def __init__(self, sp):
        self._sp = sp

    def __getattr__(self, name):
        return getattr(self._sp, name)

    def attention(self, q, *rest, **settings):
        return self._sp.attention(1.01 * q, *rest, **settings)


# Rotary positions that depend on the longest position, which one rank has: 48 tokens, trained for 20.
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 20}
LONGER = {
    "dynamic": (transformers.LlamaConfig, {"rope_type": "dynamic", "factor": 4.0}),
    "complex": (transformers.DeepseekV2Config, {"rope_type": "dynamic", "factor": 4.0}),
    "longrope": (transformers.Phi3Config, {"rope_type": "longrope", **FACTORS}),
    "phimoe": (
        transformers.PhimoeConfig,
        {"rope_type": "longrope", "short_mscale": 1.0, "long_mscale": 1.5, **FACTORS},
    ),
}


def longer(kind, rope):
    torch.manual_seed(7)
    sizes = hf_models.SIZES | {"max_position_embeddings": 20}
    if kind is transformers.DeepseekV2Config:
        sizes |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "kv_lora_rank": 16}
        sizes |= {"q_lora_rank": 24, "num_key_value_heads": 4, "head_dim": 8, "first_k_dense_replace": 2}
    config = kind(**sizes, rope_parameters=rope | {"rope_theta": 1e4})
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def main(report):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sp = armillary.SequenceParallel(strategy="ring")
    batch = hf_models.batch(packed=True)
    whole = {name: batch[name] for name in ("input_ids", "labels")}
    model = hf_models.build("mistral")
    reports = {name: armillary.check(longer(kind, rope), whole, sp) for name, (kind, rope) in LONGER.items()}
    reports |= {
        "mistral": armillary.check(model, batch, sp, report=report),
        "bf16": armillary.check(hf_models.build("gemma2", torch.bfloat16), batch, sp),
        "own": armillary.check(Leaky(leaks=False), whole, sp, run=run),
        "leaky": armillary.check(Leaky(leaks=True), whole, sp, run=run),
        "scaled": armillary.check(model, batch, sp, run=wrong_scale(model, sp)),
    }
    if dist.get_rank() == 0:
        print(json.dumps({name: json.loads(one.to_json()) for name, one in reports.items()}))
    armillary.leave_groups()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
