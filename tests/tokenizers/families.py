"""Small tokenizers of every family, trained on the documents of this project by PyPI `tokenizers`."""

import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as pre

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARK = "▁"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
WORD = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{WORD}(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{{L}}\p{{N}}]?"
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SCRIPTS = (
    "日本語の文章です。中文文本测试，数字１２３。한국어 텍스트. Привет, мир! Ελληνικά Ωμέγα. عربى نص "
    "😀👨‍👩‍👧 é e\u0301 ﬁ ½ straße ſ K DON'T we'LL it's\r\n\r\n   \t\t x  \u00a0\u3000 1234567 ١٢٣ Ⅷ ㊿ "
)


def corpus():
    paths = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "armillary/plan").glob("*.cpp")])
    return [*(path.read_text(encoding="utf-8") for path in paths), SCRIPTS * 30]


def byte_level(*steps, normalizer=None, ignore_merges=False, prefix=False, regex=False, added=()):
    """Steps before ByteLevel, which itself cuts by GPT-2's expression if `regex`."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre.Sequence([*steps, pre.ByteLevel(add_prefix_space=prefix, use_regex=regex)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        show_progress=False,
        special_tokens=["<|endoftext|>", "<|begin|>"],
        initial_alphabet=pre.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(list(added))
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]),
        ]
    )
    return tokenizer


def byte_fallback(normalizer, pre_tokenizer, decoder, fuse=True, tokens=BYTES):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>", *tokens],
        limit_alphabet=150,
        max_token_length=16,
    )
    tokenizer.train_from_iterator([line for text in corpus() for line in text.splitlines()], trainer)
    # Tokens of bytes are ordinary tokens, not added ones, and the model falls back to them.
    parts = json.loads(tokenizer.to_str())
    parts["model"]["byte_fallback"] = bool(tokens)
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["content"] not in BYTES]
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    tokenizer.decoder = decoder
    ends = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    return tokenizer


def isolated(pattern):
    return pre.Split(Regex(pattern), "isolated")


def split_as(behavior):
    text = pre.Split(" ", behavior, invert=behavior == "contiguous")
    return byte_level(
        pre.Split(Regex(r"[\s.]"), behavior),
        text,
        pre.Digits(individual_digits=False),
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", "_")]),
    )


def llama_decoder():
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return decoders.Sequence(steps)


SPACED = AddedToken("  x", lstrip=True, rstrip=True, normalized=True)
FAMILIES = {
    "gpt2": lambda: byte_level(regex=True),
    "gpt2_prefix": lambda: byte_level(regex=True, prefix=True),
    "llama3": lambda: byte_level(isolated(LLAMA3), ignore_merges=True),
    "qwen": lambda: byte_level(
        isolated(QWEN), normalizer=normalizers.NFC(), added=[AddedToken("<think>", normalized=False), SPACED]
    ),
    "smollm": lambda: byte_level(pre.Digits(individual_digits=True), regex=True),
    "gpt4o": lambda: byte_level(isolated(GPT4O)),
    "cl100k": lambda: byte_level(pre.Split(Regex(CL100K), "removed", invert=True)),
    "nfd": lambda: byte_level(regex=True, normalizer=normalizers.NFD()),
    "nfkd": lambda: byte_level(regex=True, normalizer=normalizers.NFKD()),
    "removed": lambda: split_as("removed"),
    "merged_with_previous": lambda: split_as("merged_with_previous"),
    "merged_with_next": lambda: split_as("merged_with_next"),
    "contiguous": lambda: split_as("contiguous"),
    "llama2": lambda: byte_fallback(
        normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]),
        None,
        llama_decoder(),
    ),
    "mistral": lambda: byte_fallback(None, pre.Metaspace(MARK, "first", False), llama_decoder()),
    "metaspace": lambda: byte_fallback(
        None, pre.Metaspace(MARK, "always", True), decoders.Metaspace(MARK, "always", True), fuse=False
    ),
    "some_bytes": lambda: byte_fallback(
        None, pre.Metaspace(MARK, "never", True), decoders.Metaspace(MARK, "never", True), False, BYTES[:200]
    ),
    "code_points": lambda: byte_fallback(normalizers.NFC(), None, decoders.Fuse(), tokens=[]),
}
