"""A rank of hf_families_test.py, started by torchrun: compares tiny models of families with one device,
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


def in_autocast(family, batch, sp):
    """Errors of bf16 autocast against fp64, with eager attention and over ranks, the forward pass inside."""
    model = hf_tiny.build(family, hf_tiny.DENSE)
    exact = one_device(model, batch)
    model.float().forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    try:
        eager = one_device(model, batch)
    except (RuntimeError, TypeError) as unable:
        return {"unable": str(unable)}
    ours = sharded(model, batch, sp)
    pairs = (("eager loss", eager), ("ours loss", ours))
    errors = {name: abs(one[0] - exact[0]) / exact[0] for name, one in pairs}
    return errors | {"eager": distance(eager, exact), "ours": distance(ours, exact)}


def compare(family, sp):
    model, batch = hf_tiny.build(family), whole()
    answer = errors(sharded(model, batch, sp), one_device(model, batch))
    return answer | {"autocast": in_autocast(family, batch, sp)}


def main(families):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sp = armillary.SequenceParallel(strategy="ring")
    found = {family: compare(family, sp) for family in families or sorted(hf.FAMILIES)}
    if dist.get_rank() == 0:
        print(json.dumps(found))
    armillary.leave_groups()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
