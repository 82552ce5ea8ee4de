"""A rank of hf_families_test.py, started as torchrun does: compares tiny models of families with one device,
prints JSON on rank 0."""

import json
import sys
import warnings

import hf_tiny
import torch
import torch.distributed as dist
from hf_ranks import distance, errors, results
from torch.nn import functional

import armillary
from armillary import hf

DOCUMENTS = (20, 12)


def whole():
    ids = torch.randint(
        2, hf_tiny.VOCABULARY, (1, sum(DOCUMENTS)), generator=torch.Generator().manual_seed(3)
    )
    documents = torch.repeat_interleave(torch.arange(len(DOCUMENTS)), torch.tensor(DOCUMENTS)).unsqueeze(0)
    labels = ids.clone()
    labels[:, 3] = -100
    return {"input_ids": ids, "labels": labels, "document_ids": documents}


def one_device(model, batch):
    """Loss and gradients of each document by itself, put together."""
    model.zero_grad()
    parts = [model(input_ids=part, use_cache=False).logits for part in batch["input_ids"].split(DOCUMENTS, 1)]
    logits = torch.cat(parts, 1)[0, :-1]
    loss = functional.cross_entropy(logits, batch["labels"][0, 1:])
    loss.backward()
    return float(loss.detach()), {
        name: one.grad.double() for name, one in model.named_parameters() if one.grad is not None
    }


def sharded(model, batch, sp):
    """Loss and gradients, which are means over ranks."""
    with hf.install(model, sp, check=False):
        loss, gradients = results(model, hf.shard(sp, **batch, ragged="uneven"))
    flat = torch.cat([one.flatten() for one in gradients.values()])
    dist.all_reduce(flat)
    parts = (flat / sp.world).split([one.numel() for one in gradients.values()])
    shares = zip(gradients.items(), parts, strict=True)
    return loss, {name: part.view_as(one) for (name, one), part in shares}


def over_ranks(family, batch, sp):
    """Loss and gradients in fp64, and those of bf16 autocast with the forward pass inside, or None."""
    plain = sharded(hf_tiny.build(family), batch, sp)
    model = in_autocast(hf_tiny.build(family, hf_tiny.DENSE))
    try:
        return plain, sharded(model, batch, sp)
    except (RuntimeError, TypeError):  # of the model, on all ranks alike
        return plain, None


def in_autocast(model):
    model.float().forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    return model


def errors_in_autocast(family, batch, ours):
    """Errors of bf16 autocast against fp64, with eager attention and over ranks."""
    exact = one_device(hf_tiny.build(family, hf_tiny.DENSE), batch)
    try:
        eager = one_device(in_autocast(hf_tiny.build(family, hf_tiny.DENSE)), batch)
    except (RuntimeError, TypeError) as unable:
        return {"unable": str(unable)}
    pairs = (("eager loss", eager), ("ours loss", ours))
    errors = {name: abs(one[0] - exact[0]) / exact[0] for name, one in pairs}
    return errors | {"eager": distance(eager, exact), "ours": distance(ours, exact)}


def reads_positions(model, ids):
    """Whether position_ids that begin again keep documents apart on one device."""
    positions = torch.cat([torch.arange(length) for length in DOCUMENTS]).unsqueeze(0)
    with torch.no_grad():
        apart = torch.cat(
            [model(input_ids=part, use_cache=False).logits for part in ids.split(DOCUMENTS, 1)], 1
        )
        packed = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    return bool((packed - apart).abs().max() <= 1e-5 * apart.abs().max())


def compare(family, batch, ours):
    model = hf_tiny.build(family)
    answer = errors(ours[0], one_device(model, batch))
    answer["reads positions"] = reads_positions(model, batch["input_ids"])
    return answer | {"autocast": errors_in_autocast(family, batch, ours[1])}


def main(families):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sp = armillary.SequenceParallel(strategy="ring")
    families, batch, answers = families or sorted(hf.FAMILIES), whole(), {}
    # Each rank compares every other family with one device, beside the other rank.
    for begin in range(0, len(families), sp.world):
        some = families[begin : begin + sp.world]
        results = [over_ranks(family, batch, sp) for family in some]
        if sp.rank < len(some):
            answers[some[sp.rank]] = compare(some[sp.rank], batch, results[sp.rank])
    of_ranks = [None] * sp.world
    dist.all_gather_object(of_ranks, answers)
    if sp.rank == 0:
        print(json.dumps({family: answer for one in of_ranks for family, answer in one.items()}))
    armillary.leave_groups()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
