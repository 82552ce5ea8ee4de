"""Attention whose inputs come one by one."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode

from armillary import _native
from armillary._options import NAMES, Options, check_call, check_options
from armillary._spread import Spread
from armillary.errors import Error, InvalidArgument

_ANOTHER = "another call"  # what a call that is over requires next


class AttentionInProgress:
    """See `SequenceParallel.begin`. `feed_k`, `feed_v` and `finish` are called once each, in this order.

    Messages start as soon as their inputs are there: with K alone if it travels alone (startrail, ulysses),
    with V if the two travel together (ring). All ranks feed and finish the same calls in the same order; a
    rank may give all at once to `attention`. From `feed_k` to `finish` the group is the call's own: another
    call of attention, its backward, `loss` or `unshard` ends it and is refused, on all ranks. So is a call
    that is left: by an exception within `with`, or with its last name. Fed tensors must stay as they are.

    A rank that needs nothing more of one that fails finishes its call, and hears of it in its next one."""

    _call: _native.FedCall | None = None

    def __init__(self, sp: Spread, heads: int, value_dim: int | None, settings: Mapping[str, Any]) -> None:
        others = sorted(set(settings) - (NAMES - {"kv_seq_len"}))
        if others:
            raise InvalidArgument(
                f"begin: {others[0]} is no setting of a call that takes its inputs one by one; one of "
                "attention but kv_seq_len is required"
            )
        for name, number in (("heads", heads), ("value_dim", value_dim)):
            if not isinstance(number, int) and (name == "heads" or number is not None):
                raise InvalidArgument(f"begin: {name} is {number!r}; a whole number is required")
        self._sp = sp
        self._heads = heads
        self._value_dim = value_dim
        self._options = Options(**settings)
        self._mask: tuple[str, int] = ("", 0)
        self._is_given_up = False

    def feed_k(self, k: Tensor) -> None:
        """Takes K, as `attention` does, and begins the call with all ranks: collective. Raises as it does."""
        options = self._options
        with self._sp._refusals():
            self._check_turn("feed_k")
            k = self._checked("k", k)
            check_options(options)
            self._mask = self._mask_of(k)
            text, length = self._mask
            settings = self._sp._call(options, text, (length, length), k.shape[-1])
            sequence = self._sp._digest(options.deal, k, length)
            self._call = _native.FedCall(settings, options.sinks, options.alibi_slopes, sequence)
            value_dim = k.shape[-1] if self._value_dim is None else self._value_dim
        self._call.feed_k(k, k.shape[1], self._heads, value_dim)

    def feed_v(self, v: Tensor) -> None:
        """Takes V. Raises as `attention` does."""
        with self._sp._refusals():
            self._check_turn("feed_v")
            v = self._checked("v", v)
        self._begun.feed_v(v)

    def finish(self, q: Tensor) -> Tensor:
        """Takes Q; returns what `attention` does, differentiable once. Raises as it does."""
        with self._sp._refusals():
            self._check_turn("finish")
            q = self._checked("q", q)
            mask = self._mask_of(q)
            if mask != self._mask:
                raise InvalidArgument(
                    f"finish: q is of a sequence of {mask[1]} tokens, mask {mask[0][:80]}; that of k, "
                    f"{self._mask[1]} tokens, mask {self._mask[0][:80]}, is required"
                )
        out = self._begun.finish(q)
        return out.transpose(1, 2) if self._options.format == "BHLD" else out

    def drop(self, reason: str = "") -> None:
        """Gives the call up: `CommError` with the reason on ranks that go on with it. Tells nobody of a call
        that has not begun, or has finished. A `with` block may end after it."""
        self._is_given_up = True
        if self._call is not None:
            why = f": {reason}" if reason else ""
            self._call.drop(f"attention: a call was dropped before it had finished{why}")

    def __enter__(self) -> AttentionInProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._is_given_up:
            return
        if kind is None:
            with self._sp._refusals():
                if self._required != _ANOTHER:
                    raise InvalidArgument(
                        f"begin: the call was left before {self._required}; feed_k, feed_v and finish are "
                        "required"
                    )
        elif self._call is None and not isinstance(error, Error):
            self._sp._tell(f"attention: a call was dropped before it had begun: {kind.__name__}: {error}")
        else:
            self.drop(f"{kind.__name__}: {str(error).partition(chr(10))[0]}")

    def __del__(self) -> None:
        if self._call is not None:
            self._call.drop("attention: a call was dropped before it had finished")

    @property
    def _required(self) -> str:
        """The method that comes next. Raises `CommError`, with the reason, if the call was dropped."""
        if self._call is None:
            return _ANOTHER if self._is_given_up else "feed_k"
        return self._call.required

    def _check_turn(self, name: str) -> None:
        """Raises `InvalidArgument` if a method is called out of turn."""
        if self._required != name:
            raise InvalidArgument(
                f"{name}: feed_k, feed_v and finish are called once each, in this order; {self._required} is "
                "required"
            )

    @property
    def _begun(self) -> _native.FedCall:
        assert self._call is not None
        return self._call

    def _mask_of(self, tokens: Tensor) -> tuple[str, int]:
        options = self._options
        return self._sp._mask_of(tokens, options.mask, options.cu_seqlens, options.seq_len, options.deal)

    def _checked(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor as the call takes it."""
        options = self._options
        check_call(
            options.format, {name: tensor}, {"alibi_slopes": options.alibi_slopes, "sinks": options.sinks}
        )
        if tensor.is_meta or detect_fake_mode((tensor,)) is not None:
            raise InvalidArgument(
                f"attention: {name} is a tensor without numbers, and its call takes inputs one by one; "
                "attention is required to trace or export it"
            )
        if options.format == "BHLD":
            tensor = tensor.transpose(1, 2)
        if torch.is_autocast_enabled("cpu") and tensor.is_floating_point() and tensor.dtype != torch.float64:
            tensor = tensor.to(torch.get_autocast_dtype("cpu"))
        return tensor


def check_eager() -> None:
    """Raises `InvalidArgument` in a graph that is compiled, where a call of the op is required."""
    if torch.compiler.is_compiling():
        raise InvalidArgument(
            "begin: a call that takes its inputs one by one is in a graph that is compiled; attention is "
            "required there"
        )
