"""Runs of a Trainer, each made alike for transformers in one process and for ours over ranks."""

import copy
import os
import pathlib

import peft
import torch
import transformers
from armillary._hf_table import HONOURED_METHODS
from torch.nn import functional
from torch.utils.data import IterableDataset

from armillary import hf

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
    found = []
    for at, row in enumerate(rows):
        labels = row.clone()
        labels[: (7 * at) % 29] = IGNORED
        found.append({"input_ids": row, "labels": labels})
    return found


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


def own_loss(outputs, labels, num_items_in_batch=None):
    """Cross entropy of whole logits, and a term of them alone."""
    logits, wanted = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    total = functional.cross_entropy(logits, wanted, reduction="sum")
    return (total + 0.01 * logits[wanted != IGNORED].square().sum()) / num_items_in_batch


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
        optimizer = torch.optim.SGD(settings["model"].parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return base(optimizers=(optimizer, schedule), **settings)

    return make


def with_overrides(names):
    """A Trainer that overrides methods by ones that only call them."""

    def make(base):
        def overriding(name):
            return lambda self, *args, **settings: getattr(super(kind, self), name)(*args, **settings)

        methods = {name: overriding(name) for name in names if callable(getattr(base, name))}
        methods["get_optimizer_cls_and_kwargs"] = staticmethod(base.get_optimizer_cls_and_kwargs)
        kind = type("Overrides", (base,), methods)
        return kind

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
    "seeds": ({"data_seed": 3, "seed": 4, "num_train_epochs": 2, "logging_strategy": "epoch"}, {}),
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
            "local_rank": -1,
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
        {"push_to_hub": True, "hub_strategy": "end", "save_strategy": "epoch", "save_on_each_node": False},
        {"kind": with_hub},
    ),
    "overrides": ({}, {"kind": with_overrides(HONOURED_METHODS.split())}),
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
    # Keys of the accelerator are written to by the Trainer.
    return transformers.TrainingArguments(str(folder), **copy.deepcopy(base | settings))


def trainer_of(base, folder, settings, of_trainer, **more):
    """A Trainer of `base`, or of a class that is made from it."""
    of_trainer = {"train_dataset": examples()} | of_trainer
    kind = of_trainer.pop("kind", lambda one: one)(base)
    if "model_init" not in of_trainer:
        of_trainer.setdefault("model", llama())
    return kind(args=arguments(folder, **settings), **of_trainer, **more)


def numbers_of(trainer, metrics):
    """Logs, totals and parameters after training."""
    kept = ("loss", "grad_norm", "learning_rate", "eval_loss", "eval_a_loss", "eval_b_loss", "epoch")
    logs = [[entry.get(name) for name in kept] for entry in trainer.state.log_history]
    seen = metrics["train_samples_per_second"] * metrics["train_runtime"]
    state = trainer.state
    sums = [float(one.detach().double().abs().sum()) for one in trainer.model.parameters()]
    return [
        logs,
        metrics["train_loss"],
        round(seen, 1),
        state.total_flos,
        state.num_input_tokens_seen,
        state.global_step,
        sums,
    ]


def trained(base, folder, name, **more):
    """Numbers of a run of `TRAINING`."""
    settings, of_trainer = TRAINING[name]
    trainer = trainer_of(base, folder, settings, of_trainer, **more)
    found = numbers_of(trainer, trainer.train().metrics)
    torch.use_deterministic_algorithms(False)
    return found


def resumed(base, folder, **more):
    """Losses of a run that is begun again in its second epoch, and of the run that it goes on from."""
    settings = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 6}
    whole = trainer_of(base, folder, settings, {}, **more)
    whole.train()
    again = trainer_of(base, folder, settings | {"restore_callback_states_from_checkpoint": True}, {}, **more)
    again.train(resume_from_checkpoint=str(pathlib.Path(folder) / "checkpoint-6"))
    skipping = trainer_of(
        base, folder, settings | {"ignore_data_skip": True, "save_strategy": "no"}, {}, **more
    )
    skipping.train(resume_from_checkpoint=str(pathlib.Path(folder) / "checkpoint-6"))
    losses = [
        [one["loss"] for one in run.state.log_history if "loss" in one] for run in (whole, again, skipping)
    ]
    return [losses, losses[0] == losses[1] or "differs"]


def saved(base, folder, **more):
    """Which checkpoints are kept, and what a model that is read from one of them computes."""
    settings = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "best",
        "metric_for_best_model": "loss",
        "greater_is_better": False,
        "load_best_model_at_end": True,
        "save_total_limit": 1,
        "save_only_model": True,
    }
    trainer = trainer_of(base, folder, settings, {"eval_dataset": examples(3, seed=9)}, **more)
    trainer.train()
    found = [numbers_of(trainer, {"train_samples_per_second": 0, "train_runtime": 0, "train_loss": 0})]
    trainer.accelerator.wait_for_everyone()
    kept = sorted(one.name for one in pathlib.Path(folder).iterdir() if one.is_dir())
    whole = examples(1)[0]["input_ids"][None]
    again = transformers.AutoModelForCausalLM.from_pretrained(pathlib.Path(folder) / kept[0])
    return [*found, kept, again(whole).logits.square().mean().item(), again.config._attn_implementation]


def packed(base, folder, **more):
    """Examples of different lengths: padded in one process, packed as documents over ranks."""
    collate = padded if base is transformers.Trainer else hf.pack
    rows = [{"input_ids": one["input_ids"], "labels": one["labels"]} for one in ragged()]
    of_trainer = {"train_dataset": rows, "eval_dataset": rows[:5], "data_collator": collate}
    trainer = trainer_of(base, folder, {"gradient_accumulation_steps": 2}, of_trainer, **more)
    found = numbers_of(trainer, trainer.train().metrics)
    return [found[0], found[1], found[-1], trainer.evaluate()["eval_loss"]]


def adapted(base, folder, **more):
    """Adapters of peft, and parameters beside them."""
    found = []
    for kind in (
        peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"]),
        peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    ):
        model = peft.get_peft_model(llama(), kind)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(3))
        settings = {"label_smoothing_factor": 0.1 if found else 0.0, "gradient_accumulation_steps": 2}
        of_trainer = {"model": model, "eval_dataset": examples(3, seed=9)}
        trainer = trainer_of(base, folder, settings, of_trainer, **more)
        found += [numbers_of(trainer, trainer.train().metrics), trainer.evaluate()["eval_loss"]]
    return found


def narrow(base, folder, **more):
    """Predictions in fp32 and of models that are cast to narrow numbers, and parameters after some steps."""
    found = {}
    for name in ("", "bf16_full_eval", "fp16_full_eval"):
        trainer = trainer_of(base, folder, {name: True} if name else {}, {}, **more)
        found[name] = trainer.predict(examples(2)).predictions.flatten().tolist()
    for name in ("trained", "bf16"):
        settings = {"max_steps": 2, "gradient_accumulation_steps": 2, "bf16": name == "bf16"}
        trainer = trainer_of(base, folder, settings, {}, **more)
        trainer.train()
        sums = [one.detach().flatten() for one in trainer.model.parameters()]
        found[name] = torch.cat(sums)[::5].tolist()
    return found


def size_of(values):
    """The sum of absolute values of arrays in tuples and lists."""
    if values is None:
        return 0.0
    if isinstance(values, (tuple, list)):
        return sum(size_of(one) for one in values)
    return float(abs(values).sum())


def evaluated(base, folder, **more):
    """Metrics, predictions and the inputs of functions of metrics, in each way to ask for them."""
    found = {}

    def metrics(given, compute_result=True):
        seen.append([size_of(one) for one in (given.predictions, given.label_ids)])
        seen[-1] += [None if one is None else len(one) for one in (given.inputs, given.losses)]
        return {"rows": len(given.predictions)}

    asked = {
        "loss": ({}, {}),
        "metrics": ({}, {"compute_metrics": metrics}),
        "included": (
            {"include_for_metrics": ["inputs", "loss"], "eval_accumulation_steps": 2},
            {"compute_metrics": metrics},
        ),
        "batches": ({"batch_eval_metrics": True}, {"compute_metrics": metrics}),
        "objects": (
            {"eval_use_gather_object": True},
            {
                "compute_metrics": metrics,
                "preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(-1) + (labels != 1),
            },
        ),
        "loss only": ({"prediction_loss_only": True}, {"compute_metrics": metrics}),
        "smoothed": ({"label_smoothing_factor": 0.1}, {"compute_metrics": metrics}),
        "own loss": ({}, {"compute_metrics": metrics, "kind": with_own_loss}),
        "sorted": ({"train_sampling_strategy": "group_by_length"}, {"compute_metrics": metrics}),
    }
    for name, (settings, of_trainer) in asked.items():
        seen = []
        trainer = trainer_of(
            base, folder, settings, {"eval_dataset": examples(5, seed=9)} | of_trainer, **more
        )
        evaluation = trainer.evaluate()
        steps = round(evaluation["eval_steps_per_second"] * evaluation["eval_runtime"])
        predicted = trainer.predict(examples(3, seed=8), metric_key_prefix="held")
        found[name] = [evaluation["eval_loss"], evaluation.get("eval_rows"), steps, seen]
        found[name] += [predicted.metrics["held_loss"], size_of(predicted.predictions)]
    trainer = trainer_of(
        base, folder, {"eval_do_concat_batches": False}, {"compute_metrics": metrics}, **more
    )
    rows = [{"input_ids": one["input_ids"]} for one in examples(3, seed=8)]
    found["without labels"] = size_of(trainer.predict(rows).predictions)
    both = trainer.evaluate({"a": examples(1), "b": examples(3)})
    found["dict"] = {name: value for name, value in both.items() if name.endswith("_loss")}
    return found
