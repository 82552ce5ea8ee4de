"""The Trainer of transformers over sequences that are spread over ranks.

    trainer = armillary.hf_trainer.Trainer(model, training_arguments, train_dataset=dataset, sp=sp)

Needs accelerate, as the Trainer of transformers does."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader

from armillary._check import check_first
from armillary._hf_modules import base_model
from armillary._hf_table import check_arguments, check_overrides
from armillary._hf_whole import OneReader, SpreadModel, one_reader, whole_columns
from armillary.errors import InvalidArgument
from armillary.hf import install
from armillary.sequence_parallel import SequenceParallel


class Trainer(transformers.Trainer):
    """`transformers.Trainer` whose sequences are spread over the ranks of `sp`, which are all ranks.

    It installs `sp` in the model, which may be one of peft. Every rank reads every batch whole, in the order
    of one process, with any collator; a call of the model spreads it. So a batch is
    per_device_train_batch_size sequences, whatever the number of ranks, and losses, logs, gradients, metrics
    and predictions are those of the same Trainer in one process.

    Batches have input_ids, labels, document_ids if documents are packed (`armillary.hf.pack`), position_ids
    that count in documents, and attention_mask of ones or with padding on the right that has no labels.
    `compute_loss`, compute_loss_func, label smoothing, metrics and `predict` get whole logits, which then
    exist on every rank; those of padding are NaN.

    check_first_batch: before the first step of `train`, loss, gradients and outputs of its batch, shortened,
      are compared with one device, as `install(.., check=batch)` does; the steps are those without it, bit
      for bit. Without it a warning says so, on rank 0 of several; False for neither.

    docs/trainer.md lists what is not honoured. Raises `InvalidArgument` for those,
    for others that are not known, and for ranks outside of `sp`."""

    _signature_columns: list[str] | None
    current_flos: float

    def __init__(
        self, *args: Any, sp: SequenceParallel, check_first_batch: bool | None = None, **settings: Any
    ) -> None:
        world = dist.get_world_size() if dist.is_initialized() else 1
        if sp.world != world:
            raise InvalidArgument(
                f"Trainer: sp has {sp.world} of {world} ranks; all ranks are required: replicas of the data "
                "need a loop of their own, as in examples/python/fsdp2_context_parallel.py"
            )
        check_overrides(type(self), Trainer)
        arguments = inspect.signature(transformers.Trainer.__init__).bind(self, *args, **settings).arguments
        if arguments.get("args") is not None:
            check_arguments(arguments["args"])
        self.sp = sp
        self.installation: Any = None
        self._checks_first_batch = check_first_batch
        self._checks_next_batch = False
        super().__init__(*args, **settings)
        if self.installation is None:
            self._install(self.model)

    def _install(self, model: Any) -> None:
        self.installation = install(model, self.sp, check=False, dropout_seed=self.args.seed)

    @property
    def _family(self) -> str:
        base: Any = base_model(self.model)
        return str(base.config.model_type)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """A new model, with `sp` installed."""
        if self.installation is not None:
            self.installation.uninstall()
        model: nn.Module = super().call_model_init(trial)
        self._install(model)
        return model

    def hyperparameter_search(self, *_: Any, **__: Any) -> NoReturn:
        """Raises `InvalidArgument`: trials are drawn by each rank."""
        raise InvalidArgument(
            "Trainer: hyperparameter_search draws trials on each rank; a Trainer for each trial is required"
        )

    def create_accelerator_and_postprocess(self) -> None:
        """An accelerator whose ranks all read every batch."""
        super().create_accelerator_and_postprocess()
        self.accelerator.__class__ = OneReader
        self.accelerator.dataloader_config.dispatch_batches = False
        self.gather_function = self.accelerator.gather_for_metrics

    def _get_dataloader(self, *args: Any, **settings: Any) -> DataLoader[Any]:
        with one_reader(self.args, process_index=0):
            loader: DataLoader[Any] = super()._get_dataloader(*args, **settings)
        return loader

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        columns: list[str] = self._signature_columns or []
        if "document_ids" not in columns:
            columns.append("document_ids")

    def get_total_train_batch_size(self, args: Any) -> int:
        """Sequences of one step."""
        with one_reader(args):
            return int(super().get_total_train_batch_size(args))

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        with one_reader(self.args):
            return super()._get_num_items_in_batch(batch_samples, device)

    def store_flos(self) -> None:
        """Adds the operations of whole batches, which every rank has counted."""
        self.state.total_flos += self.current_flos
        self.current_flos = 0

    def evaluate(self, *args: Any, **settings: Any) -> dict[str, float]:
        """As in one process."""
        with one_reader(self.args):
            metrics: dict[str, float] = super().evaluate(*args, **settings)
        return metrics

    def predict(self, *args: Any, **settings: Any) -> Any:
        """As in one process."""
        with one_reader(self.args):
            return super().predict(*args, **settings)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        """A step on a whole batch."""
        if self._checks_next_batch:
            self._checks_next_batch = False
            self._check(inputs)
        spread = SpreadModel(model, self.sp, gathers=self._reads_outputs(), family=self._family)
        loss: Tensor = super().training_step(spread, inputs, num_items_in_batch)
        return loss

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> Any:
        """Loss, logits and labels of a whole batch."""
        gathers = not prediction_loss_only or self._reads_outputs()
        spread = SpreadModel(model, self.sp, gathers=gathers, family=self._family)
        return super().prediction_step(spread, inputs, prediction_loss_only, ignore_keys)

    def _reads_outputs(self) -> bool:
        """Whether the loss is computed from logits, in the place of the model's own."""
        # A function may also have been given to this trainer alone.
        own = getattr(self.compute_loss, "__func__", self.compute_loss)
        is_own = own is not transformers.Trainer.compute_loss
        return is_own or self.compute_loss_func is not None or self.label_smoother is not None

    def train(self, *args: Any, **settings: Any) -> Any:
        """As in one process; see `check_first_batch`."""
        self._checks_next_batch = bool(self._checks_first_batch)
        if self._checks_first_batch is None and self.sp.rank == 0 and self.sp.world > 1:
            warnings.warn(
                f"Trainer: {type(self.model).__name__} was not compared with one device; "
                "Trainer(.., check_first_batch=True) does so before training",
                stacklevel=2,
            )
        return super().train(*args, **settings)

    def _check(self, batch: dict[str, Any]) -> None:
        with self.installation.suspended(), _in_full_precision(self.model):
            whole = whole_columns(batch, self._family)
            self.installation.report = check_first(self.model, whole, self.sp)


@contextmanager
def _in_full_precision(model: Any) -> Iterator[None]:
    """Without the autocast that accelerate puts around the forward of a model."""
    wrapped = vars(model).get("forward")
    if "_original_forward" in vars(model):
        model.forward = model._original_forward
    try:
        yield
    finally:
        if wrapped is not None:
            model.forward = wrapped
