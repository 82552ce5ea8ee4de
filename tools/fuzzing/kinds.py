"""Kinds of files that are fuzzed: valid inputs with their commands, and changed ones that are drawn."""

import contextlib
import json

from . import files
from .changes import changed_bytes, changed_tree, json_bytes

#: Programs with libtorch take half a second to start, the others some milliseconds.
SLOW_SHARE = 0.15


def prepare(tokenizer, source, *flags):
    words = ["data", "prepare", "made", "--tokenizer", tokenizer, "--source", source]
    return [*words, "--separator", files.END, "--seq-len", "8", *flags]


def evaluate(*flags, **settings):
    words = ["eval", "recipe.toml", "--sequences", "2", *flags]
    for key, value in settings.items():
        words += ["--set", f"{key.replace('__', '.')}={value}"]
    return words


class Tokenizers:
    """tokenizer.json by `data prepare`, which encodes a text with it."""

    def __init__(self, run):
        self.trees = [files.byte_level(), files.byte_fallback()]

    def valid(self):
        for tree in self.trees:
            yield {"tokenizer.json": json_bytes(tree)}, prepare("tokenizer.json", "text.txt")

    def changed(self, draw):
        data = json_bytes(changed_tree(draw.choice(self.trees), draw))
        if draw.random() < 0.25:
            data = changed_bytes(data, draw)
        return {"tokenizer.json": data}, prepare("tokenizer.json", "text.txt")


class Gguf:
    """GGUF as a tokenizer, and as a model by `eval`."""

    READ = prepare("m.gguf", "text.txt")
    RUN = evaluate("--init-from", "m.gguf", model__from="m.gguf")

    def __init__(self, run):
        self.tree = files.gguf()

    def valid(self):
        data = files.gguf_bytes(self.tree)
        return [({"m.gguf": data}, self.READ), ({"m.gguf": data}, self.RUN)]

    def changed(self, draw):
        data = None
        while data is None:
            # Python has many errors for trees of other types.
            with contextlib.suppress(Exception):
                data = files.gguf_bytes(changed_tree(self.tree, draw, raw=False))
        if draw.random() < 0.25:
            data = changed_bytes(files.gguf_bytes(self.tree), draw, same_size=draw.random() < 0.5)
        return {"m.gguf": data}, self.RUN if draw.random() < SLOW_SHARE else self.READ


class JsonLines:
    """Documents of a .jsonl file by `data prepare`."""

    def __init__(self, run):
        self.lines = files.json_lines()

    def command(self, packing, validation):
        flags = ("--packing", packing, "--validation", validation)
        return prepare("tokenizer.json", "a.jsonl", *flags)

    def files(self, lines):
        return {"a.jsonl": b"\n".join(lines), "tokenizer.json": json_bytes(files.byte_level())}

    def valid(self):
        for packing in ("cut", "best_fit"):
            yield self.files(map(json_bytes, self.lines)), self.command(packing, "0.5")

    def changed(self, draw):
        lines = [json_bytes(changed_tree(x, draw) if draw.random() < 0.2 else x) for x in self.lines]
        contents = self.files(lines)
        if draw.random() < 0.4:
            contents["a.jsonl"] = changed_bytes(contents["a.jsonl"], draw)
        return contents, self.command(draw.choice(["cut", "best_fit"]), draw.choice(["0", "0.5"]))


class Shards:
    """A folder of token shards by `data check`, `data show` and `eval`; most hashes are right again."""

    COMMANDS = [["data", "check", "tokens"], ["data", "show", "tokens"]]
    RUNS = [evaluate("--part", part, training__dataset_path="tokens") for part in ("train", "validation")]

    def __init__(self, run):
        contents, command = next(JsonLines(run).valid())
        finished = run(contents, command)
        assert finished.returncode == 0, finished.stderr.decode(errors="replace")
        self.files = {f"tokens/{file.name}": file.read_bytes() for file in run.folder.glob("made/*")}
        self.index = files.index_tree(self.files["tokens/corpus.json"])

    def valid(self):
        return [(self.files, command) for command in self.COMMANDS + self.RUNS]

    def changed(self, draw):
        contents, index = dict(self.files), self.index
        if draw.random() < 0.5:
            name = draw.choice([name for name in contents if name.endswith(".tokens")])
            contents[name] = changed_bytes(contents[name], draw, same_size=draw.random() < 0.8)
            index = json.loads(json.dumps(index))
            for shard in index["sources"][0]["shards"]:
                if f"tokens/{shard['file']}" == name and draw.random() < 0.7:
                    shard["hash"] = files.content_hash(contents[name])
        else:
            index = changed_tree(index, draw)
        body = json_bytes(index)
        if draw.random() < 0.1:
            body = changed_bytes(body, draw)
        contents["tokens/corpus.json"] = files.sealed(body)
        if draw.random() < 0.05:
            contents["tokens/corpus.json"] = changed_bytes(contents["tokens/corpus.json"], draw)
        return contents, draw.choice(self.RUNS if draw.random() < SLOW_SHARE else self.COMMANDS)


KINDS = {"tokenizer": Tokenizers, "gguf": Gguf, "jsonl": JsonLines, "shards": Shards}
