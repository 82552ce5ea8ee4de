"""Models of Hugging Face transformers over sequences that are spread over ranks.

    sp = armillary.SequenceParallel(mesh["cp"])
    armillary.hf.install(model, sp, check=batch)  # compares a short batch with one device
    inputs = armillary.hf.shard(sp, input_ids=input_ids, labels=labels, document_ids=document_ids)
    loss = model(**inputs).loss  # that of one device, on every rank

`install` registers an attention and a mask function with transformers, for this model alone. A model, a mask
or a feature that cannot be honoured is an error that names it. Raises `BuildError` on import for a
transformers before 5.24."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from armillary._load import check_transformers

check_transformers((5, 24))

from transformers import PreTrainedModel  # noqa: E402

from armillary._hf_families import FAMILIES, REFUSED, check_family, configs_of  # noqa: E402
from armillary._hf_inputs import check_padding  # noqa: E402
from armillary._hf_installation import SHARDED, Installation  # noqa: E402
from armillary._hf_modules import base_model, check_additions  # noqa: E402
from armillary._packing import pack  # noqa: E402
from armillary.errors import InvalidArgument  # noqa: E402
from armillary.sequence_parallel import SequenceParallel  # noqa: E402

__all__ = ["FAMILIES", "REFUSED", "Installation", "install", "pack", "shard"]


def shard(
    sp: SequenceParallel,
    *,
    input_ids: Tensor,
    labels: Tensor | None = None,
    document_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    ragged: Literal["refuse", "uneven"] = "refuse",
) -> dict[str, Any]:
    """This rank's inputs for ``model(**inputs)`` from whole sequences [B, S], the same on all ranks.

    labels: of the same positions as input_ids, as transformers wants them. document_ids: packed documents,
    each of which attends to itself only; see `SequenceParallel.shard`. attention_mask: ones, and zeros for
    padding on the right whose labels are ignored, which no token of a causal model sees. It is checked, and
    not handed on: logits of the padding itself are those without it.

    Returns input_ids, position_ids (within the document), labels and shift_labels (of the next token), and
    `sharded`, the `Deal` of the sequence. Raises `InvalidArgument` as `SequenceParallel.shard`
    does, and for padding elsewhere."""
    if attention_mask is not None:
        with sp._refusals():
            check_padding(attention_mask, input_ids, labels, sp.mask)
    batch = sp.shard(ragged=ragged, input_ids=input_ids, labels=labels, document_ids=document_ids)
    inputs: dict[str, Any] = {"input_ids": batch["input_ids"], "position_ids": batch["positions"]}
    if labels is not None:
        inputs["labels"] = inputs["shift_labels"] = batch["labels"]
    inputs[SHARDED] = batch.deal
    return inputs


def install(
    model: nn.Module,
    sp: SequenceParallel,
    *,
    check: Mapping[str, Tensor | None] | Literal[False] | None = None,
    untested: bool = False,
    dropout_seed: int = 0,
) -> Installation:
    """Gives a model of transformers attention over the ranks of `sp`. Collective with `check`.

    Call the model with the batch that `shard` returns; `.loss` is then that of one device, with the
    convention of `SequenceParallel.loss` for its gradient, and logits are those of this rank's tokens. The
    mask of every layer is the declared one, within the layer's sliding window. DDP and FSDP2 may be put
    around the model afterwards, LoRA of PEFT before or afterwards.

    check: one batch of whole sequences, the same on all ranks, as `armillary.check` takes it. The first rows
      and tokens of it are compared with one device before anything is installed: loss, gradients and outputs.
      Without it a warning says so, on rank 0 of several; False for neither.
    untested: also a model of a family that is neither in `FAMILIES` nor in `REFUSED`, and one that was
      altered; compare it with one device first. dropout_seed: seed of the dropout of attention, the same on
      all ranks.

    Returns the installation, which `uninstall` ends. Raises `InvalidArgument` for a model that is installed
    already, of another family or class, or with layers that are no attention, such as recurrent ones, and
    for one that `check` finds to differ. A forward pass raises it for what cannot be honoured: a batch that
    is not from `shard`, caches, masks that are not declared, attention probabilities, labels that are not
    shifted, positions of another layout, and layers or a loss that are computed without the other ranks."""
    base = base_model(model)
    if not isinstance(base, PreTrainedModel):
        raise InvalidArgument(
            f"install: model is a {type(model).__name__}; a PreTrainedModel of transformers is required: "
            "wrap it with DDP afterwards"
        )
    if any(str(config._attn_implementation).startswith("armillary_") for config in configs_of(base)):
        raise InvalidArgument("install: the model is installed already; uninstall it first")
    check_family(base, untested=untested)
    if not untested:
        check_additions(base)
    report = None
    if check:
        from armillary._check import check_first

        report = check_first(model, check, sp)
    elif check is None and sp.rank == 0 and sp.world > 1:
        warnings.warn(
            f"armillary.hf.install: {type(base).__name__} was not compared with one device; "
            "hf.install(model, sp, check=batch), with a batch of whole sequences, does so before training",
            stacklevel=2,
        )
    installation = Installation(base, sp, dropout_seed, untested)
    installation.report = report
    left_out = [
        type(module).__name__
        for module in base.modules()
        if isinstance(module, PreTrainedModel) and module.config._attn_implementation != installation.name
    ]
    if left_out:
        installation.uninstall()
        raise InvalidArgument(
            f"install: {left_out[0]} does not take its attention from the AttentionInterface of "
            "transformers; a model that does is required"
        )
    return installation
