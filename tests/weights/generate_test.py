"""Texts continued with models of others: greedy tokens are those of transformers, on any ranks."""

import json

import pytest
import torch
from model_programs import PROGRAM, ROOT, built, output_of, run
from tiny_families import FAMILIES, tiny

pytestmark = built
TOKENS = 24
TEXT = (ROOT / "README.md").read_bytes().decode("ascii", "ignore")
#: Families with frequencies of the length that a cache of this length does not have.
REFUSED = {"dynamic": "rotary frequencies change with the length"}
RANKS = [("--ranks", 1), ("--ranks", 3, "--chunk", 50), ("--ranks", 2, "--tp", 2), ("--ranks", 4, "--tp", 2)]


def save(folder, name):
    """A model whose words are bytes, in an order of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tiny(name).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i + 2 for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def continued(model, prompt, *flags, tokens=TOKENS):
    words = [PROGRAM, "generate", model, "--prompt-file", prompt, "--tokens", tokens, "--json", *flags]
    return json.loads(output_of(*words))


def greedy(folder, tokens):
    """Token by token without a cache, whose keys transformers does not turn again."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()
    new = []
    with torch.no_grad():
        for _ in range(TOKENS):
            new.append(model(torch.tensor([tokens + new])).logits[0, -1].argmax().item())
            if new[-1] == 1:  # eos_token_id
                return new[:-1]
    return new


@pytest.mark.parametrize(("at", "name"), list(enumerate(FAMILIES)))
def test_a_text_is_continued_as_by_transformers(tmp_path, at, name):
    folder, prompt = tmp_path / "model", tmp_path / "prompt.txt"
    tokenizer = save(folder, name)
    # `longrope` has long factors behind 32 tokens.
    prompt.write_text(TEXT[: 60 + at])
    if name in REFUSED:
        finished = run(PROGRAM, "generate", folder, "--prompt-file", prompt, "--ranks", 2)
        assert finished.returncode == 2
        assert REFUSED[name] in finished.stderr
        return
    required = greedy(folder, tokenizer.encode(TEXT[: 60 + at]).ids)
    flags = RANKS[at % len(RANKS)] if name != "smollm2" else ("--ranks", 6, "--tp", 3)
    result = continued(folder, prompt, *flags)
    assert result["prompt_tokens"] == 60 + at
    assert result["tokens"] == required
    # Ids from 258 on are no words of the tokenizer.
    assert result["text"] == tokenizer.decode(required)


def test_python_draws_the_tokens_of_the_program(tmp_path):
    import armillary

    folder, prompt = tmp_path / "model", tmp_path / "prompt.txt"
    tokenizer = save(folder, "llama")
    prompt.write_text(TEXT[:60])
    drawn = {"temperature": 1.3, "top_k": 50, "top_p": 0.9, "seed": 11}
    flags = [word for key, value in drawn.items() for word in (f"--{key.replace('_', '-')}", value)]
    with armillary.Sessions(folder, ranks=4, tensor_parallel=2) as sessions:
        tokens = list(sessions.generate(tokenizer.encode(TEXT[:60]).ids, tokens=TOKENS, **drawn))
    assert tokens == continued(folder, prompt, "--ranks", 4, "--tp", 2, *flags)["tokens"]
    assert len(tokens) > 0


def test_short_texts_have_the_first_frequencies(tmp_path):
    folder, prompt = tmp_path / "model", tmp_path / "prompt.txt"
    tokenizer = save(folder, "dynamic")
    prompt.write_text("to be")
    result = continued(folder, prompt, "--ranks", 2, tokens=8)
    assert result["tokens"] == greedy(folder, tokenizer.encode("to be").ids)[:8]


def test_a_dry_run_says_what_a_prompt_takes(tmp_path):
    folder, prompt = tmp_path / "model", tmp_path / "prompt.txt"
    save(folder, "llama")
    prompt.write_text(TEXT[:50])
    shape = json.loads((folder / "config.json").read_text())
    head_dim = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    for dtype, size in (("fp32", 4), ("bf16", 2)):
        flags = ("--dtype", dtype, "--dry-run", "--cluster", "c5")
        costs = continued(folder, prompt, "--ranks", 4, *flags)
        assert (costs["prompt"], costs["cp"], costs["tp"]) == (50, 4, 1)
        layer = 2 * shape["num_key_value_heads"] * head_dim * size
        assert costs["cache_bytes"] == 13 * shape["num_hidden_layers"] * layer
        assert costs["time_to_first_token_s"]["attention"] > 0
        assert costs["longest_prompt"] > 50
    words = ("--prompt-file", prompt, "--ranks", 16, "--dry-run", "--cluster", "c5")
    text = output_of(PROGRAM, "generate", folder, *words)
    assert "50 tokens over 16 ranks, cp 16, tp 1, ring and zigzag" in text
    assert "time to first token" in text


def test_a_dry_run_of_more_tokens_than_a_window_is_refused(tmp_path):
    folder, prompt = tmp_path / "model", tmp_path / "prompt.txt"
    save(folder, "mistral")
    window = json.loads((folder / "config.json").read_text())["sliding_window"]
    words = ("--prompt-file", prompt, "--ranks", 2, "--dry-run", "--cluster", "c5")
    prompt.write_text(TEXT[: window + 1])
    finished = run(PROGRAM, "generate", folder, *words)
    assert finished.returncode == 2
    assert f"a window of {window}; at most {window} are required" in finished.stderr
    prompt.write_text(TEXT[:window])
    assert f"{window} tokens over 2 ranks" in output_of(PROGRAM, "generate", folder, *words)


def test_words_without_a_tokenizer_are_refused(tmp_path):
    tiny("llama").save_pretrained(tmp_path / "model")
    (tmp_path / "prompt.txt").write_text("x")
    finished = run(PROGRAM, "generate", tmp_path / "model", "--prompt-file", tmp_path / "prompt.txt")
    assert finished.returncode == 2
    assert "has 300 words and no tokenizer.json; --tokenizer with" in finished.stderr
