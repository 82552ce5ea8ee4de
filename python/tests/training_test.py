"""Training around our attention equals one device: DDP, FSDP2, sub-groups, checkpointing, loss."""

import collections
import copy

import model
import pytest
import ranks
import reference
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import armillary

BOUND = 1e-5  # fp32


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def one_device():
    """Losses and parameters after two steps of one process without ranks."""
    sp = armillary.SequenceParallel(dist.new_group([dist.get_rank()], use_local_synchronization=True))
    alone = model.Model(sp).double()
    losses = model.steps(alone, sp, adamw(alone.parameters()))
    return losses, [p.detach() for p in alone.parameters()]


def full(parameter):
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter.detach()


def trained(wrap, sp, dp_rank, dp_world):
    """Errors of losses and parameters of this rank against one device, in fp64."""
    wanted_losses, exact = one_device()
    spread = wrap(model.Model(sp).double())
    rows = slice(dp_rank * model.BATCH // dp_world, (dp_rank + 1) * model.BATCH // dp_world)
    losses = model.steps(spread, sp, adamw(spread.parameters()), rows)
    errors = [reference.relative_error(full(a), b) for a, b in zip(spread.parameters(), exact, strict=True)]
    # The loss of a replica is that of its rows; all rows have as many labels.
    for loss, wanted_loss in zip(losses, wanted_losses, strict=True):
        dist.all_reduce(loss)
        errors.append(abs(float(loss / dist.get_world_size() - wanted_loss)))
    return max(errors)


def fsdp(mesh):
    def wrap(one):
        for layer in one.layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(one, mesh=mesh)

    return wrap


def two_by_two(rank, world):
    """Data parallel x context parallel: gradients are means over all four ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    place = mesh.get_local_rank("dp"), 2
    both = mesh["dp", "cp"]._flatten("dp_cp")
    results = {}
    for layout in ("zigzag", "striped"):
        sp = armillary.SequenceParallel(mesh["cp"], layout=layout, strategy="usp:u=2")
        ddp = lambda one: DistributedDataParallel(one, process_group=both.get_group())  # noqa: E731
        results["DDP", layout] = trained(ddp, sp, *place)
        results["FSDP2", layout] = trained(fsdp(both), sp, *place)
    # Shards of parameters in the rows of the mesh, replicas of them in its columns.
    results["HSDP"] = trained(fsdp(mesh), armillary.SequenceParallel(mesh["cp"]), *place)
    by_name = armillary.SequenceParallel(mesh.get_group("cp"))
    results["sub-groups have their own ranks"] = (
        0.0 if (by_name.rank, by_name.world) == (rank % 2, 2) else 1.0
    )
    return results


def test_two_by_two_ranks_equal_one_device():
    for rank, results in enumerate(ranks.run(4, two_by_two)):
        for case, error in results.items():
            assert error < 1e-9, f"rank {rank}: {case}: {error}"


class CountAttention(TorchDispatchMode):
    """Counts calls of our ops."""

    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "armillary":
            self.calls[function.__name__.removesuffix(".default")] += 1
        return function(*args, **(kwargs or {}))


def gradients(sp, wrap, compiled=False):
    """Loss, gradients, and calls of attention in forward and backward of a model with two layers."""
    one = model.Model(sp, wrap=wrap)
    whole, _ = model.batch_of_documents()
    batch = sp.shard(**whole)
    with CountAttention() as count:
        x = sp.loss(one(batch["input_ids"], batch["positions"], batch.mask), batch["labels"])
        x.backward()
    return [x.detach(), *(p.grad for p in one.parameters())], count.calls


WRAPS = {
    "reentrant": lambda layer, x, mask: checkpoint(layer, x, mask, use_reentrant=True),
    "not reentrant": lambda layer, x, mask: checkpoint(layer, x, mask, use_reentrant=False),
    "attention kept": lambda layer, x, mask: checkpoint(
        layer, x, mask, use_reentrant=False, context_fn=armillary.keep_attention
    ),
}


def recomputed(rank, world):
    results = {}
    for strategy in ("ring", "ulysses"):
        sp = armillary.SequenceParallel(strategy=strategy)
        exact, _ = gradients(sp, None)
        for name, wrap in WRAPS.items():
            got, calls = gradients(sp, wrap)
            same = all(torch.equal(a, b) for a, b in zip(got, exact, strict=True))
            results[strategy, name] = same, calls["attention_forward"], calls["attention_backward"]
    return results


def test_recomputed_layers_have_the_same_bits_and_attention_runs_once_where_it_is_kept():
    for results in ranks.run(2, recomputed):
        for (strategy, name), (same, forward, backward) in results.items():
            assert same, (strategy, name)
            assert backward == 2, (strategy, name)
            assert forward == (2 if name == "attention kept" else 4), (strategy, name)


def losses(rank, world):
    """Loss and gradients against one device, for several layouts and both conventions."""
    whole, _ = model.batch_of_documents()
    whole["labels"][0, 3:9] = -100
    ids, labels = whole["input_ids"], whole["labels"]
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(*ids.shape, model.VOCABULARY, dtype=torch.float64, generator=generator)
    logits.requires_grad_()
    exact = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
    )
    (gradient,) = torch.autograd.grad(exact, logits)
    errors = {}
    for layout in ("contiguous", "zigzag", "striped"):
        sp = armillary.SequenceParallel(layout=layout)
        batch = sp.shard(logits=logits.detach(), **whole)
        for reduce, factor in (("mean", world), ("sum", 1)):
            mine = batch["logits"].clone().requires_grad_()
            loss = sp.loss(mine, batch["labels"], reduce=reduce)
            loss.backward()
            whole_gradient = sp.unshard(mine.grad) / factor
            errors[layout, reduce] = max(
                abs(float(loss - exact)), reference.relative_error(whole_gradient, gradient)
            )
        for name in ("input_ids", "document_ids", "labels"):
            again = sp.unshard(batch[name])
            expected = (
                whole[name] if name != "labels" else torch.cat([labels[:, 1:], labels[:, :1] * 0 - 100], 1)
            )
            errors[layout, name] = 0.0 if torch.equal(again, expected) else 1.0
        within = torch.cat([torch.arange(n) for n in (5, 12, 7)]).expand(model.BATCH, -1)
        errors[layout, "positions"] = 0.0 if torch.equal(sp.unshard(batch["positions"]), within) else 1.0
    # Shards of different sizes, and gradients through unshard.
    sp = armillary.SequenceParallel(layout="contiguous")
    uneven = sp.shard(ids=ids[:, :23], ragged="uneven")
    errors["uneven"] = 0.0 if torch.equal(sp.unshard(uneven["ids"] + 0, seq_len=23), ids[:, :23]) else 1.0
    weights = torch.arange(23.0, dtype=torch.float64)
    for reduce, factor in (("mean", world), ("sum", 1)):
        leaf = uneven["ids"].double().requires_grad_()
        (sp.unshard(leaf, deal=uneven.deal, reduce=reduce) * weights).sum().backward()
        exact = factor * weights[sp.positions(23)]
        errors["unshard", reduce] = 0.0 if torch.equal(leaf.grad[0], exact) else 1.0
    errors["the same bits on all ranks"] = 0.0 if has_same_bits(sp) else 1.0
    return errors


def has_same_bits(sp):
    """Whether losses in fp32 of sequences whose labels lie on the last rank are one number on all ranks."""
    generator, values = torch.Generator().manual_seed(5), []
    labels = torch.randint(50, (1, 8 * sp.world), generator=generator)
    labels[:, :-8] = -100
    for _ in range(20):
        logits = torch.randn(1, 8 * sp.world, 50, generator=generator)
        batch = sp.shard(logits=logits, labels=labels)
        values.append(sp.loss(batch["logits"].requires_grad_(), batch["labels"]).detach())
    of_ranks = sp.unshard(torch.stack(values)[None]).unflatten(1, (sp.world, -1))[0]
    return torch.equal(of_ranks, of_ranks[:1].expand_as(of_ranks))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_loss_is_that_of_one_device_in_any_world(world):
    for rank, errors in enumerate(ranks.run(world, losses)):
        for case, error in errors.items():
            assert error < 1e-12, f"rank {rank} of {world}: {case}: {error}"


def test_a_copy_of_a_model_attends_in_the_same_group():
    sp = armillary.SequenceParallel()
    assert copy.deepcopy(sp).group_name == sp.group_name
