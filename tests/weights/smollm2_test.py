"""SmolLM2-135M on long texts, on meshes: logits, words, perplexity and fine-tuning, with ARMILLARY_TEST_ALL.

Without it gguf_test.py has its logits on a short text. Numbers are printed (pytest -s). The text is the
language reference that Python has with it."""

import json
import os
import subprocess
import time
from pydoc_data.topics import topics

import pytest
import smollm2
import torch
from model_programs import BOUND, LOGITS, PROGRAM, ROOT, built
from safetensors.torch import load_file, save_file

from bench.peers.reader import fp64_angles

TOKENS = 4096  # of a sequence
PROMPT = 200  # tokens
SEQUENCES = 8  # of the perplexity
TUNED_TOKENS, STEPS, RATE = 256, 20, 1e-4  # of the fine-tuning
SECONDS = 3600
DEFAULT = ROOT / "recipes" / "default.toml"
# cp, tp and strategy. 9 heads and 3 KV heads: of 2 ranks along tp one has 6 and 2, as under `ulysses`.
HF_MESHES = [(1, 1, "ring"), (2, 1, "ring"), (1, 2, "ring"), (4, 1, "ring"), (2, 2, "ring")]
MESHES = [
    *HF_MESHES,
    (2, 1, "ulysses"),
    (4, 1, "ulysses"),
    (8, 1, "ulysses"),
    (1, 3, "ring"),
    (1, 6, "ring"),
    (1, 9, "ring"),
    (2, 3, "ring"),
    (8, 1, "ring"),
    (4, 2, "ring"),
]
TOO_MANY = [(4, 3), (8, 6)]  # tp, and the nearest that is legal
pytestmark = [
    built,
    smollm2.needed,
    pytest.mark.skipif(
        not os.environ.get("ARMILLARY_TEST_ALL"), reason="[SKIP] ARMILLARY_TEST_ALL is not set: minutes"
    ),
]


def run(*words):
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    words = list(map(str, words))
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, env=environment)


def output_of(*words):
    finished = run(*words)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def recipe(**keys):
    """Flags of a recipe of this model."""
    settings = {
        "model__from": smollm2.FILE,
        "parallelism__context_parallel_degree": 1,
        "comm__train_timeout_seconds": SECONDS,
    } | keys
    words = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
    return [DEFAULT, "--init-from", smollm2.FILE, *(part for word in words for part in ("--set", word))]


class Reference:
    """The model in transformers, the text, and its logits."""

    def __init__(self):
        self.metadata, self.model = smollm2.reference()
        self.tokenizer = smollm2.tokenizer(self.metadata)
        self.text = "\n\n".join(topics[name] for name in sorted(topics))
        self.encoding = self.tokenizer.encode(self.text)
        self.tokens = torch.tensor(self.encoding.ids[:TOKENS])
        begin = time.monotonic()
        self.logits = self.forward()
        print(f"\ntransformers: {TOKENS} tokens in {time.monotonic() - begin:.1f} s")
        plain = self.model.model.rotary_emb
        self.model.model.rotary_emb = fp64_angles(self.model.config)
        self.logits_of_fp64_angles = self.forward()
        self.model.model.rotary_emb = plain
        of_angles = error(self.logits, self.logits_of_fp64_angles)
        print(f"transformers beside itself with fp64 angles: error {of_angles:.2e}")

    def forward(self):
        with torch.no_grad():
            return self.model(self.tokens[None], use_cache=False).logits[0]

    def text_of(self, tokens):
        """The beginning of the text with so many tokens."""
        return self.text[: self.encoding.offsets[tokens - 1][1]]

    def greedy(self, ids):
        with torch.no_grad():
            ids_after = self.model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=64)
        return ids_after[0, len(ids) :].tolist()


def error(got, required):
    """The largest error of a logit, over the largest logit; block by block, as logits are large."""
    assert got.shape == required.shape
    blocks = zip(got.split(256), required.split(256), strict=True)
    errors, largest = zip(*(((a - b).abs().max(), b.abs().max()) for a, b in blocks), strict=True)
    return (max(errors) / max(largest)).item()


@pytest.fixture(scope="module")
def reference():
    return Reference()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, reference):
    """A Hugging Face folder of the GGUF file, by a step too small to change a parameter."""
    scratch = tmp_path_factory.mktemp("smollm2")
    small = recipe(
        training__dataset_path=ROOT / "README.md",
        training__seq_len=16,
        training__steps=1,
        optimizer__lr=1e-30,
        checkpoint__enable="true",
        job__dump_folder=scratch / "run",
    )
    output_of(PROGRAM, "train", *small)
    output_of(PROGRAM, "export", scratch / "run", scratch / "hf")
    reference.tokenizer.save(str(scratch / "hf" / "tokenizer.json"))
    config = json.loads((scratch / "hf" / "config.json").read_text())
    config["eos_token_id"] = reference.metadata["tokenizer.ggml.eos_token_id"]
    (scratch / "hf" / "config.json").write_text(json.dumps(config))
    return scratch / "hf"


def test_transformers_loads_the_folder(reference, folder):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    theirs, required = model.state_dict(), reference.model.state_dict()
    assert theirs.keys() == required.keys()
    for name, values in required.items():
        assert (theirs[name] - values).abs().max() < 1e-25, name
    tokens = reference.tokens[:64]
    with torch.no_grad():
        assert torch.equal(model(tokens[None]).logits, reference.model(tokens[None]).logits)


@pytest.mark.parametrize(
    ("source", "mesh"),
    [*(("gguf", mesh) for mesh in MESHES), *(("hf", mesh) for mesh in HF_MESHES)],
    ids=str,
)
def test_logits_are_those_of_transformers(tmp_path, reference, folder, source, mesh):
    cp, tp, strategy = mesh
    path = smollm2.FILE if source == "gguf" else folder
    save_file({"tokens": reference.tokens}, tmp_path / "tokens.safetensors")
    begin = time.monotonic()
    output_of(LOGITS, path, tmp_path / "tokens.safetensors", tmp_path / "logits.safetensors", *mesh)
    seconds = time.monotonic() - begin
    logits = load_file(tmp_path / "logits.safetensors")["logits"]
    (tmp_path / "logits.safetensors").unlink()
    got, of_fp64_angles = error(logits, reference.logits), error(logits, reference.logits_of_fp64_angles)
    print(
        f"\nlogits | {source} | cp {cp} x tp {tp} {strategy} | error {got:.2e} | beside fp64 angles "
        f"{of_fp64_angles:.2e} | {seconds:.1f} s"
    )
    assert got <= BOUND, f"{got} of the largest logit; beside fp64 angles {of_fp64_angles}"


@pytest.mark.parametrize(("tp", "nearest"), TOO_MANY)
def test_heads_that_cannot_be_shared_are_refused(tmp_path, tp, nearest):
    save_file({"tokens": torch.arange(32)}, tmp_path / "tokens.safetensors")
    (tmp_path / "prompt.txt").write_text("The capital of France is")
    logits = [LOGITS, smollm2.FILE, tmp_path / "tokens.safetensors", tmp_path / "logits", 1, tp, "ring"]
    generate = [PROGRAM, "generate", smollm2.FILE, "--prompt-file", tmp_path / "prompt.txt"]
    for words in (logits, [*generate, "--ranks", tp, "--tp", tp]):
        finished = run(*words)
        assert finished.returncode == 2, words
        print(f"\n{finished.stderr.strip()}")
        assert f"over tp {tp}; at most tp 3, one of its grains of " in finished.stderr
        assert f"is required; nearest: tp {nearest}\n" in finished.stderr


def test_greedy_words_are_those_of_transformers(tmp_path, reference, folder):
    end = reference.metadata["tokenizer.ggml.eos_token_id"]
    prompts = ["The capital of France is", reference.text_of(PROMPT)]
    for number, prompt in enumerate(prompts):
        (tmp_path / "prompt.txt").write_text(prompt)
        ids = reference.tokenizer.encode(prompt).ids
        required = reference.greedy(ids)
        for path in (smollm2.FILE, folder):
            for ranks, tp in ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (3, 3), (6, 3), (6, 6), (9, 9), (8, 2)):
                words = ["--prompt-file", tmp_path / "prompt.txt", "--ranks", ranks, "--tp", tp, "--json"]
                result = json.loads(output_of(PROGRAM, "generate", path, *words))
                case = f"prompt {number} of {len(ids)} tokens, {path}, ranks {ranks}, tp {tp}"
                count = len(result["tokens"])
                assert result["prompt_tokens"] == len(ids), case
                assert result["tokens"] == required[:count], case
                # Behind its end transformers goes on.
                assert count == 64 or required[count] == end, case
                print(f"\ngreedy | {case} | {count} tokens equal", end="")


def test_perplexity_is_the_same_on_every_mesh(tmp_path, reference):
    (tmp_path / "text.txt").write_text(reference.text_of(SEQUENCES * TOKENS + 8))
    prepare = ["--source", tmp_path / "text.txt", "--seq-len", TOKENS, "--packing", "cut"]
    output_of(PROGRAM, "data", "prepare", tmp_path / "tokens", "--tokenizer", smollm2.FILE, *prepare)
    losses = {}
    for dp, cp, tp in ((1, 1, 1), (1, 2, 1), (1, 4, 1), (2, 1, 1), (1, 1, 3), (1, 2, 3)):
        flags = recipe(
            training__dataset_path=tmp_path / "tokens",
            training__seq_len=TOKENS,
            training__global_batch_size=dp,
            parallelism__mask="causal",
            parallelism__data_parallel_shard_degree=dp,
            parallelism__context_parallel_degree=cp,
            parallelism__tensor_parallel_degree=tp,
        )
        begin = time.monotonic()
        result = json.loads(output_of(PROGRAM, "eval", *flags, "--part", "train", "--json"))
        assert (result["sequences"], result["targets"]) == (SEQUENCES, SEQUENCES * TOKENS)
        losses[dp, cp, tp] = result["loss"]
        perplexity = torch.tensor(result["loss"], dtype=torch.float64).exp().item()
        relative = perplexity_ratio(result["loss"], losses[1, 1, 1])
        print(
            f"\nperplexity | dp {dp} x cp {cp} x tp {tp} | {perplexity:.9f} | off {relative:.1e} | "
            f"{time.monotonic() - begin:.1f} s",
            end="",
        )
    assert all(perplexity_ratio(loss, losses[1, 1, 1]) <= 1e-6 for loss in losses.values()), losses


def perplexity_ratio(loss, of):
    """The relative distance of two perplexities."""
    return torch.tensor(loss - of, dtype=torch.float64).expm1().abs().item()


def test_fine_tuning_on_processes_is_that_of_one(tmp_path):
    documents = [json.dumps({"text": topics[name]}) for name in sorted(topics)]
    (tmp_path / "text.jsonl").write_text("\n".join(documents))
    prepare = ["--source", tmp_path / "text.jsonl", "--seq-len", TUNED_TOKENS, "--validation", 0.15]
    output_of(PROGRAM, "data", "prepare", tmp_path / "tokens", "--tokenizer", smollm2.FILE, *prepare)

    def flags(name, **keys):
        settings = {
            "training__dataset_path": tmp_path / "tokens",
            "training__seq_len": TUNED_TOKENS,
            "training__global_batch_size": 4,
            "training__steps": STEPS,
            "training__validation_interval": STEPS // 2,
            "training__validation_sequences": 16,
            "optimizer__lr": RATE,
            "lr_scheduler__warmup_steps": STEPS // 4,
            "lr_scheduler__decay_ratio": 0,
            "job__dump_folder": tmp_path / name,
        }
        return recipe(**(settings | keys))

    def curve(name):
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    first = json.loads(output_of(PROGRAM, "eval", *flags("none"), "--sequences", 16, "--json"))["loss"]
    output_of(PROGRAM, "train", *flags("one"))
    mesh = {
        "parallelism__data_parallel_shard_degree": 2,
        "parallelism__context_parallel_degree": 2,
        "parallelism__zero": 3,
    }
    launch = [PROGRAM, "launch", "-n", 4, "--engine", "c10d", "--no-prefix", "--"]
    output_of(*launch, "train", *flags("four", **mesh))
    one, four = curve("one"), curve("four")
    assert [line["step"] for line in four] == list(range(1, STEPS + 1))
    assert {line["ranks"] for line in four} == {4}
    validation = [line["validation_loss"] for line in four if "validation_loss" in line]
    offs = {
        key: max(abs(a[key] - b[key]) / b[key] for a, b in zip(four, one, strict=True) if key in b)
        for key in ("loss", "grad_norm", "validation_loss")
    }
    print(f"\nvalidation loss | before {first:.6f} | {validation}")
    print(f"losses of 4 processes | {[round(line['loss'], 6) for line in four]}")
    print(f"largest distance to one process | {offs}")
    for name, lines in (("one", one), ("four", four)):
        seconds = sorted(line["step_s"] for line in lines)[len(lines) // 2]
        memory = max(line["memory_bytes"] for line in lines) / 2**30
        print(f"{name} | median step {seconds:.2f} s | memory {memory:.2f} GiB")
    assert validation[-1] < first
    assert offs["loss"] <= 1e-4
    assert offs["validation_loss"] <= 1e-4
