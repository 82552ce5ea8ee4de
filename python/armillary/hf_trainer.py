"""The Trainer of transformers over sequences that are spread over ranks.

    trainer = armillary.hf_trainer.Trainer(model, training_arguments, train_dataset=dataset, sp=sp)

Needs accelerate, as the Trainer of transformers does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from armillary.errors import InvalidArgument
from armillary.hf import install, shard
from armillary.sequence_parallel import SequenceParallel

_COLUMNS = ("input_ids", "labels", "document_ids")


class ShardingCollator:
    """Makes this rank's inputs out of whole sequences, which must be the same on all ranks.

    Examples have input_ids, all of one length; labels of the same positions (input_ids by default); and
    document_ids, if their documents are packed. Raises `InvalidArgument` for other columns, such as
    padding."""

    def __init__(self, sp: SequenceParallel) -> None:
        self.sp = sp

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        for name in examples[0]:
            if name not in _COLUMNS:
                raise InvalidArgument(
                    f"ShardingCollator: examples have {name}; only {', '.join(_COLUMNS)} are required"
                )
            rows = [torch.as_tensor(example[name]) for example in examples]
            lengths = {len(row) for row in rows}
            if len(lengths) > 1:
                raise InvalidArgument(
                    f"ShardingCollator: {name} of {min(lengths)} to {max(lengths)} tokens; sequences of one "
                    "length are required: pack documents, with document_ids"
                )
            columns[name] = torch.stack(rows)
        columns.setdefault("labels", columns["input_ids"])
        return shard(self.sp, **columns)


class Trainer(transformers.Trainer):
    """`transformers.Trainer` whose sequences are spread over the ranks of `sp`, which are all ranks.

    It installs `sp` in the model, and gives all ranks the same examples: a batch is
    per_device_train_batch_size sequences, whatever the number of ranks. Loss, its logs and gradients are
    those of one device, with gradient accumulation too. Raises `InvalidArgument` for ranks outside of
    `sp`."""

    def __init__(self, *args: Any, sp: SequenceParallel, **settings: Any) -> None:
        world = dist.get_world_size() if dist.is_initialized() else 1
        if sp.world != world:
            raise InvalidArgument(
                f"Trainer: sp has {sp.world} of {world} ranks; all ranks are required: replicas of the data "
                "need a loop of their own, as in examples/python/fsdp2_context_parallel.py"
            )
        settings.setdefault("data_collator", ShardingCollator(sp))
        super().__init__(*args, **settings)
        # Logits are those of a shard: there is nothing to gather.
        self.args.prediction_loss_only = True
        self.sp = sp
        self.installation = install(self.model, sp, dropout_seed=self.args.seed)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of the training data, in one order on all ranks."""
        return self._same_on_all_ranks(self.train_dataset, self._train_batch_size, is_shuffled=True)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Batches of the evaluation data, the same on all ranks."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        return self._same_on_all_ranks(dataset, self.args.eval_batch_size, is_shuffled=False)

    def _same_on_all_ranks(self, dataset: Any, batch_size: int, *, is_shuffled: bool) -> DataLoader[Any]:
        if dataset is None or isinstance(dataset, (str, IterableDataset)):
            raise InvalidArgument(
                f"Trainer: the dataset is a {type(dataset).__name__}; one with a length is required"
            )
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        sampler: Any = SequentialSampler(dataset)
        if is_shuffled:
            sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))
        return DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            collate_fn=self.data_collator,
            drop_last=self.args.dataloader_drop_last,
        )
