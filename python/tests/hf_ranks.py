"""A rank of hf_test.py, started as by torchrun: compares sharded models with one device, prints JSON on
rank 0."""

import copy
import json
import sys

import hf_models
import torch
import torch.distributed as dist

import armillary
from armillary import hf


def results(model, inputs):
    """Loss and gradients by name, in fp32."""
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return float(loss.detach()), {
        name: parameter.grad.double()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def one_device(model, packed):
    whole = hf_models.batch(packed)
    inputs = {"input_ids": whole["input_ids"], "labels": whole["labels"], "use_cache": False}
    inputs["position_ids"] = hf_models.positions_of(whole["document_ids"])
    if packed and model.config.model_type == "gpt_oss":
        inputs["attention_mask"] = hf_models.dense_masks(model.dtype)
    return results(model, inputs)


def sharded(model, packed, **settings):
    sp = armillary.SequenceParallel(**settings)
    with hf.install(model, sp):
        loss, gradients = results(model, hf.shard(sp, **hf_models.batch(packed), ragged="uneven"))
    for gradient in gradients.values():
        dist.all_reduce(gradient)
        gradient /= sp.world
    return loss, gradients


def errors(results, expected):
    """Error of the loss, and the largest error of a gradient, each over the largest value of that
    gradient."""
    worst, at = 0.0, ""
    least = 1e-6 * max(float(gradient.abs().max()) for gradient in expected[1].values())
    for name, gradient in expected[1].items():
        if max(float(gradient.abs().max()), float(results[1][name].abs().max())) <= least:
            continue  # 0 but for rounding, such as that of a bias of keys
        error = float((results[1][name] - gradient).abs().max() / gradient.abs().max().clamp_min(1e-30))
        if not error <= worst:
            worst, at = error, name
    return {"loss": abs(results[0] - expected[0]) / abs(expected[0]), "gradient": worst, "at": at}


def distance(results, expected):
    """Error of all gradients together, in the Euclidean norm."""
    squares = [(results[1][name] - one).square().sum() for name, one in expected[1].items()]
    whole = [one.square().sum() for one in expected[1].values()]
    return float((sum(squares) / sum(whole)).sqrt())


def compare(family, packed, settings):
    model = hf_models.build(family)
    exact = one_device(model, packed)
    answer = {"fp32": errors(sharded(model, packed, **settings), exact)}
    if not packed:
        return answer
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    eager, ours = one_device(rounded, packed), sharded(rounded, packed, **settings)
    answer["bf16"] = {
        "eager": distance(eager, exact),
        "ours": distance(ours, exact),
        "eager loss": abs(eager[0] - exact[0]),
        "ours loss": abs(ours[0] - exact[0]),
    }
    return answer


def main(families):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    answers = {}
    layouts = ("zigzag", "contiguous", "striped")
    strategies = ("auto:traffic", "ring", "usp:u=2" if dist.get_world_size() % 2 == 0 else "allgather")
    for at, family in enumerate(families):
        for packed in (False, True):
            settings = {
                "layout": "balanced" if family == "gpt2" else layouts[(at + packed) % 3],
                "strategy": strategies[at % 3],
            }
            answers[f"{family} {'packed' if packed else 'one document'} {settings}"] = compare(
                family, packed, settings
            )
    if dist.get_rank() == 0:
        print(json.dumps(answers))
    armillary.leave_groups()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:] or list(hf_models.CONFIGS))
