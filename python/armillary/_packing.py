"""Examples of different lengths as the packed documents of one sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from armillary.errors import InvalidArgument
from armillary.loss import IGNORED

_COLUMNS = ("input_ids", "labels", "attention_mask")


def pack(
    examples: Sequence[Mapping[str, Any]], *, multiple_of: int = 1, pad_token_id: int = 0
) -> dict[str, Tensor]:
    """One sequence [1, S] in which every example is a document that attends to itself only.

        batch = hf.shard(sp, **hf.pack(examples, multiple_of=2 * sp.world))
        Trainer(.., data_collator=hf.pack, sp=sp)

    examples: dicts of input_ids, labels of the same positions (input_ids by default) and attention_mask, each
      [L] as a tensor or a list. Tokens with attention_mask 0, at any end, are left out.
    multiple_of: S is rounded up to it by a last document of `pad_token_id` without labels. A sequence is cut
      evenly by `contiguous` if S is a multiple of the ranks, by `zigzag` of twice as many.

    The first label of a document is ignored, so the mean over all labels is that of the same examples in
    padded rows. Returns input_ids, labels and document_ids. Raises `InvalidArgument` for no examples or
    tokens, for other columns, columns of different lengths, and an attention_mask with zeros between ones."""
    if not examples:
        raise InvalidArgument("pack: no examples; at least one is required")
    if not isinstance(multiple_of, int) or multiple_of < 1:
        raise InvalidArgument(f"pack: multiple_of is {multiple_of!r}; 1 or more is required")
    documents = [_document(at, example) for at, example in enumerate(examples)]
    documents = [one for one in documents if len(one[0])]
    if not documents:
        raise InvalidArgument("pack: all examples are empty; a token is required")
    padding = -sum(len(one[0]) for one in documents) % multiple_of
    if padding:
        last = torch.full((padding,), pad_token_id)
        documents.append((last, torch.full_like(last, IGNORED)))
    lengths = torch.tensor([len(one[0]) for one in documents], dtype=torch.int64)
    return {
        "input_ids": torch.cat([one[0] for one in documents])[None],
        "labels": torch.cat([one[1] for one in documents])[None],
        "document_ids": torch.repeat_interleave(torch.arange(len(documents)), lengths)[None],
    }


def _document(at: int, example: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Tokens and labels of an example without its padding; its first label is ignored."""
    others = sorted(set(example) - set(_COLUMNS))
    if others or "input_ids" not in example:
        raise InvalidArgument(
            f"pack: example {at} has {', '.join(sorted(example))}; input_ids is required, and none but "
            f"{', '.join(_COLUMNS)}"
        )
    columns = {name: torch.as_tensor(values) for name, values in example.items()}
    tokens = columns["input_ids"]
    for name, values in columns.items():
        if values.dim() != 1 or len(values) != len(tokens):
            raise InvalidArgument(
                f"pack: {name} of example {at} is {list(values.shape)}, input_ids {list(tokens.shape)}; "
                "vectors of one length are required"
            )
    labels = columns.get("labels", tokens).clone()
    shown = columns.get("attention_mask", torch.ones_like(tokens)).bool()
    places = shown.nonzero().flatten().tolist()
    if places and places[-1] - places[0] >= len(places):
        raise InvalidArgument(
            f"pack: attention_mask of example {at} hides tokens between ones that it shows; zeros at its "
            "ends alone are required"
        )
    tokens, labels = tokens[shown], labels[shown]
    labels[:1] = IGNORED
    return tokens, labels
