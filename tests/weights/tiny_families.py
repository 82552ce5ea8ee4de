"""Tiny models of transformers with random weights: every family and scaling of positions that is read."""

import torch
import transformers

VOCABULARY, TOKENS = 300, 96
_DIVISORS = {
    "short_factor": [1 + i / 10 for i in range(8)],
    "long_factor": [1.0 + i for i in range(8)],
}
# A name, the class of the configuration, and what differs from the sizes below.
FAMILIES = {
    "llama": ("Llama", {}),
    "smollm2": (
        "Llama",
        {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72, "tie_word_embeddings": True},
    ),
    "linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "dynamic": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 32},
    ),
    "llama3": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "yarn": (
        "Llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    ),
    "longrope": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                **_DIVISORS,
            }
        },
    ),
    "longrope_short": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "factor": 2.0,
                "original_max_position_embeddings": 128,
                **_DIVISORS,
            }
        },
    ),
    "mistral": ("Mistral", {"sliding_window": 16}),
    "mistral_whole": ("Mistral", {"sliding_window": None, "head_dim": 24}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2_window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0}),
    "qwen3": ("Qwen3", {"head_dim": 32, "rms_norm_eps": 1e-6}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 24}),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
            "head_dim": 32,
        },
    ),
    "qwen3_moe_raw": (
        "Qwen3Moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "norm_topk_prob": False},
    ),
}


def tiny(name, seed=0):
    """A model in fp32 whose attention is far from uniform, and whose norms and biases are not 1 and 0."""
    family, keys = FAMILIES[name]
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    # The configuration writes into the objects that it is given.
    keys = {key: dict(value) if isinstance(value, dict) else value for key, value in keys.items()}
    torch.manual_seed(seed)
    config = getattr(transformers, family + "Config")(**(sizes | keys))
    model = getattr(transformers, family + "ForCausalLM")(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, 0.15)
    model.tie_weights()
    return model


def tokens_of(count=TOKENS, vocabulary=VOCABULARY, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (count,), generator=generator)


def logits_of(folder, tokens):
    """Logits of the model that transformers loads from a folder, eager and in fp32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    with torch.no_grad():
        return model.eval()(tokens[None]).logits[0]
