"""Every loss of docs/own_losses.md: value and gradients of one device, however gradients are combined."""

import model
import ranks
import reference
import torch
import torch.distributed as dist
from examples_test import ROOT, python_blocks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import armillary

PAGE = ROOT / "docs" / "own_losses.md"
ADVANTAGES = torch.tensor([1.0, -0.5, 2.0, 0.25], dtype=torch.float64)


class Policy(model.Model):
    """A model with a head for rewards; the loss is computed in its forward, as DDP and FSDP want it."""

    def __init__(self, sp):
        super().__init__(sp)
        self.score = nn.Linear(16, 1)
        self.double()

    def forward(self, loss_of, input_ids, positions, mask):
        x = self.tokens(input_ids) + self.positions(positions)
        for layer in self.layers:
            x = layer(x, mask)
        return loss_of(self.head(x), x, self.score)


def whole_batch():
    whole, _ = model.batch_of_documents()
    whole["labels"][:, 3:7] = -100
    generator = torch.Generator().manual_seed(6)
    shape = (2, *whole["input_ids"].shape, model.VOCABULARY)
    whole["before"], whole["teacher"] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return whole


def on_one_device(whole):
    """Losses of whole sequences, written without the page: the same names."""
    following = torch.cat([whole["labels"][:, 1:], whole["labels"][:, :1] * 0 - 100], 1)

    def of_labels(logits):
        losses = functional.cross_entropy(
            logits.flatten(0, 1), following.flatten(), ignore_index=-100, reduction="none"
        )
        return -losses.unflatten(0, following.shape)

    def mean(logits, x, score):
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=-100)

    def reward(logits, x, score):
        r = score(x[:, -1]).flatten()
        return functional.softplus(r[2:] - r[:2]).mean()

    def dpo(logits, x, score):
        margin = (of_labels(logits) - of_labels(whole["before"])).sum(1)
        return functional.softplus(0.1 * (margin[2:] - margin[:2])).mean()

    def distilled(logits, x, score):
        p = whole["teacher"].softmax(-1)
        return (p * (p.log() - logits.log_softmax(-1))).sum(-1).mean()

    def contrastive(logits, x, score):
        e = x.mean(1) / x.mean(1).norm(dim=-1, keepdim=True)
        scores = e[:2] @ e[2:].T
        return (scores.logsumexp(1) - scores.diag()).mean()

    return {
        "token mean": mean,
        "token mean by hand": mean,
        "log probabilities": lambda logits, x, score: -(ADVANTAGES @ of_labels(logits).sum(1)) / 4,
        "reward": reward,
        "reward behind": reward,
        "dpo": dpo,
        "distillation": distilled,
        "contrastive": contrastive,
    }


def over_ranks(sp, batch):
    page = {}
    exec(compile(python_blocks(PAGE), str(PAGE), "exec"), page)
    return {
        "token mean": lambda logits, x, score: page["token_mean"](sp, logits, batch),
        "token mean by hand": lambda logits, x, score: page["token_mean_by_hand"](sp, logits, batch),
        "log probabilities": lambda logits, x, score: page["policy_gradient"](sp, logits, batch, ADVANTAGES),
        "reward": lambda logits, x, score: page["preference"](page["rewards"](sp, x, score, batch)),
        "reward behind": lambda logits, x, score: page["preference"](
            page["rewards_behind"](sp, x, score, batch)
        ),
        "dpo": lambda logits, x, score: page["dpo"](sp, logits, batch["before"], batch),
        "distillation": lambda logits, x, score: page["distillation"](sp, logits, batch["teacher"], batch),
        "contrastive": lambda logits, x, score: page["contrastive"](page["embeddings"](sp, x, batch)),
    }


def fsdp(one):
    return fully_shard(one, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


def ddp(one):
    return DistributedDataParallel(one, find_unused_parameters=True)


def gradients(one, loss):
    """Loss, gradient of the model, and of the head; 0 where the loss does not reach."""
    loss.backward()
    parts = {"loss": [loss.detach()], "model": [], "head": []}
    for name, parameter in getattr(one, "module", one).named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        parts["head" if name.startswith("score") else "model"].append(gradient.detach().flatten())
    one.zero_grad()
    return {name: torch.cat([x.reshape(-1) for x in part]) for name, part in parts.items()}


def every_loss(rank, world):
    alone = armillary.SequenceParallel(dist.new_group([rank], use_local_synchronization=True))
    sp = armillary.SequenceParallel(strategy="ring")
    whole, errors = whole_batch(), {}
    rest = alone.shard(**whole)
    batch = sp.shard(**whole)
    single = Policy(alone)
    wrapped = {"DDP": ddp(Policy(sp)), "FSDP2": fsdp(Policy(sp)), "sums": Policy(sp)}
    for kind, one in on_one_device(whole).items():
        of_one = single(one, whole["input_ids"], rest["positions"], rest.mask)
        expected = gradients(single, of_one)
        for combined, spread in wrapped.items():
            loss = spread(over_ranks(sp, batch)[kind], batch["input_ids"], batch["positions"], batch.mask)
            got = gradients(spread, loss / world if combined == "sums" else loss)
            if combined == "sums":
                for name in got:
                    dist.all_reduce(got[name])
            elif kind == "token mean by hand":  # the value is that of the rank
                dist.all_reduce(got["loss"])
                got["loss"] /= world
            for name, value in expected.items():
                errors[kind, combined, name] = reference.relative_error(got[name], value)
    return errors


def test_gradients_of_model_and_head_are_those_of_one_device():
    for rank, errors in enumerate(ranks.run(2, every_loss)):
        assert len(errors) == 8 * 3 * 3
        for case, error in errors.items():
            assert error < 1e-9, f"rank {rank}: {case}: {error}"
