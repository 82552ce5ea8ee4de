"""Sessions of SmolLM2-135M: logits and greedy tokens are those of transformers and of one rank.

A prompt is read on some ranks in some layout and continued on others; in chunks; beside others; with forks
and aborts. With ARMILLARY_TEST_ALL all of it, without a sample. One process (serve_cases.cpp) runs many cases
with one model. Numbers are printed (pytest -s). The text is the language reference that comes with Python."""

import copy
import json
import os
import subprocess
from pydoc_data.topics import topics

import gguf_numpy
import pytest
import smollm2
import torch
from model_programs import BOUND, ROOT
from safetensors.torch import save_file

CASES = ROOT / "build" / "bin" / "serve_cases"
SECONDS = 5400
PROMPTS = {"short": 100, "long": 600}  # tokens
NEW = 64
PAGE = 16
PAGES = 1024  # of a rank; of one token each 8 times as many
LAYOUTS = ["contiguous", "zigzag", "striped:1", f"striped:{PAGE}"]
RANKS = [1, 2, 3, 4]
ALL = os.environ.get("ARMILLARY_TEST_ALL")
NEEDLE = " The secret number of the day is 48213."
QUESTION = "\n\nThe secret number of the day is"
NEEDLE_TOKENS, DEPTHS = 8192, 10
BF16_TOKENS, BF16_NEW = 64, 8
pytestmark = [
    smollm2.needed,
    pytest.mark.skipif(not CASES.is_file(), reason="[SKIP] build/bin has no serve_cases: ./dev build --all"),
]
every = pytest.mark.skipif(not ALL, reason="[SKIP] ARMILLARY_TEST_ALL is not set: minutes")


class Texts:
    """Prompts with their greedy tokens and logits by transformers, eager in fp32."""

    def __init__(self):
        self.metadata, self.model = smollm2.reference()
        self.tokenizer = smollm2.tokenizer(self.metadata)
        self.ids = self.ids_of("\n\n".join(topics[name] for name in sorted(topics)))
        self.tensors = {}

    def ids_of(self, text):
        return self.tokenizer.encode(text).ids

    def logits(self, model, ids, rows):
        with torch.no_grad():
            return model(torch.tensor([ids]), use_cache=False, logits_to_keep=rows).logits[0].float()

    def continued(self, prompt, new):
        """The prompt with its greedy tokens, and the logits from its last token on."""
        with torch.no_grad():
            ids = self.model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=new)
        ids = ids[0].tolist()
        assert len(ids) == len(prompt) + new
        return ids, self.logits(self.model, ids, new + 1)

    def add(self, name):
        """A prompt of the text, which begins elsewhere in each."""
        if f"{name}.ids" not in self.tensors:
            begin = 1000 * list(PROMPTS).index(name)
            ids, logits = self.continued(self.ids[begin : begin + PROMPTS[name]], NEW)
            self.tensors |= {f"{name}.ids": torch.tensor(ids), f"{name}.logits": logits.contiguous()}

    def greedy(self, name, tokens):
        """The token behind so many."""
        return int(self.tensors[f"{name}.ids"][tokens])


@pytest.fixture(scope="module")
def texts():
    return Texts()


def output_of_cases(folder, tensors, cases):
    save_file(tensors, folder / "texts.safetensors")
    lines = [json.dumps({"pages": PAGES} | case) for case in cases]
    (folder / "cases.jsonl").write_text("\n".join(lines) + "\n")
    words = [CASES, smollm2.FILE, folder / "texts.safetensors", folder / "cases.jsonl"]
    finished = subprocess.run(
        list(map(str, words)), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
    )
    assert finished.returncode == 0, finished.stderr
    (folder / "texts.safetensors").unlink()
    results = [json.loads(line) for line in finished.stdout.splitlines()]
    assert [result["name"] for result in results] == [case["name"] for case in cases]
    return results


def check(folder, texts, names, cases):
    """All logits that are known are equal, all greedy tokens, and all pages are free in the end."""
    for name in names:
        texts.add(name)
    tensors = {key: values for key, values in texts.tensors.items() if key.split(".")[0] in names}
    whole = [one_rank(name) for name in names]
    largest = {"error": 0, "of_first": 0}
    for result in output_of_cases(folder, tensors, [*whole, *cases]):
        where = result["name"]
        assert result["pages_left"] == 0, where
        known = [one for one in result["checks"] if one["tokens"] >= PROMPTS[one["text"]]]
        assert known, where
        for one in known:
            for key in largest:
                # NaN is none.
                assert one[key] is not None and one[key] <= BOUND, (where, key, one)
                largest[key] = max(largest[key], one[key])
            if one["tokens"] < PROMPTS[one["text"]] + NEW:
                assert one["next"] == texts.greedy(one["text"], one["tokens"]), (where, one)
        print(f"\nserve | {where} | {len(known)} logits | {result['seconds']:.1f} s", end="")
    print(f"\nserve | largest error {largest['error']:.1e}, beside one rank {largest['of_first']:.1e}")


def opened(session, text):
    return {"call": "open", "session": session, "text": text}


def prefill(to, **more):
    return {"call": "prefill", "to": to} | more


def decode(*sessions, steps=NEW):
    return {"call": "decode", "sessions": list(sessions), "steps": steps}


def one_rank(text):
    """The first case, with which others are compared."""
    calls = [opened("a", text), prefill({"a": PROMPTS[text]}), decode("a")]
    return {"name": f"{text} on one rank", "ranks": 1, "calls": calls}


def moved(text, ranks, layout, to_ranks=RANKS, to_layouts=LAYOUTS):
    """Read on all ranks, handed over beside the last pass to the last of them, continued in one batch."""
    calls, sessions = [], []
    for to in to_ranks:
        for to_layout in to_layouts:
            if to > ranks:
                continue
            session = f"{to_layout} on {to}"
            sessions.append(session)
            place = {"ranks": to, "first": ranks - to, "layout": to_layout}
            read = {"call": "prefill_to", "session": session, "to": PROMPTS[text]} | place
            calls += [opened(session, text), read]
    name = f"{text}, {layout} on {ranks}, then fewer"
    return {"name": name, "ranks": ranks, "layout": layout, "calls": [*calls, decode(*sessions)]}


def spread_out(text, few, ranks):
    """Read on some ranks, in passes that are too short to be spread, and continued on more."""
    calls, sessions = [], []
    for layout in LAYOUTS:
        base = f"{layout} on {few}"
        place = {"ranks": few, "first": 0, "layout": layout}
        calls += [opened(base, text), prefill({base: PAGE})]
        calls += [{"call": "relayout", "session": base} | place, prefill({base: PROMPTS[text]})]
        for to_layout in LAYOUTS:
            session = f"{base}, then {to_layout}"
            sessions.append(session)
            place = {"ranks": ranks, "first": 0, "layout": to_layout}
            calls += [{"call": "fork", "session": base, "as": session}]
            calls += [{"call": "relayout", "session": session} | place]
    name = f"{text} on {few}, then {ranks}"
    return {"name": name, "ranks": ranks, "chunk": PAGE * ranks - 1, "calls": [*calls, decode(*sessions)]}


def chunked(text, ranks, layout, chunk, **more):
    calls = [opened("a", text), prefill({"a": PROMPTS[text]}), decode("a", steps=8)]
    pages = {"pages": 8 * PAGES} if more.get("page") == 1 else {}
    name = f"{text}, {layout} on {ranks}, chunk {chunk} {more or ''}"
    return {"name": name, "ranks": ranks, "layout": layout, "chunk": chunk, "calls": calls} | pages | more


def beside(ranks, chunk, gather_queries, second="long"):
    """Several prompts in a call, of which one goes on behind what it has read."""
    short, other = PROMPTS["short"], PROMPTS[second]
    calls = [opened(name, text) for name, text in (("a", "short"), ("b", second), ("c", "short"))]
    calls += [prefill({"c": 40}), prefill({"a": short, "b": other, "c": short})]
    calls += [decode("c", "a", "b", steps=16)]
    name = f"three prompts on {ranks}, chunk {chunk}, gather queries {gather_queries}"
    more = {"chunk": chunk, "gather_queries": gather_queries}
    return {"name": name, "ranks": ranks, "calls": calls} | more


def interrupted(text, ranks, chunk):
    """A prompt that is stopped, whose fork reads on when it is gone; one that is forked while it is read."""
    end = PROMPTS[text]
    calls = [opened("a", text), prefill({"a": end}, stop=2 * chunk)]
    calls += [{"call": "fork", "session": "a", "as": "b"}, {"call": "release", "session": "a"}]
    calls += [prefill({"b": end}), decode("b", steps=8)]
    calls += [opened("c", text), prefill({"c": end}, fork_at=chunk, **{"as": "d"})]
    calls += [decode("c", steps=4), prefill({"d": end}), decode("d", "c", steps=8)]
    name = f"{text} interrupted on {ranks}, chunk {chunk}"
    return {"name": name, "ranks": ranks, "chunk": chunk, "calls": calls}


def test_a_sample(tmp_path, texts):
    cases = [
        moved("short", 3, "zigzag", to_ranks=[1, 2], to_layouts=LAYOUTS[::3]),
        chunked("short", 2, "striped:1", 7, page=1),
        chunked("short", 4, "contiguous", 0, strategy="ulysses"),
        interrupted("short", 2, 32),
        beside(2, 0, True, second="short"),
    ]
    check(tmp_path, texts, ["short"], cases)


@every
@pytest.mark.parametrize("ranks", RANKS)
def test_prompts_are_continued_on_fewer_ranks(tmp_path, texts, ranks):
    layouts = LAYOUTS if ranks > 1 else LAYOUTS[:1]
    check(tmp_path, texts, ["long"], [moved("long", ranks, layout) for layout in layouts])


@every
@pytest.mark.parametrize("ranks", RANKS[1:])
def test_prompts_are_continued_on_more_ranks(tmp_path, texts, ranks):
    check(tmp_path, texts, ["long"], [spread_out("long", few, ranks) for few in range(1, ranks)])


@every
@pytest.mark.parametrize("ranks", RANKS)
def test_chunks(tmp_path, texts, ranks):
    # A pass of fewer tokens than a page for each rank is not spread.
    cases = [chunked("short", ranks, "zigzag", chunk) for chunk in (1, 7)]
    for layout in LAYOUTS:
        cases.append(chunked("short", ranks, layout, 7, page=1))
        cases += [chunked("long", ranks, layout, chunk) for chunk in (512, 1000)]
    check(tmp_path, texts, ["short", "long"], cases)


@every
def test_heads_over_ranks(tmp_path, texts):
    cases = [chunked("long", ranks, "zigzag", 0, strategy="ulysses") for ranks in RANKS[1:]]
    for ranks, tp in ((2, 2), (3, 3), (4, 2), (6, 3)):
        cases += [chunked("long", ranks, layout, 0, tp=tp) for layout in LAYOUTS]
    check(tmp_path, texts, ["long"], cases)


@every
@pytest.mark.parametrize("ranks", RANKS)
def test_several_prompts_forks_and_aborts(tmp_path, texts, ranks):
    cases = [beside(ranks, chunk, gathers) for chunk, gathers in ((0, True), (7, False), (100, True))]
    cases += [interrupted("short", ranks, 7), interrupted("long", ranks, 128)]
    check(tmp_path, texts, ["short", "long"], cases)


@every
def test_a_sentence_in_a_long_prompt(tmp_path, texts):
    """The logits behind the question are those of one rank wherever the sentence is."""
    needle, question = texts.ids_of(NEEDLE), texts.ids_of(QUESTION)
    body = texts.ids[: NEEDLE_TOKENS - len(needle) - len(question)]
    tensors, cases = {}, []
    for depth in range(DEPTHS):
        at = depth * len(body) // (DEPTHS - 1)
        ids = body[:at] + needle + body[at:] + question
        tensors[f"{depth}.ids"] = torch.tensor(ids)
        calls = [opened("a", str(depth)), prefill({"a": len(ids)})]
        for ranks in (1, 2, 4):
            cases.append({"name": f"at {depth} of {DEPTHS - 1} on {ranks}", "ranks": ranks, "calls": calls})
    digit = texts.ids_of(" 4")  # a space and a digit
    for result in output_of_cases(tmp_path, tensors, cases):
        (one,) = result["checks"]
        said = texts.tokenizer.decode([one["next"]])
        print(
            f"\nneedle | {result['name']} | beside one rank {one['of_first']:.1e} | says {said!r}, "
            f"begins the answer: {one['next'] in digit} | {result['seconds']:.0f} s",
            end="",
        )
        assert one["tokens"] == NEEDLE_TOKENS
        assert one["of_first"] is not None and one["of_first"] <= BOUND, result


@every
def test_bf16_errs_as_transformers_does(tmp_path, texts):
    """The bound of docs/numerics.md: weights, activations and cache in bf16 against fp32."""
    ids, required = texts.continued(texts.ids[2000 : 2000 + BF16_TOKENS], BF16_NEW)
    narrow = copy.deepcopy(texts.model)
    for parameter in narrow.parameters():  # not the frequencies
        parameter.data = parameter.data.bfloat16()
    theirs = texts.logits(narrow, ids, BF16_NEW + 1)
    their_error = max(
        ((a - b).abs().max() / b.abs().max()).item() for a, b in zip(theirs, required, strict=True)
    )
    assert their_error > 0
    calls = [opened("a", "text"), prefill({"a": BF16_TOKENS}), decode("a", steps=BF16_NEW)]
    cases = [
        {"name": f"bf16 on {ranks}", "ranks": ranks, "dtype": "bf16", "page": 4, "calls": calls}
        for ranks in RANKS
    ]
    tensors = {"text.ids": torch.tensor(ids), "text.logits": required.contiguous()}
    for result in output_of_cases(tmp_path, tensors, cases):
        errors = [one["error"] for one in result["checks"]]
        assert len(errors) == BF16_NEW + 1
        print(f"\nbf16 | {result['name']} | error {max(errors):.1e} | transformers {their_error:.1e}", end="")
        assert max(errors) <= 2.5 * their_error, (result["name"], errors, their_error)


@every
def test_the_file_of_floats_has_the_values(tmp_path):
    """The file that `./dev bench serve` gives llama.cpp."""
    from bench import finetune, llama_file

    finetune.write_start(smollm2.FILE, tmp_path)
    llama_file.write_floats(smollm2.FILE, tmp_path / "model", tmp_path / "fp32.gguf")
    metadata, required = gguf_numpy.read(smollm2.FILE)
    read, values = gguf_numpy.read(tmp_path / "fp32.gguf")
    assert read == metadata
    assert values.keys() == required.keys()
    for name, tensor in required.items():
        assert abs(values[name] - tensor).max() < 1e-25, name  # after a step of a rate near 0
