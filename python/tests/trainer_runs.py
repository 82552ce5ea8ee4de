"""Runs of a Trainer that are more than one training: resumed, saved, evaluated, adapted, overridden."""

import pathlib

import peft
import tokenizers
import torch
import transformers
from armillary._hf_table import HONOURED_METHODS
from trainer_cases import (
    VOCABULARY,
    Counts,
    examples,
    llama,
    numbers_of,
    padded,
    ragged,
    trainer_of,
    with_own_loss,
)

from armillary import hf


def with_overrides(called):
    """A Trainer that overrides all methods that may be overridden by ones that only call them."""

    def make(base):
        def overriding(name):
            def call(self, *args, **settings):
                called.add(name)
                return getattr(super(kind, self), name)(*args, **settings)

            return call

        def optimizer(*args, **settings):
            called.add("get_optimizer_cls_and_kwargs")
            return base.get_optimizer_cls_and_kwargs(*args, **settings)

        names = [name for name in HONOURED_METHODS.split() if callable(getattr(base, name))]
        methods = {name: overriding(name) for name in names}
        kind = type("Overrides", (base,), methods | {"get_optimizer_cls_and_kwargs": staticmethod(optimizer)})
        return kind

    return make


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
    numbers = [numbers_of(trainer, {"train_samples_per_second": 0, "train_runtime": 0, "train_loss": 0})]
    trainer.accelerator.wait_for_everyone()
    folders = sorted(one.name for one in pathlib.Path(folder).iterdir() if one.is_dir())
    whole = examples(1)[0]["input_ids"][None]
    again = transformers.AutoModelForCausalLM.from_pretrained(pathlib.Path(folder) / folders[0])
    return [*numbers, folders, again(whole).logits.square().mean().item(), again.config._attn_implementation]


def packed(base, folder, **more):
    """Examples of different lengths: padded in one process, packed as documents over ranks."""
    collate = padded if base is transformers.Trainer else hf.pack
    rows = [{"input_ids": one["input_ids"], "labels": one["labels"]} for one in ragged()]
    of_trainer = {"train_dataset": rows, "eval_dataset": rows[:5], "data_collator": collate}
    trainer = trainer_of(base, folder, {"gradient_accumulation_steps": 2}, of_trainer, **more)
    numbers = numbers_of(trainer, trainer.train().metrics)
    return [numbers[0], numbers[1], numbers[-1], trainer.evaluate()["eval_loss"]]


def adapted(base, folder, **more):
    """Adapters of peft, and parameters beside them."""
    numbers = []
    for kind in (
        peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"]),
        peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    ):
        model = peft.get_peft_model(llama(), kind)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(3))
        settings = {"label_smoothing_factor": 0.1 if numbers else 0.0, "gradient_accumulation_steps": 2}
        of_trainer = {"model": model, "eval_dataset": examples(3, seed=9)}
        trainer = trainer_of(base, folder, settings, of_trainer, **more)
        numbers += [numbers_of(trainer, trainer.train().metrics), trainer.evaluate()["eval_loss"]]
    return numbers


def tokenizer():
    """One word for each token."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, pad_token="w0")


def overridden(base, folder, **more):
    """Every method that may be overridden is, and is called; collator and files are those of a tokenizer."""
    called = set()
    settings = {"save_strategy": "epoch", "eval_strategy": "epoch", "save_only_model": True}
    of_trainer = {
        "kind": with_overrides(called),
        "processing_class": tokenizer(),
        "eval_dataset": examples(3, seed=9),
        "callbacks": [Counts()],
    }
    trainer = trainer_of(base, folder, settings, of_trainer, **more)
    trainer.add_callback(Counts)
    trainer.pop_callback(Counts)
    numbers = [numbers_of(trainer, trainer.train().metrics)]
    trainer.remove_callback(Counts)
    loader = trainer.get_train_dataloader()
    numbers += [trainer.num_examples(loader), trainer.get_num_trainable_parameters()]
    numbers += [trainer.get_learning_rates(), len(trainer.get_optimizer_group())]
    numbers.append(trainer.predict(examples(2)).metrics["test_loss"])
    trainer.create_scheduler(4, trainer.optimizer)
    trainer.create_optimizer_and_scheduler(4)
    metrics = {"a_loss": 1.0}
    trainer.log_metrics("all", metrics)
    trainer.save_metrics("all", metrics)
    trainer.save_state()
    trainer.create_model_card()
    trainer.accelerator.wait_for_everyone()
    files = sorted(one.name for one in pathlib.Path(folder).rglob("*") if one.is_file())
    return [*numbers, files, sorted(called)]


def narrow(base, folder, **more):
    """Predictions in fp32 and of models that are cast to narrow numbers, and parameters after some steps."""
    numbers = {}
    for name in ("", "bf16_full_eval", "fp16_full_eval"):
        trainer = trainer_of(base, folder, {name: True} if name else {}, {}, **more)
        numbers[name] = trainer.predict(examples(2)).predictions.flatten().tolist()
    for name in ("trained", "bf16"):
        settings = {"max_steps": 2, "gradient_accumulation_steps": 2, "bf16": name == "bf16"}
        trainer = trainer_of(base, folder, settings, {}, **more)
        trainer.train()
        sums = [one.detach().flatten() for one in trainer.model.parameters()]
        numbers[name] = torch.cat(sums)[::5].tolist()
    return numbers


def size_of(values):
    """The sum of absolute values of arrays in tuples and lists."""
    if values is None:
        return 0.0
    if isinstance(values, (tuple, list)):
        return sum(size_of(one) for one in values)
    return float(abs(values).sum())


def evaluated(base, folder, **more):
    """Metrics, predictions and the inputs of functions of metrics, in each way to ask for them."""
    numbers = {}

    def metrics(prediction, compute_result=True):
        sizes.append([size_of(one) for one in (prediction.predictions, prediction.label_ids)])
        sizes[-1] += [None if one is None else len(one) for one in (prediction.inputs, prediction.losses)]
        return {"rows": len(prediction.predictions)}

    settings_of = {
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
    for name, (settings, of_trainer) in settings_of.items():
        sizes = []
        trainer = trainer_of(
            base, folder, settings, {"eval_dataset": examples(5, seed=9)} | of_trainer, **more
        )
        evaluation = trainer.evaluate()
        steps = round(evaluation["eval_steps_per_second"] * evaluation["eval_runtime"])
        predicted = trainer.predict(examples(3, seed=8), metric_key_prefix="held")
        numbers[name] = [evaluation["eval_loss"], evaluation.get("eval_rows"), steps, sizes]
        numbers[name] += [predicted.metrics["held_loss"], size_of(predicted.predictions)]
    trainer = trainer_of(
        base, folder, {"eval_do_concat_batches": False}, {"compute_metrics": metrics}, **more
    )
    rows = [{"input_ids": one["input_ids"]} for one in examples(3, seed=8)]
    numbers["without labels"] = size_of(trainer.predict(rows).predictions)
    both = trainer.evaluate({"a": examples(1), "b": examples(3)})
    numbers["dict"] = {name: value for name, value in both.items() if name.endswith("_loss")}
    return numbers
