"""Models of Hugging Face transformers over sequences that are spread over ranks.

    sp = armillary.SequenceParallel(mesh["cp"])
    armillary.hf.install(model, sp)
    batch = armillary.hf.shard(sp, input_ids=input_ids, labels=labels, document_ids=document_ids)
    loss = model(**batch).loss  # that of one device, on every rank

`install` registers an attention and a mask function with transformers, for this model alone. A mask or a
feature that cannot be honoured is an error that names it. Raises `BuildError` on import for a
transformers before 5.24."""

from __future__ import annotations

import inspect
import itertools
import threading
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional

from armillary._load import check_transformers

check_transformers((5, 24))

from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel  # noqa: E402

from armillary._deal import Deal, check_deal  # noqa: E402
from armillary._hf_attention import attend  # noqa: E402
from armillary._hf_masks import DeclaredMask, declared_mask, model_mask_of  # noqa: E402
from armillary.errors import InvalidArgument  # noqa: E402
from armillary.loss import IGNORED  # noqa: E402
from armillary.masks import packed_lengths  # noqa: E402
from armillary.sequence_parallel import SequenceParallel  # noqa: E402

#: `config.model_type` of the models whose loss and gradients the tests compare with those of one device.
FAMILIES = frozenset(
    {
        "deepseek_v3",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_oss",
        "llama",
        "mistral",
        "qwen3",
    }
)
_LAYERS = frozenset({"full_attention", "sliding_attention"})
_SHARDED = "sharded"  # key of a batch
_numbers = itertools.count()


def shard(
    sp: SequenceParallel,
    *,
    input_ids: Tensor,
    labels: Tensor | None = None,
    document_ids: Tensor | None = None,
    ragged: Literal["refuse", "uneven"] = "refuse",
) -> dict[str, Any]:
    """This rank's inputs for ``model(**inputs)`` from whole sequences [B, S], the same on all ranks.

    labels: of the same positions as input_ids, as transformers wants them. document_ids: packed documents,
    each of which attends to itself only; see `SequenceParallel.shard`.

    Returns input_ids, position_ids (within the document), labels and shift_labels (of the next token), and
    `sharded`, the `Deal` of the sequence. Raises `InvalidArgument` as `SequenceParallel.shard`
    does."""
    batch = sp.shard(ragged=ragged, input_ids=input_ids, labels=labels, document_ids=document_ids)
    inputs: dict[str, Any] = {"input_ids": batch["input_ids"], "position_ids": batch["positions"]}
    if labels is not None:
        inputs["labels"] = inputs["shift_labels"] = batch["labels"]
    inputs[_SHARDED] = batch.deal
    return inputs


class Installation:
    """A model whose attention is spread over ranks, until `uninstall`; also a context manager."""

    def __init__(self, model: PreTrainedModel, sp: SequenceParallel, dropout_seed: int) -> None:
        self.model = model
        self.sp = sp
        self.name = f"armillary_{next(_numbers)}"
        self._dropout_seed = dropout_seed
        self._before = {id(config): (config, config._attn_implementation) for config in _configs(model)}
        self._active = threading.local()  # the sequence of the forward pass of this thread
        self._steps = itertools.count()
        self._positions: tuple[Deal | None, list[Tensor]] = (None, [])
        AttentionInterface.register(self.name, self._attention)
        AttentionMaskInterface.register(self.name, self._mask)
        model.set_attn_implementation(self.name)
        self._hooks = [
            model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            model.register_forward_hook(self._after_forward, always_call=True),
        ]
        self._loss_before = model.__dict__.get("_loss_function")
        model.loss_function = self._loss

    def uninstall(self) -> None:
        """Restores the attention, the masks and the loss that the model had."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for config, implementation in self._before.values():
            config._attn_implementation_internal = implementation
        if self._loss_before is None:
            self.model.__dict__.pop("_loss_function", None)
        else:
            self.model.loss_function = self._loss_before
        for registry in (AttentionInterface, AttentionMaskInterface):
            registry._global_mapping.pop(self.name, None)

    def __enter__(self) -> Installation:
        return self

    def __reduce_ex__(self, _: object) -> NoReturn:
        # Hooks of a copy would still belong to the model that it was copied from.
        raise InvalidArgument(
            "armillary.hf: a model is copied or pickled while its attention is installed; uninstall() before "
            "it is required (its state_dict() may be saved at any time)"
        )

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def _before_forward(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        with self.sp._refusals():
            return (), self._inputs(model, args, kwargs)

    def _inputs(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Inputs of the model, by name, of a call as the caller makes it."""
        sharded = kwargs.pop(_SHARDED, None)
        names = list(inspect.signature(model.forward).parameters)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        tokens = given.get("input_ids")
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if not isinstance(tokens, Tensor):
            raise InvalidArgument("armillary.hf: no input_ids and no inputs_embeds; one of them is required")
        if sharded is None:
            sharded = self.sp.deal(self.sp.mask.length or tokens.shape[1] * self.sp.world)
        check_deal("armillary.hf", sharded, self.sp._own_deal)
        _refuse_inputs(given)
        given["position_ids"] = self._position_ids(given.get("position_ids"), tokens, sharded)
        shift_labels = given.pop("shift_labels", None)
        if shift_labels is not None:
            given["labels"] = shift_labels
        given["use_cache"] = False
        self._active.sequence, self._active.step = sharded, next(self._steps)
        return given

    def _after_forward(self, *_: object) -> None:
        self._active.sequence = None

    def _position_ids(self, given: Tensor | None, tokens: Tensor, sharded: Deal) -> Tensor:
        """Positions of the tokens of this rank [B, L]: global, or within the document if there are some."""
        if self._positions[0] != sharded:
            index = self.sp.positions(sharded.seq_len, sharded.mask)
            lengths = packed_lengths(sharded.mask)
            allowed = [index]
            if lengths:
                within = torch.cat([torch.arange(length) for length in lengths])
                allowed = [within[index], index]
            self._positions = (sharded, allowed)
        allowed = self._positions[1]
        if len(allowed[0]) != tokens.shape[1]:
            raise InvalidArgument(
                f"armillary.hf: {tokens.shape[1]} tokens on rank {self.sp.rank}; layout {self.sp.layout} "
                f"gives it {len(allowed[0])} of {sharded.seq_len}: the batch that armillary.hf.shard returns "
                "is required"
            )
        if given is None:
            return allowed[0].to(tokens.device).expand(tokens.shape[0], -1)
        if not any(bool((given.cpu() == one).all()) for one in allowed):
            first = int((given.cpu() != allowed[0]).expand(tokens.shape[0], -1).nonzero()[0][1])
            raise InvalidArgument(
                f"armillary.hf: position_ids of rank {self.sp.rank} are {given[..., first].tolist()} at "
                f"token {first}; layout {self.sp.layout} and mask {str(sharded.mask)[:80]} have "
                f"{int(allowed[0][first])} there: those, or none, are required"
            )
        return given

    def _mask(self, q_length: int, kv_length: int, **given: Any) -> DeclaredMask:
        with self.sp._refusals():
            return self._declared(q_length, kv_length, given)

    def _declared(self, q_length: int, kv_length: int, given: dict[str, Any]) -> DeclaredMask:
        sequence: Deal | None = getattr(self._active, "sequence", None)
        if sequence is None:
            raise InvalidArgument(
                f"armillary.hf: a part of {type(self.model).__name__} is called by itself; the whole model "
                "that install was given is required"
            )
        offsets = (given.get("q_offset", 0), given.get("kv_offset", 0))
        if q_length != kv_length or any(offset is not None and offset != 0 for offset in offsets):
            raise InvalidArgument(
                f"armillary.hf: a mask of {q_length} queries over {kv_length} keys at offsets {offsets}; as "
                "many keys as queries are required: neither cross-attention nor a cache"
            )
        if given.get("attention_mask") is not None:
            raise InvalidArgument("armillary.hf: attention_mask is given; None is required")
        model = model_mask_of(given["mask_function"])
        mask = declared_mask(sequence.mask, model, sequence.seq_len)
        if self.sp.layout == "balanced" and mask != sequence.mask:
            raise InvalidArgument(
                f"armillary.hf: layout balanced deals tokens by the mask, and {type(self.model).__name__} "
                "has layers with a sliding window; a layout of all masks, such as zigzag, is required"
            )
        return DeclaredMask(mask, model, sequence, self._active.step)

    def _attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: object,
        **given: Any,
    ) -> tuple[Tensor, None]:
        given |= {"attention_mask": attention_mask, "dropout_seed": self._dropout_seed}
        return attend(self.sp, module, (query, key, value), given)

    def _loss(
        self, logits: Tensor, labels: Tensor, *_: object, num_items_in_batch: Any = None, **__: object
    ) -> Tensor:
        """The loss of the sequence. With num_items_in_batch: this rank's share of it, as transformers defines
        it; the shares of all ranks sum to the loss."""
        if num_items_in_batch is None:
            return self.sp.loss(logits, labels)
        flat = logits.reshape(-1, logits.shape[-1]).float()
        mine = functional.cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORED, reduction="sum")
        share: Tensor = mine / num_items_in_batch
        return share


def install(
    model: PreTrainedModel, sp: SequenceParallel, *, untested: bool = False, dropout_seed: int = 0
) -> Installation:
    """Gives a model of transformers attention over the ranks of `sp`.

    Call the model with the batch that `shard` returns; `.loss` is then that of one device, with the
    convention of `SequenceParallel.loss` for its gradient, and logits are those of this rank's tokens. The
    mask of every layer is the declared one, within the layer's sliding window. DDP and FSDP2 may be put
    around the model afterwards.

    untested: also a model of a family that is not in `FAMILIES`; compare it with one device first
      (`armillary.check`). dropout_seed: seed of the dropout of attention, the same on all ranks.

    Returns the installation, which `uninstall` ends. Raises `InvalidArgument` for a model that is installed
    already, of another family, or with layers that are no attention, such as recurrent ones. A forward pass
    raises it for what cannot be honoured: caches, padding and other masks that are not declared, attention
    probabilities, labels that are not shifted, positions of another layout."""
    if not isinstance(model, PreTrainedModel):
        raise InvalidArgument(
            f"install: model is a {type(model).__name__}; a PreTrainedModel of transformers is required: "
            "wrap it with DDP afterwards"
        )
    for config in _configs(model):
        if str(config._attn_implementation).startswith("armillary_"):
            raise InvalidArgument("install: the model is installed already; uninstall it first")
        _check_config(config, untested)
    installation = Installation(model, sp, dropout_seed)
    left_out = [
        type(module).__name__
        for module in model.modules()
        if isinstance(module, PreTrainedModel) and module.config._attn_implementation != installation.name
    ]
    if left_out:
        installation.uninstall()
        raise InvalidArgument(
            f"install: {left_out[0]} does not take its attention from the AttentionInterface of "
            "transformers; a model that does is required"
        )
    return installation


def _configs(model: PreTrainedModel) -> list[Any]:
    found = {id(one.config): one.config for one in model.modules() if isinstance(one, PreTrainedModel)}
    return list(found.values())


def _check_config(config: Any, untested: bool) -> None:
    if config.model_type not in FAMILIES and not untested:
        raise InvalidArgument(
            f"install: model type {config.model_type} is not one of the tested "
            f"{', '.join(sorted(FAMILIES))}; one of them, or untested=True after armillary.check, is required"
        )
    others = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYERS)
    if others:
        raise InvalidArgument(
            f"install: {config.model_type} has layers of type {others[0]}; {' and '.join(sorted(_LAYERS))} "
            "are required"
        )
    if getattr(config, "output_router_logits", False):
        raise InvalidArgument(
            "install: config.output_router_logits is set; the balance loss of a shard is not that of the "
            "sequence: False is required"
        )


def _refuse_inputs(given: dict[str, Any]) -> None:
    """Takes attention_mask out if it hides nothing. Raises `InvalidArgument` for inputs without a shard."""
    mask = given.pop("attention_mask", None)
    if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 2 and bool(mask.all())):
        shape = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise InvalidArgument(
            f"armillary.hf: attention_mask {shape} hides keys; none is required: declare packed documents "
            "with armillary.hf.shard(document_ids=..) in the place of padding"
        )
    refused = {
        "past_key_values": "a cache",
        "cache": "a cache",
        "use_cache": "a cache",
        "output_attentions": "attention probabilities, which never exist",
        "output_router_logits": "the balance loss of routers, which is not that of the sequence",
        "encoder_hidden_states": "cross-attention",
        "logits_to_keep": "the last logits of a shard, which are not those of the sequence",
    }
    for name, meaning in refused.items():
        value = given.get(name)
        if value is not None and not (isinstance(value, (bool, int)) and not value):
            raise InvalidArgument(f"armillary.hf: {name} asks for {meaning}; leave it out")
    if given.get("labels") is not None and given.get("shift_labels") is None:
        raise InvalidArgument(
            "armillary.hf: labels without shift_labels: the next token of a shard's last may lie on another "
            "rank; the batch that armillary.hf.shard returns is required"
        )
