"""The Trainer over ranks gives the numbers of the Trainer of transformers in one process."""

import dataclasses
import importlib.util
import inspect
import json
import pathlib

import pytest

if any(importlib.util.find_spec(name) is None for name in ("transformers", "accelerate", "peft")):
    pytest.skip("transformers, accelerate or peft is not installed", allow_module_level=True)

import hf_models
import launched
import torch
import trainer_cases as cases
import transformers
from armillary._hf_families import POSITIONS_UNREAD
from armillary._hf_whole import whole_columns
from armillary.hf_trainer import Trainer

import armillary
from armillary import _hf_table as table
from armillary import hf

HERE = pathlib.Path(__file__).parent
RUNS = [*cases.TRAINING, "resumed", "saved", "evaluated", "packed", "adapted", "overridden"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Results of the runs of trainer_cases.py on 2 ranks, and those that are wanted."""
    lines = launched.forked(2, "trainer_ranks.py", str(tmp_path_factory.mktemp("runs"))).splitlines()
    return json.loads(next(line for line in lines if line.startswith('{"given"')))


def flat(values, name=""):
    """Pairs of a name and a number or text."""
    if isinstance(values, dict):
        return [pair for key in values for pair in flat(values[key], f"{name}.{key}")]
    if isinstance(values, list):
        inner = [pair for at, one in enumerate(values) for pair in flat(one, f"{name}[{at}]")]
        return [(f"{name}: length", len(values)), *inner]
    return [(name, values)]


def differences(actual, expected):
    """Names of values that differ by more than 1e-4, with both."""
    pairs = zip(flat(actual), flat(expected), strict=True)
    return [(name, mine, theirs) for (name, mine), (_, theirs) in pairs if not is_near(mine, theirs)]


def is_near(mine, theirs):
    if not isinstance(mine, int | float) or not isinstance(theirs, int | float):
        return mine == theirs
    return abs(mine - theirs) <= 1e-4 * max(1.0, abs(theirs))


@pytest.mark.parametrize("name", RUNS)
def test_gives_the_numbers_of_one_process(runs, name):
    assert not differences(runs["given"][name], runs["wanted"][name])


@pytest.mark.parametrize(
    ("name", "exact"), [("bf16_full_eval", ""), ("fp16_full_eval", ""), ("bf16", "trained")]
)
def test_narrow_numbers_are_as_near_to_fp32_as_those_of_one_process(runs, name, exact):
    expected = torch.tensor(runs["wanted"]["narrow"][exact])
    mine, theirs = (
        (torch.tensor(runs[side]["narrow"][name]) - expected).norm() for side in ("given", "wanted")
    )
    assert 0 < mine <= 2.5 * theirs, (mine, theirs)


def test_first_batch_is_compared_with_one_device(runs):
    checked, text, is_installed = runs["given"]["first batch"]
    assert len(checked) == 4
    for name, (actual, expected) in checked.items():
        assert actual == expected, name  # the same bits
    assert "LlamaForCausalLM over 2 ranks differs from one device: " in text
    assert is_installed


def test_one_rank_is_one_process(tmp_path):
    sp = armillary.SequenceParallel()
    actual = cases.trained(Trainer, tmp_path, "accumulation", sp=sp)
    assert not differences(actual, cases.trained(transformers.Trainer, tmp_path, "accumulation"))


def test_the_table_has_each_argument_once():
    fields = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    honoured = " ".join(table.HONOURED_ARGUMENTS.values()).split()
    names = [*honoured, *table.REFUSED_ARGUMENTS, *table.LIMITED]
    assert sorted(names) == sorted(fields)
    parameters = list(inspect.signature(transformers.Trainer.__init__).parameters)[1:]
    assert sorted(table.HONOURED_INIT.split()) == sorted(parameters)
    methods = [*table.HONOURED_METHODS.split(), *" ".join(table.REFUSED_METHODS.values()).split()]
    theirs = [name for name in vars(transformers.Trainer) if not name.startswith("__")]
    assert sorted(methods) == sorted(theirs)


def test_each_that_is_honoured_is_in_a_run_that_is_compared_with_one_process(runs):
    """With a value that is not the default; methods are called."""
    runs_of = {}
    for run, names in runs["chosen"].items():
        assert run in RUNS or run == "narrow", run
        for name in names:
            runs_of.setdefault(name, []).append(run)
    honoured = table.names_of(table.HONOURED_ARGUMENTS) | table.LIMITED | set(table.HONOURED_INIT.split())
    assert sorted(honoured - runs_of.keys()) == []
    called = set(runs["given"]["overridden"][-1])
    methods = {name for name in table.HONOURED_METHODS.split() if callable(getattr(Trainer, name))}
    # Those of a hub are in the run "hub"; metrics_format of transformers takes no self.
    assert called == methods - {"init_hf_repo", "metrics_format", "push_to_hub"}


SAMPLES = {
    "debug": ["underflow_overflow"],
    "fsdp_config": {"min_num_params": 1},
    "label_names": ["targets"],
    "neftune_noise_alpha": 5.0,
    "optim": transformers.training_args.OptimizerNames.LOMO,
}


@pytest.mark.parametrize("name", sorted(table.REFUSED_ARGUMENTS))
def test_an_argument_is_refused_by_name(tmp_path, name):
    args = cases.arguments(tmp_path)
    table.check_arguments(args)
    setattr(args, name, SAMPLES.get(name, True))
    with pytest.raises(armillary.InvalidArgument, match=f"Trainer: args.{name} is .* required$"):
        Trainer(cases.llama(), args, sp=armillary.SequenceParallel())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"accelerator_config": {"dispatch_batches": True}}, "accelerator_config.dispatch_batches is True"),
        (
            {"accelerator_config": {"gradient_accumulation_kwargs": {"adjust_scheduler": True}}},
            "gradient_accumulation_kwargs has adjust_scheduler",
        ),
        (
            {"activation_checkpointing_kwargs": {"offload": True}},
            "activation_checkpointing_kwargs has offload",
        ),
    ],
)
def test_a_key_of_an_argument_is_refused_by_name(tmp_path, settings, text):
    with pytest.raises(armillary.InvalidArgument, match=text):
        table.check_arguments(cases.arguments(tmp_path, **settings))


def test_an_argument_that_is_not_known_is_refused_by_name(tmp_path):
    @dataclasses.dataclass
    class Later(transformers.TrainingArguments):
        reverses_sequences: bool = False

    table.check_arguments(Later(str(tmp_path), use_cpu=True))
    with pytest.raises(armillary.InvalidArgument, match="args.reverses_sequences is True; it is not known"):
        table.check_arguments(Later(str(tmp_path), use_cpu=True, reverses_sequences=True))


@pytest.mark.parametrize("name", sorted(table.names_of({**table.REFUSED_METHODS, "ours": "_reads_outputs"})))
def test_an_override_is_refused_by_name(name):
    kind = type("Mine", (Trainer,), {name: lambda self: None})
    with pytest.raises(armillary.InvalidArgument, match=f"Trainer: Mine overrides {name}: "):
        kind(None, sp=armillary.SequenceParallel())


def test_an_override_of_another_base_is_refused():
    kind = type("Both", (Trainer, transformers.Seq2SeqTrainer), {})
    with pytest.raises(armillary.InvalidArgument, match="Seq2SeqTrainer overrides "):
        kind(None, sp=armillary.SequenceParallel())


def test_a_search_is_refused(tmp_path):
    trainer = cases.trainer_of(Trainer, tmp_path, {}, {}, sp=armillary.SequenceParallel())
    with pytest.raises(armillary.InvalidArgument, match="hyperparameter_search draws trials on each rank"):
        trainer.hyperparameter_search()


ROW = torch.tensor([[3, 4, 5, 6]])
TWO = torch.tensor([[0, 1, 0, 1]])


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"position_ids": torch.tensor([[1, 2, 3, 4]])}, "do not count from 0"),
        ({"position_ids": torch.tensor([[0, 1, 3, 4]])}, "do not count from 0"),
        ({"input_ids": ROW[0]}, r"input_ids \[B, S\]"),
        (
            {"position_ids": TWO, "attention_mask": torch.ones(1, 4)},
            "position_ids of a batch begin again, and it has an attention_mask",
        ),
        ({"position_ids": torch.tensor([[0, 1, 2]])}, r"position_ids \[1, 3\] of tokens \[1, 4\]"),
        ({"position_ids": TWO.expand(3, 1, 4)}, r"position_ids \[3, 1, 4\] of tokens \[1, 4\]"),
        ({"position_ids": TWO, "document_ids": TWO[:, :2]}, r"document_ids \[1, 2\] of tokens \[1, 4\]"),
        ({"position_ids": TWO, "document_ids": [0, 0, 1, 1]}, "document_ids list of tokens"),
        ({"position_ids": TWO, "document_ids": torch.tensor([[0, 0, 0, 1]])}, "do not count from 0"),
        ({"position_ids": torch.arange(4)[None], "document_ids": TWO}, "do not count from 0"),
    ],
)
def test_a_batch_that_cannot_be_spread_is_refused(columns, text):
    with pytest.raises(armillary.InvalidArgument, match=text):
        whole_columns({"input_ids": ROW, **columns}, "llama")


def test_positions_that_agree_with_documents_are_taken():
    columns = {"input_ids": ROW, "position_ids": TWO}
    documents = whole_columns(columns, "llama")["document_ids"]
    assert documents.tolist() == [[0, 0, 1, 1]]
    again = whole_columns(columns | {"document_ids": documents + 5}, "gpt_oss")
    assert again["document_ids"].tolist() == [[5, 5, 6, 6]]


@pytest.mark.parametrize("family", sorted(POSITIONS_UNREAD))
def test_documents_that_one_process_does_not_keep_apart_are_refused(family):
    whole_columns({"input_ids": ROW, "position_ids": torch.arange(4)[None]}, family)
    text = (
        f"{family} does not read documents out of them, .* document_ids, such as those of armillary.hf.pack"
    )
    with pytest.raises(armillary.InvalidArgument, match=text):
        whole_columns({"input_ids": ROW, "position_ids": TWO}, family)


def test_packed_positions_of_a_model_that_does_not_read_them_are_refused(tmp_path):
    ids = [one["input_ids"] % hf_models.VOCABULARY for one in cases.examples(2)]
    rows = [{"input_ids": one, "labels": one, "position_ids": cases.POSITIONS} for one in ids]

    def trainer(**more):
        of_trainer = {"model": hf_models.build("gpt_oss"), "train_dataset": rows} | more
        settings = {"remove_unused_columns": False}
        return cases.trainer_of(Trainer, tmp_path, settings, of_trainer, sp=armillary.SequenceParallel())

    with pytest.raises(armillary.InvalidArgument, match="gpt_oss does not read documents out of them"):
        trainer().train()
    declared = trainer(data_collator=lambda rows: hf.pack([{"input_ids": one["input_ids"]} for one in rows]))
    assert declared.train().training_loss > 0


def test_padding_on_the_left_is_refused(tmp_path):
    def left(rows):
        return {name: column.flip(1) for name, column in cases.padded(rows).items()}

    of_trainer = {"train_dataset": cases.ragged(), "data_collator": left}
    trainer = cases.trainer_of(Trainer, tmp_path, {}, of_trainer, sp=armillary.SequenceParallel())
    with pytest.raises(armillary.InvalidArgument, match="padding on the left"):
        trainer.train()


def test_inputs_without_names_are_refused(tmp_path):
    class Unnamed(Trainer):
        def compute_loss(self, model, inputs, **_):
            return model(inputs["input_ids"]).logits.sum()

    trainer = cases.trainer_of(Unnamed, tmp_path, {}, {}, sp=armillary.SequenceParallel())
    with pytest.raises(armillary.InvalidArgument, match="called with inputs without names"):
        trainer.train()


def test_other_columns_are_refused(tmp_path):
    rows = [dict(one, token_type_ids=one["labels"]) for one in cases.examples(2)]
    of_trainer = {"train_dataset": rows}
    settings = {"remove_unused_columns": False}
    trainer = cases.trainer_of(Trainer, tmp_path, settings, of_trainer, sp=armillary.SequenceParallel())
    with pytest.raises(armillary.InvalidArgument, match="a batch has token_type_ids"):
        trainer.train()


def test_pack():
    examples = [
        {"input_ids": [0, 7, 8], "attention_mask": [0, 1, 1]},
        {"input_ids": [5, 6, 7, 0], "labels": [-100, 6, 7, -100], "attention_mask": [1, 1, 1, 0]},
    ]
    batch = hf.pack(examples, multiple_of=4, pad_token_id=9)
    assert batch["input_ids"].tolist() == [[7, 8, 5, 6, 7, 9, 9, 9]]
    assert batch["labels"].tolist() == [[-100, 8, -100, 6, 7, -100, -100, -100]]
    assert batch["document_ids"].tolist() == [[0, 0, 1, 1, 1, 2, 2, 2]]
    assert hf.pack(examples)["input_ids"].shape == (1, 5)


@pytest.mark.parametrize(
    ("examples", "settings", "text"),
    [
        ([], {}, "no examples"),
        ([{"input_ids": [1]}], {"multiple_of": 0}, "multiple_of is 0"),
        ([{"input_ids": [1], "origin": "a"}], {}, "example 0 has input_ids, origin"),
        ([{"input_ids": []}], {}, "all examples are empty"),
        (
            [{"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}],
            {},
            "attention_mask of example 0 hides tokens between",
        ),
        ([{"input_ids": [1, 2], "labels": [1]}], {}, r"labels of example 0 is \[1\], input_ids \[2\]"),
    ],
)
def test_what_cannot_be_packed_is_refused(examples, settings, text):
    with pytest.raises(armillary.InvalidArgument, match=text):
        hf.pack(examples, **settings)


def test_adapters_that_look_for_tokens_are_refused():
    import peft

    kind = {"target_modules": ["q_proj"], "alora_invocation_tokens": [3], "task_type": "CAUSAL_LM"}
    model = peft.get_peft_model(cases.llama(), peft.LoraConfig(**kind))
    with pytest.raises(armillary.InvalidArgument, match="begins at alora_invocation_tokens"):
        hf.install(model, armillary.SequenceParallel(), check=False)


def test_the_document_lists_the_table():
    document = (HERE.parents[1] / "docs" / "trainer.md").read_text()
    assert table.as_text() in document, f"docs/trainer.md is to have:\n{table.as_text()}"
