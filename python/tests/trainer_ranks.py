"""A rank of trainer_test.py, started as by torchrun: prints what Trainers over ranks give and what the
Trainer of transformers in one process gives: each rank runs some of those, before there is a group."""

import json
import logging
import os
import pathlib
import sys
import warnings

import torch
import torch.distributed as dist
import trainer_cases as cases
import trainer_runs as more_runs
import transformers
from accelerate.state import AcceleratorState, GradientState, PartialState

OTHERS = ("resumed", "saved", "evaluated", "packed", "adapted", "narrow", "overridden")
OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def results(base, folder, names, **more):
    """Results of the runs of some names."""
    runs = {}
    for name in names:
        cases.NOW[0] = name
        place = pathlib.Path(folder) / name.replace(" ", "_")
        if name in cases.TRAINING:
            runs[name] = cases.trained(base, place, name, **more)
        else:
            runs[name] = getattr(more_runs, name)(base, place, **more)
    return runs


def in_one_process(folder, names):
    """The same with the Trainer of transformers, before there is a process group."""
    environment = {name: os.environ.pop(name) for name in OF_RANKS}
    runs = results(transformers.Trainer, folder, names)
    os.environ.update(environment)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()
    return runs


def first_batch(base, folder, sp):
    """Numbers of runs whose first batch is compared with one device, and the text for layers that know how
    many tokens they are given."""
    runs = ("max_steps", "one pass", "gradient_checkpointing", "narrow steps")
    cases.TRAINING["narrow steps"] = ({"bf16": True, "max_steps": 2}, {})
    checked = {}
    for name in runs:
        both = [cases.trained(base, folder, name, sp=sp, check_first_batch=one) for one in (True, False)]
        checked[name] = [json.dumps(one) for one in both]
    trainer = cases.trainer_of(base, folder, {}, {}, sp=sp, check_first_batch=True)
    layer = type(trainer.model.model.layers[0].mlp)
    right = layer.forward
    layer.forward = lambda self, x: right(self, x) / x.shape[1]
    try:
        trainer.train()
        text = "not refused"
    except ValueError as refused:
        text = str(refused)
    layer.forward = right
    return [checked, text, trainer.installation.is_installed]


def main(folder, names):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    cases.CHOSEN.clear()
    rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    names = names or [*cases.TRAINING, *OTHERS]
    mine = in_one_process(f"{folder}/one", names[rank::world])
    dist.init_process_group("gloo")
    parts = [None] * world
    dist.all_gather_object(parts, mine)
    from armillary.hf_trainer import Trainer

    import armillary

    sp = armillary.SequenceParallel(strategy="ring")
    of_ranks = results(Trainer, f"{folder}/ranks", names, sp=sp)
    of_ranks["first batch"] = first_batch(Trainer, folder, sp)
    if rank == 0:
        choices = {name: sorted(one) for name, one in cases.CHOSEN.items()}
        alone = {name: one for part in parts for name, one in part.items()}
        print(json.dumps({"given": of_ranks, "wanted": alone, "chosen": choices}))
    armillary.leave_groups()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
