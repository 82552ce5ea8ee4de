"""GGUF files: blocks of every type against numpy, permuted heads, and SmolLM2-135M against transformers."""

import json

import gguf_numpy
import numpy as np
import pytest
import smollm2
import torch
from model_programs import PROGRAM, ROOT, assert_equal_logits, built, our_logits, output_of, train
from smollm2 import NAMES, restored
from tiny_families import tiny, tokens_of

pytestmark = built


def permuted(rows, heads):
    """As convert_hf_to_gguf.py has Q and K of llama: the halves of a head interleaved."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


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


@smollm2.needed
def test_smollm2_has_the_logits_of_transformers(tmp_path):
    metadata, model = smollm2.reference()
    # A text by words of the file, and 64 tokens behind it.
    words = metadata["tokenizer.ggml.tokens"]
    prompt = torch.tensor([words.index(word) for word in ("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis")])
    greedy = model.generate(prompt[None], do_sample=False, max_new_tokens=64)[0]
    assert len(greedy) == 5 + 64
    assert words[greedy[5]] == "ĠParis"
    ours = our_logits(smollm2.FILE, greedy, tmp_path)
    assert torch.equal(ours[4:-1].argmax(1), greedy[5:])
    (tmp_path / "prompt.txt").write_text("The capital of France is")
    for flags in ((), ("--ranks", 3, "--chunk", 2), ("--ranks", 4, "--page", 1), ("--ranks", 3, "--tp", 3)):
        generate = [PROGRAM, "generate", smollm2.FILE, "--prompt-file", tmp_path / "prompt.txt", "--json"]
        result = json.loads(output_of(*generate, *flags))
        assert result["prompt_tokens"] == 5
        assert result["text"].startswith(" Paris")
        # Behind its end transformers goes on here.
        count = len(result["tokens"])
        assert result["tokens"] == greedy[5 : 5 + count].tolist(), flags
        assert count == 64 or greedy[5 + count] == metadata["tokenizer.ggml.eos_token_id"]

    # Text: on 512 random words the fp32 angles of transformers alone are an error of 5e-5.
    tokens = torch.tensor(smollm2.tokenizer(metadata).encode((ROOT / "README.md").read_text()).ids[:512])
    required = logits_of(model, tokens)
    assert_equal_logits(our_logits(smollm2.FILE, tokens, tmp_path), required)
    assert_equal_logits(our_logits(smollm2.FILE, tokens, tmp_path, 1, 3), required)
    assert_equal_logits(our_logits(smollm2.FILE, tokens, tmp_path, 2, 2), required)


@smollm2.needed
def test_the_recipe_of_smollm2_is_what_its_file_says():
    printed = output_of(*train("runs/smollm2", smollm2.FILE, "--print-config"))
    for line in ("dim = 576", "n_layers = 30", "n_heads = 9", "n_kv_heads = 3", "hidden_dim = 1536"):
        assert line in printed
    assert "rope_theta = 100000.0" in printed
    assert "enable_weight_tying = true" in printed
