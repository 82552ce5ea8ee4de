"""A rank of trainer_test.py, started by torchrun: prints how far the trained parameters are from one
device's."""

import json
import sys

import hf_models
import torch
import torch.distributed as dist
import transformers
from armillary.hf_trainer import Trainer
from torch.nn import functional

import armillary

STEPS, RATE = 3, 0.05


def examples():
    """Four sequences, of which only one has a label at every token."""
    generator = torch.Generator().manual_seed(13)
    rows = torch.randint(2, hf_models.VOCABULARY, (4, hf_models.TOKENS), generator=generator)
    labels = rows.clone()
    for row in range(3):
        labels[row, : 10 * row + 9] = -100
    return [{"input_ids": ids, "labels": wanted} for ids, wanted in zip(rows, labels, strict=True)]


def one_device():
    model = hf_models.build("qwen3").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    batch = {name: torch.stack([one[name] for one in examples()]) for name in ("input_ids", "labels")}
    losses = []
    for _ in range(STEPS):
        logits = model(input_ids=batch["input_ids"], use_cache=False).logits[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return model, losses


def over_ranks(folder):
    model = hf_models.build("qwen3")
    settings = transformers.TrainingArguments(
        folder,
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=STEPS,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    sp = armillary.SequenceParallel(strategy="ring")
    trainer = Trainer(model, settings, train_dataset=examples(), eval_dataset=examples()[2:], sp=sp)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return model, losses, trainer.evaluate()["eval_loss"]


def main(folder):
    torch.set_num_threads(1)
    whole, expected = one_device()
    model, losses, eval_loss = over_ranks(folder)
    with torch.no_grad():
        whole.eval()
        held = {name: torch.stack([one[name] for one in examples()[2:]]) for name in ("input_ids", "labels")}
        logits = whole(input_ids=held["input_ids"], use_cache=False).logits[:, :-1]
        held_loss = functional.cross_entropy(logits.flatten(0, 1), held["labels"][:, 1:].flatten())
        errors = {
            name: float((given - wanted).abs().max() / wanted.abs().max())
            for (name, given), wanted in zip(model.named_parameters(), whole.parameters(), strict=True)
        }
    if dist.get_rank() == 0:
        pairs = [*zip(losses, expected, strict=True), (eval_loss, float(held_loss))]
        print(json.dumps({"parameters": max(errors.values()), "losses": pairs}))
    armillary.leave_groups()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
