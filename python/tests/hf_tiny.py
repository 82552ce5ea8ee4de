"""A tiny model of any family of causal language models of transformers, with random weights."""

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY, WINDOW = 61, 7
# By the names that families give them; a family takes those that its configuration has.
SIZES = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "n_inner", "decoder_ffn_dim", "ffn_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "decoder_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 64),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "num_key_value_heads"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "head_dim"), 8),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    "vocab_size": VOCABULARY,
    **dict.fromkeys(("initializer_range", "init_std"), 0.2),
    "sliding_window": WINDOW,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_KINDS = {"layer_types": ["sliding_attention", "full_attention"]}
_LATENT = {"num_key_value_heads": 4, "head_dim": 4}
_DECODER = {"is_decoder": True}
_EMBEDDED = _KINDS | {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8}
_GEMMA4 = _EMBEDDED | {"global_head_dim": 8, "num_global_key_value_heads": 2, "num_kv_shared_layers": 0}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_OWN = {
    **dict.fromkeys(("cohere2", "olmo3", "exaone4", "afmoe", "cohere2_moe", "dory", "kolibri1"), _KINDS),
    **dict.fromkeys(("ministral", "exaone_moe", "gemma3_text"), _KINDS),
    **dict.fromkeys(("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu", "minicpm3"), _LATENT),
    "sarvam_mla": _LATENT,
    "longcat_flash": _LATENT | {"num_layers": 1},
    **dict.fromkeys(("bert", "bert-generation", "electra", "ernie"), _DECODER),
    "roc_bert": _DECODER | {"pronunciation_vocab_size": 16, "shape_vocab_size": 16},
    "ctrl": {"dff": 48},
    **dict.fromkeys(("codegen", "gptj"), {"rotary_dim": 4}),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), _GEMMA4),
    "gemma3n_text": _EMBEDDED
    | {
        "num_kv_shared_layers": 0,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.0, 0.0],
        "intermediate_size": [48, 48],
    },
    "cohere_compass_text": _KINDS
    | {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
    },
    "dots1": {"n_shared_experts": 1},
    "modernbert-decoder": {"pad_token_id": 1},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 1},
    "smollm3": {"no_rope_layers": [0, 1]},
}


#: All experts for each token: no choice for rounding to change.
DENSE = {"num_experts_per_tok": 4, "moe_k": 4}


def build(family, more=None):
    """A model in evaluation mode with eager attention, the same on every rank, in fp64. more: other sizes."""
    torch.manual_seed(7)
    kind = CONFIG_MAPPING[family]
    known = {*kind().to_dict(), *kind.attribute_map}
    sizes = {name: value for name, value in (SIZES | (more or {})).items() if name in known}
    config = kind(**sizes | _OWN.get(family, {}))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.set_experts_implementation("eager")  # other products of experts have no fp64
    with torch.no_grad():
        for parameter in model.parameters():
            # Zeros and ones of a new model would hide whatever they multiply.
            if parameter.numel() == 1 or float(parameter.std()) < 1e-3:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.double().eval()
