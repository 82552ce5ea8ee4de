"""Runs of a Trainer, each made alike for transformers in one process and for ours over ranks."""

import copy
import dataclasses
import os
import random

import numpy
import torch
import transformers
from torch.nn import functional
from torch.utils.data import IterableDataset

VOCABULARY, TOKENS, IGNORED = 64, 32, -100


def llama():
    """A small model, the same on every rank."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, initializer_range=0.3))


def examples(count=8, seed=1):
    """Sequences whose labels begin at different places, so that batches differ in their labels."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(2, VOCABULARY, (count, TOKENS), generator=generator)
    entries = []
    for at, row in enumerate(rows):
        labels = row.clone()
        labels[: (7 * at) % 29] = IGNORED
        entries.append({"input_ids": row, "labels": labels})
    return entries


def ragged():
    """Sequences of different lengths, with columns that no model takes."""
    return [
        {name: column[: TOKENS - (5 * at) % 13] for name, column in one.items()} | {"origin": str(at)}
        for at, one in enumerate(examples())
    ]


def padded(rows):
    """Rows with padding on the right, as collators of transformers make them."""
    longest = max(len(one["input_ids"]) for one in rows)
    batch = {"input_ids": [], "labels": [], "attention_mask": []}
    for one in rows:
        rest = longest - len(one["input_ids"])
        batch["input_ids"].append(functional.pad(one["input_ids"], (0, rest), value=0))
        batch["labels"].append(functional.pad(one["labels"], (0, rest), value=IGNORED))
        batch["attention_mask"].append(torch.tensor([1] * len(one["input_ids"]) + [0] * rest))
    return {name: torch.stack(rows) for name, rows in batch.items()}


POSITIONS = torch.cat([torch.arange(20), torch.arange(TOKENS - 20)])  # of two packed documents


class Stream(IterableDataset):
    """Examples without a length."""

    def __iter__(self):
        return iter(examples(6))


class OnePass(IterableDataset):
    """Examples that can be read once, with tokens that are drawn when they are read."""

    def __init__(self):
        self.rest = iter(examples(8))

    def __iter__(self):
        for one in self.rest:
            drawn = [random.randrange(2, VOCABULARY), int(numpy.random.randint(2, VOCABULARY))]
            drawn += torch.randint(2, VOCABULARY, (2,)).tolist()
            ids = torch.cat([torch.tensor(drawn), one["input_ids"][4:]])
            yield {"input_ids": ids, "labels": ids}


def with_one_pass(base):
    """A Trainer with a stream that can be read once."""
    return lambda **settings: base(**settings | {"train_dataset": OnePass()})


def own_loss(outputs, labels, num_items_in_batch=None):
    """Cross entropy of whole logits, and a term of them alone."""
    logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    total = functional.cross_entropy(logits, targets, reduction="sum")
    return (total + 0.01 * logits[targets != IGNORED].square().sum()) / num_items_in_batch


def with_own_loss(base):
    """A Trainer whose loss is a function of outputs and of parameters."""

    class OwnLoss(base):
        loss_is_scaled_for_ga = False

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs, output_hidden_states=True)
            norm = sum(parameter.square().sum() for parameter in self.model.parameters())
            loss = outputs.loss + 0.01 * outputs.hidden_states[-1].square().mean() + 1e-3 * norm
            return (loss, outputs) if return_outputs else loss

    return OwnLoss


def with_tuples(base):
    """A Trainer whose loss is a function of outputs without names."""

    class Tuples(base):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs, return_dict=False)
            return outputs[0] + 0.01 * outputs[1][:, :4].square().mean()

    return Tuples


def with_function(base):
    """A Trainer that is given its own loss after it was made."""

    def compute_loss(model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return outputs.loss + 0.01 * outputs.logits[:, :4].square().mean()

    def make(**settings):
        trainer = base(**settings)
        trainer.compute_loss = compute_loss
        return trainer

    return make


def with_optimizers(base):
    """A Trainer with an optimizer and a schedule of its own."""

    def make(**settings):
        CHOSEN[NOW[0]].add("optimizers")
        optimizer = torch.optim.SGD(settings["model"].parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return base(optimizers=(optimizer, schedule), **settings)

    return make


def with_hub(base):
    """A Trainer whose hub is not there."""
    return type("WithHub", (base,), {"init_hf_repo": lambda self: None})


class Counts(transformers.TrainerCallback):
    """Steps that a callback saw."""

    def __init__(self):
        self.steps = 0

    def on_step_end(self, *_, **__):
        self.steps += 1


#: Options of training: arguments, and settings of the Trainer.
TRAINING = {
    "accumulation": (
        {
            "gradient_accumulation_steps": 3,
            "max_grad_norm": 0.5,
            "optim": "adamw_torch",
            "lr_scheduler_type": "cosine",
            "warmup_steps": 1,
            "weight_decay": 0.1,
            "adam_beta1": 0.8,
            "include_num_input_tokens_seen": "all",
            "logging_steps": 2,
        },
        {},
    ),
    "label smoothing": ({"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 2}, {}),
    "compute_loss_func": ({"gradient_accumulation_steps": 2}, {"compute_loss_func": own_loss}),
    "compute_loss": ({"gradient_accumulation_steps": 2}, {"kind": with_own_loss}),
    "compute_loss of tuples": ({"max_steps": 2}, {"kind": with_tuples}),
    "compute_loss of one trainer": ({"max_steps": 2}, {"kind": with_function}),
    "average_tokens_across_devices": ({"average_tokens_across_devices": False}, {}),
    "sequential": ({"train_sampling_strategy": "sequential"}, {}),
    "group_by_length": (
        {"train_sampling_strategy": "group_by_length", "include_num_input_tokens_seen": "non_padding"},
        {"train_dataset": ragged(), "data_collator": padded},
    ),
    "batch_rebalance": (
        {"train_sampling_strategy": "batch_rebalance", "num_train_epochs": 2},
        {"train_dataset": ragged(), "data_collator": padded},
    ),
    "padding and compute_loss_func": (
        {},
        {"train_dataset": ragged(), "data_collator": padded, "compute_loss_func": own_loss},
    ),
    "padding and label smoothing": (
        {"label_smoothing_factor": 0.1},
        {"train_dataset": ragged(), "data_collator": padded},
    ),
    "workers": (
        {
            "dataloader_num_workers": 1,
            "dataloader_persistent_workers": True,
            "dataloader_prefetch_factor": 3,
            "dataloader_multiprocessing_context": "fork",
            "dataloader_in_order": False,
            "dataloader_pin_memory": True,
            "dataloader_drop_last": True,
        },
        {"train_dataset": examples(7)},
    ),
    "seeds": (
        {
            "data_seed": 3,
            "seed": 4,
            "num_train_epochs": 2,
            "logging_strategy": "epoch",
            "dataloader_pin_memory": False,
        },
        {},
    ),
    "max_steps": ({"max_steps": 5, "num_train_epochs": 7}, {}),
    "accelerator_config": (
        {
            "accelerator_config": {
                "use_seedable_sampler": False,
                "split_batches": True,
                "even_batches": False,
                "dispatch_batches": False,
                "non_blocking": True,
                "gradient_accumulation_kwargs": {"sync_each_batch": True, "num_steps": 2},
            },
        },
        {},
    ),
    "one pass": ({"max_steps": 3}, {"kind": with_one_pass}),
    "stream": ({"max_steps": 4}, {"train_dataset": Stream()}),
    "adafactor": ({"optim": "adafactor", "optim_args": "scale_parameter=True", "max_steps": 2}, {}),
    "adagrad": ({"optim": "adagrad", "max_steps": 2}, {}),
    "rmsprop": ({"optim": "rmsprop", "max_steps": 2}, {}),
    "adamw_torch_fused": (
        {"optim": "adamw_torch_fused", "adam_epsilon": 1e-6, "adam_beta2": 0.9, "max_steps": 2},
        {},
    ),
    "lr_scheduler_kwargs": (
        {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2}},
        {},
    ),
    "activation_checkpointing": (
        {
            "activation_checkpointing": True,
            "activation_checkpointing_kwargs": {"use_reentrant": False, "every_n_layers": 2},
        },
        {},
    ),
    "gradient_checkpointing": (
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {},
    ),
    "ddp": (
        {
            "ddp_find_unused_parameters": False,
            "ddp_bucket_cap_mb": 1,
            "ddp_broadcast_buffers": False,
            "ddp_timeout": 600,
        },
        {},
    ),
    "ddp_static_graph": ({"ddp_static_graph": True, "ddp_find_unused_parameters": False}, {}),
    "without effect": (
        {
            "local_rank": 0,
            "do_train": True,
            "do_eval": True,
            "do_predict": True,
            "log_level": "error",
            "log_level_replica": "error",
            "log_on_each_node": False,
            "logging_first_step": True,
            "logging_nan_inf_filter": False,
            "skip_memory_metrics": False,
            "torch_empty_cache_steps": 1,
            "project": "p",
            "run_name": "r",
            "report_to": [],
            "trackio_bucket_id": "b",
            "trackio_space_id": "s",
            "trackio_static_space_id": "t",
            "hub_always_push": True,
            "hub_model_id": "m",
            "hub_private_repo": True,
            "hub_revision": "v",
            "hub_strategy": "end",
            "hub_token": "k",
            "resume_from_checkpoint": "unused",
            "length_column_name": "size",
        },
        {"callbacks": [Counts()]},
    ),
    "hub": (
        {"push_to_hub": True, "hub_strategy": "end", "save_strategy": "epoch", "save_on_each_node": True},
        {"kind": with_hub},
    ),
    "columns": (
        {"remove_unused_columns": False},
        {"train_dataset": [dict(one, position_ids=POSITIONS) for one in examples()]},
    ),
    "optimizers": ({"max_steps": 2}, {"kind": with_optimizers}),
    "optimizer_cls_and_kwargs": (
        {"max_steps": 2},
        {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.02})},
    ),
    "model_init": ({"max_steps": 2}, {"model_init": llama}),
    "evaluation between": (
        {
            "eval_strategy": "steps",
            "eval_steps": 2,
            "eval_on_start": True,
            "eval_delay": 1,
            "lr_scheduler_type": "reduce_lr_on_plateau",
            "lr_scheduler_kwargs": {"patience": 0},
            "metric_for_best_model": "a_loss",
        },
        {"eval_dataset": {"a": examples(5, seed=9), "b": examples(3, seed=8)}},
    ),
    "full_determinism": ({"full_determinism": True, "max_steps": 2}, {}),
}


#: What each run gives to `TrainingArguments` and to the Trainer that is not their default.
CHOSEN = {}
NOW = [""]  # the run
_FIELDS = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}


def default_of(name):
    field = _FIELDS[name]
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def arguments(folder, **settings):
    """Arguments of a short run."""
    base = {
        "use_cpu": True,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "num_train_epochs": 1,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 5,
        "ddp_backend": "gloo" if "WORLD_SIZE" in os.environ else None,
    }
    names = CHOSEN.setdefault(NOW[0], {"output_dir", "args"})
    names |= {name for name, value in (base | settings).items() if value != default_of(name)}
    # Keys of the accelerator are written to by the Trainer.
    return transformers.TrainingArguments(str(folder), **copy.deepcopy(base | settings))


def trainer_of(base, folder, settings, of_trainer, **more):
    """A Trainer of `base`, or of a class that is made from it."""
    of_trainer = {"train_dataset": examples()} | of_trainer
    kind = of_trainer.pop("kind", lambda one: one)(base)
    if "model_init" not in of_trainer:
        of_trainer.setdefault("model", llama())
    args = arguments(folder, **settings)
    CHOSEN[NOW[0]] |= of_trainer.keys()
    return kind(args=args, **of_trainer, **more)


def numbers_of(trainer, metrics):
    """Logs, totals and parameters after training."""
    keys = ("loss", "grad_norm", "learning_rate", "eval_loss", "eval_a_loss", "eval_b_loss", "epoch")
    logs = [[entry.get(name) for name in keys] for entry in trainer.state.log_history]
    samples = metrics["train_samples_per_second"] * metrics["train_runtime"]
    state = trainer.state
    sums = [float(one.detach().double().abs().sum()) for one in trainer.model.parameters()]
    return [
        logs,
        metrics["train_loss"],
        round(samples, 1),
        state.total_flos,
        state.num_input_tokens_seen,
        state.global_step,
        sums,
    ]


def trained(base, folder, name, **more):
    """Numbers of a run of `TRAINING`."""
    settings, of_trainer = TRAINING[name]
    trainer = trainer_of(base, folder, settings, of_trainer, **more)
    numbers = numbers_of(trainer, trainer.train().metrics)
    torch.use_deterministic_algorithms(False)
    return numbers
