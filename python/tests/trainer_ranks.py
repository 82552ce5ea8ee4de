"""A rank of trainer_test.py, started by torchrun: prints what Trainers over ranks give and, from the Trainer
of transformers in one process of its own kind, what is wanted."""

import json
import logging
import os
import pathlib
import sys
import warnings

import torch
import torch.distributed as dist
import trainer_cases as cases
import transformers
from accelerate.state import AcceleratorState, GradientState, PartialState

OTHERS = ("resumed", "saved", "evaluated", "packed", "adapted", "narrow")
OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def results(base, folder, names, **more):
    """Results of the runs of some names."""
    found = {}
    for name in names:
        place = pathlib.Path(folder) / name.replace(" ", "_")
        if name in cases.TRAINING:
            found[name] = cases.trained(base, place, name, **more)
        else:
            found[name] = getattr(cases, name)(base, place, **more)
    return found


def in_one_process(folder, names):
    """The same with the Trainer of transformers, before there is a process group."""
    kept = {name: os.environ.pop(name) for name in OF_RANKS}
    found = results(transformers.Trainer, folder, names)
    os.environ.update(kept)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()
    return found


def first_batch(base, folder, sp):
    """Losses of a run whose first batch is compared with one device, and the text for layers that know how
    many tokens they are given."""
    checked = cases.trained(base, folder, "max_steps", sp=sp, check_first_batch=True)
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
    is_first = os.environ["RANK"] == "0"
    names = names or [*cases.TRAINING, *OTHERS]
    wanted = in_one_process(f"{folder}/one", names) if is_first else None
    dist.init_process_group("gloo")
    from armillary.hf_trainer import Trainer

    import armillary

    sp = armillary.SequenceParallel(strategy="ring")
    given = results(Trainer, f"{folder}/ranks", names, sp=sp)
    given["first batch"] = first_batch(Trainer, folder, sp)
    if is_first:
        print(json.dumps({"given": given, "wanted": wanted}))
    armillary.leave_groups()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
