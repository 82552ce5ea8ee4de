"""Small valid files of every kind that is fuzzed, as trees where they have a structure."""

import ctypes
import json
import struct

TEXT = (
    "The theory: it's 3.14 of the 12345\n\n  na\u00efve \u65e5\u672c\u8a9e \U0001f600\u0301 <|end|> end\r\n"
)
END = "<|end|>"
MERGES = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("i", "t")]
LLAMA3 = (
    r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WIDTH = 32  # of the model of the GGUF file, a block of its quantised types
RECIPE = """
[job]
dump_folder = "run"
[model]
dim = 8
n_layers = 1
n_heads = 1
vocab_size = 300
[training]
dataset_path = "text.txt"
seq_len = 8
[parallelism]
context_parallel_degree = 1
"""


def _letters():
    """The letters that stand for bytes in byte-level tokenizers."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def _tokens():
    return [*_letters(), *(left + right for left, right in MERGES), END]


def _added(token, number):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, **flags, "special": True}


def byte_level():
    """As Llama 3 has it."""
    vocabulary = {token: number for number, token in enumerate(_tokens())}
    template = [{"SpecialToken": {"id": END, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    split = {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False}
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    special = {END: {"id": END, "ids": [vocabulary[END]], "tokens": [END]}}
    post = {"type": "TemplateProcessing", "single": template, "pair": [], "special_tokens": special}
    return {
        "version": "1.0",
        "truncation": None,
        "added_tokens": [_added(END, vocabulary[END])],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKD"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, letters]},
        "post_processor": post,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [" ".join(merge) for merge in MERGES]},
    }


def byte_fallback():
    """As Llama 2 and Mistral have it."""
    tokens = ["<unk>", "<s>", END, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", "t", "h", "e", "th", "the", "\u2581the"]
    merges = [["t", "h"], ["th", "e"], ["\u2581", "the"]]
    mark = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    blank = {"type": "Replace", "pattern": {"String": "  "}, "content": " "}
    back = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]
    model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return {
        "version": "1.0",
        "added_tokens": [_added(token, number) for number, token in enumerate(tokens[:3])],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": " "}, blank]},
        "pre_tokenizer": mark,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model | {"vocab": vocabulary, "merges": merges},
    }


def json_lines():
    """Documents of several lengths."""
    return [{"text": TEXT[i : 20 * i + 1], "meta": {"a": [1, 2.5, None]}} for i in range(8)]


# GGUF: keys are [name, number of the type, value], arrays have [number of the type, values] as value, tensors
# are [name, dims from the longest stride on, number of the type].

_FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 30: (1, 2)}


def gguf():
    """A Llama of one layer with its tokenizer, as a tree."""
    tokens = _tokens()
    sizes = {"block_count": 1, "embedding_length": WIDTH, "feed_forward_length": WIDTH, "context_length": 64}
    sizes |= {"attention.head_count": 2, "attention.head_count_kv": 1, "rope.dimension_count": WIDTH // 2}
    keys = [["general.architecture", 8, "llama"], ["general.alignment", 4, 32]]
    keys += [[f"llama.{name}", 4, size] for name, size in sizes.items()]
    keys += [["llama.attention.layer_norm_rms_epsilon", 6, 1e-5], ["llama.rope.freq_base", 6, 1e4]]
    keys += [["tokenizer.ggml.model", 8, "gpt2"], ["tokenizer.ggml.pre", 8, "llama-bpe"]]
    keys += [
        ["tokenizer.ggml.tokens", 9, [8, tokens]],
        ["tokenizer.ggml.scores", 9, [6, [0.0] * len(tokens)]],
    ]
    keys += [["tokenizer.ggml.token_type", 9, [5, [1] * (len(tokens) - 1) + [3]]]]
    keys += [["tokenizer.ggml.merges", 9, [8, [" ".join(merge) for merge in MERGES]]]]
    keys += [[f"tokenizer.ggml.{role}_token_id", 4, len(tokens) - 1] for role in ("bos", "eos")]
    keys += [["tokenizer.ggml.add_bos_token", 7, True]]
    matrices = {
        "attn_q": 8,
        "attn_k": 2,
        "attn_v": 3,
        "attn_output": 1,
        "ffn_gate": 30,
        "ffn_up": 0,
        "ffn_down": 8,
    }
    tensors = [["token_embd.weight", [len(tokens), WIDTH], 8], ["output_norm.weight", [WIDTH], 0]]
    tensors += [[f"blk.0.{name}.weight", [WIDTH], 0] for name in ("attn_norm", "ffn_norm")]
    for name, kind in matrices.items():
        rows = WIDTH // 2 if name in ("attn_k", "attn_v") else WIDTH
        tensors.append([f"blk.0.{name}.weight", [rows, WIDTH], kind])
    return {"version": 3, "keys": keys, "tensors": tensors}


def _number(form, value):
    size = struct.calcsize("<" + form)
    whole = form not in "fd?"
    return (
        (int(value) % 2 ** (8 * size)).to_bytes(size, "little") if whole else struct.pack("<" + form, value)
    )


def _text(text):
    data = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _value(kind, value):
    if kind == 8:
        return _text(value)
    if kind == 9:
        of, values = value
        return _number("I", of) + struct.pack("<Q", len(values)) + b"".join(_value(of, one) for one in values)
    return _number(_FORMS.get(kind, "I"), value)


def gguf_bytes(tree):
    """@raises Exception of some type if the tree has changed so much that it cannot be written."""
    front = b"GGUF" + _number("I", tree["version"])
    front += struct.pack("<QQ", len(tree["tensors"]), len(tree["keys"]))
    for name, kind, value in tree["keys"]:
        front += _text(name) + _number("I", kind) + _value(kind, value)
    data = b""
    for name, dims, kind in tree["tensors"]:
        data += b"\0" * (-len(data) % 32)
        front += _text(name) + _number("I", len(dims)) + b"".join(_number("Q", dim) for dim in dims[::-1])
        front += _number("I", kind) + struct.pack("<Q", len(data))
        count = 1
        for dim in dims:
            count *= dim
        values, size = _BLOCKS.get(kind, (1, 4))
        data += b"\1\x1c" * min(max(count // values * size, 0) // 2, 100000)
    return front + b"\0" * (-len(front) % 32) + data


class _Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def content_hash(data):
    """The hash that the program writes. @raises OSError without the library of xxHash."""
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_128bits.restype = _Hash
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    value = library.XXH3_128bits(data, len(data))
    return f"{value.high:016x}{value.low:016x}"


def index_tree(text):
    """The index of token shards without its own hash."""
    return {key: value for key, value in json.loads(text).items() if key != "hash"}


def sealed(body):
    """The text of an index with the hash that its reader requires; `body`: the text without a hash."""
    front = body.removesuffix(b"}")
    return front + b',"hash":"' + content_hash(front).encode() + b'"}\n'
