"""Tiny models of the families of transformers, with random weights, and the batches they are compared on."""

import torch
import transformers

VOCABULARY, TOKENS, BATCH, WINDOW = 61, 48, 2, 7
DOCUMENTS = (5, 20, 1, 22)
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
SOME_WINDOWS = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
MLA = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "num_key_value_heads": 4,
}
ROUTED = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}

CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "qwen3": lambda: transformers.Qwen3Config(
        **SIZES, head_dim=8, use_sliding_window=True, max_window_layers=1, sliding_window=WINDOW
    ),
    "mistral": lambda: transformers.MistralConfig(**SIZES, head_dim=8, sliding_window=WINDOW),
    "gemma2": lambda: transformers.Gemma2Config(
        **SIZES, head_dim=8, query_pre_attn_scalar=8, attn_logit_softcapping=2.0, **SOME_WINDOWS
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES, head_dim=8, query_pre_attn_scalar=8, **SOME_WINDOWS
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES, head_dim=8, num_local_experts=4, num_experts_per_tok=2, **SOME_WINDOWS
    ),
    "deepseek": lambda: transformers.DeepseekV3Config(**SIZES | MLA | ROUTED, first_k_dense_replace=1),
}


def build(family, dtype=torch.float32):
    """A model in evaluation mode, the same on every rank, with eager attention."""
    torch.manual_seed(7)
    config = CONFIGS[family]()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return model.to(dtype).eval()


def batch(packed):
    """Whole sequences: input_ids, labels with some that are ignored, and documents or None."""
    generator = torch.Generator().manual_seed(11)
    input_ids = torch.randint(2, VOCABULARY, (BATCH, TOKENS), generator=generator)
    labels = input_ids.clone()
    labels[:, 3] = labels[0, 17] = -100
    ids = torch.repeat_interleave(torch.arange(len(DOCUMENTS)), torch.tensor(DOCUMENTS)).expand(BATCH, -1)
    return {"input_ids": input_ids, "labels": labels, "document_ids": ids if packed else None}


def positions_of(document_ids):
    """[B, S] positions that begin again with every document, as transformers wants packed sequences."""
    if document_ids is None:
        return torch.arange(TOKENS).expand(BATCH, -1)
    return torch.cat([torch.arange(length) for length in DOCUMENTS]).expand(BATCH, -1)


def dense_masks(dtype):
    """Masks of packed documents by kind of layer: GPT-OSS does not look for documents in position_ids."""
    at = torch.arange(TOKENS)
    document = torch.repeat_interleave(torch.arange(len(DOCUMENTS)), torch.tensor(DOCUMENTS))
    sees = (document[:, None] == document) & (at[:, None] >= at)
    kinds = {"full_attention": sees, "sliding_attention": sees & (at[:, None] - at < WINDOW)}
    least = torch.finfo(dtype).min
    return {
        kind: torch.where(mask, 0.0, least).to(dtype).expand(BATCH, 1, -1, -1) for kind, mask in kinds.items()
    }
