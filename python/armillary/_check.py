"""Is a model over ranks the same as on one device?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from armillary import _native
from armillary._one_device import Call, Observed, OneDevice
from armillary._report import Report, Row
from armillary.errors import InvalidArgument
from armillary.masks import parse
from armillary.sequence_parallel import SequenceParallel

Batch = Mapping[str, Tensor | None]
Run = Callable[[nn.Module, Batch, SequenceParallel], Tensor]

_BOUND = 1e-5  # fp32 and fp64, over the largest value: the loss is computed in fp32
_FACTOR = 2.5  # error of a narrow dtype, over that of one device


@dataclass(frozen=True)
class _Result:
    loss: Tensor
    gradients: dict[str, Tensor]
    calls: list[Call]


def check(
    model: nn.Module,
    batch: Batch,
    sp: SequenceParallel,
    *,
    run: Run | None = None,
    report: str | Path | None = None,
) -> Report:
    """Compares a model over the ranks of `sp` with the same model on one device. Collective.

    model: the same on all ranks, with all its parameters on each, in evaluation mode while this runs. batch:
    whole sequences [B, S] by name, the same on all ranks: input_ids, labels, and document_ids or none.
    run: ``run(model, batch, sp)`` shards the batch, calls the model with ``sp.attention`` or within
      ``sp.patch_sdpa()`` and returns ``sp.loss(..)``. Not needed for models of transformers, which
      `armillary.hf.install` serves.
    report: a file that rank 0 writes: JSON if its name ends so, text otherwise.

    Rows of the report: loss, worst gradient and worst attention output, relative to the largest value of
    each, against one device with a plain S x S attention (1e-5 in fp32 and fp64; in bf16 and fp16, where both
    are compared with fp32, 2.5 times the error of one device); a leak probe (a changed token changes no
    attention output that the masks of the layers so far hide from it); a determinism probe (the same bits
    twice).

    Returns the report, the same on all ranks; its truth is whether all bounds hold. Raises `InvalidArgument`
    if parameters differ between ranks or the batch has no labels or other entries."""
    run = run or _run_of(model)
    _check_inputs(model, batch, sp)
    with _undisturbed(model):
        ours = _result(model, batch, Observed(sp), run)
        again = _result(model, batch, Observed(sp), run)
        one = _result(model, batch, OneDevice(sp), run)
        narrow = one.loss.dtype.itemsize < 4 or _dtype(model).itemsize < 4
        if narrow:
            exact = _result(copy.deepcopy(model).float(), batch, OneDevice(sp), run)
            rows = _rows_of_narrow(sp, ours, one, exact)
        else:
            rows = _rows(sp, ours, one)
        rows += [_leak(model, batch, sp, run), _determinism(sp, ours, again)]
    group = repr(sp).replace(f"rank {sp.rank} of {sp.world}", f"{sp.world} ranks")
    title = f"{type(model).__name__}, {_dtype(model)}, {ours.calls[0].seq_len} tokens: {group}"
    answer = Report(title, tuple(rows))
    if report is not None and sp.rank == 0:
        answer.save(report)
    return answer


def _run_of(model: nn.Module) -> Run:
    """The run of a model of transformers. Raises `InvalidArgument` for others."""
    if not hasattr(model, "set_attn_implementation"):
        raise InvalidArgument(
            f"check: {type(model).__name__} is no model of transformers; run=, which calls it, is required"
        )
    from armillary import hf

    def run(model: Any, batch: Batch, sp: SequenceParallel) -> Tensor:
        with hf.install(model, sp, untested=True):
            inputs: dict[str, Any] = dict(batch)
            loss: Tensor = model(**hf.shard(sp, ragged="uneven", **inputs)).loss
        return loss

    return run


def _dtype(model: nn.Module) -> torch.dtype:
    return next(parameter.dtype for parameter in model.parameters())


def _check_inputs(model: nn.Module, batch: Batch, sp: SequenceParallel) -> None:
    if batch.get("input_ids") is None or batch.get("labels") is None:
        raise InvalidArgument(f"check: the batch has {sorted(batch)}; input_ids and labels are required")
    others = sorted(set(batch) - {"input_ids", "labels", "document_ids"})
    if others and hasattr(model, "set_attn_implementation"):
        raise InvalidArgument(
            f"check: the batch has {others[0]}; input_ids, labels and document_ids, or run=, are required"
        )
    sums = [parameter.detach().double().sum() for parameter in model.parameters()]
    tokens = [tensor.double().sum() for tensor in batch.values() if tensor is not None]
    mine = torch.stack([*sums, *tokens])
    differ = _largest(sp, mine) != -_largest(sp, -mine)
    if bool(differ.any()):
        names = [name for name, _ in model.named_parameters()] + list(batch)
        raise InvalidArgument(
            f"check: {names[int(differ.nonzero()[0])]} differs between ranks; the same model and the same "
            "whole batch on all ranks are required"
        )


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; gradients and mode are given back."""
    was_training = {module: module.training for module in model.modules()}
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in was_training.items():
            module.training = mode
        for parameter, gradient in gradients.items():
            parameter.grad = gradient


def _result(model: nn.Module, batch: Batch, sp: Observed, run: Run) -> _Result:
    model.zero_grad(set_to_none=True)
    loss = run(model, batch, sp)
    if not sp.calls:
        raise InvalidArgument("check: the model called no attention of the sp that run was given")
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradient = parameter.grad.to(torch.promote_types(parameter.dtype, torch.float32))
            gradients[name] = _of_ranks(sp, gradient).mean(0)
    return _Result(loss.detach(), gradients, list(sp.calls))


def _of_ranks(sp: SequenceParallel, value: Tensor) -> Tensor:
    """[world, ..]: the values of all ranks."""
    values: Tensor = torch.ops.armillary.gather_over_ranks(value, sp.group_name, sp.timeout_s)
    return values


def _largest(sp: SequenceParallel, value: Tensor) -> Tensor:
    return _of_ranks(sp, value).amax(0)


def _error(given: Tensor, wanted: Tensor) -> float:
    if wanted.numel() == 0:
        return 0.0
    difference = (given.double() - wanted.double()).abs().max()
    return float(difference / wanted.double().abs().max().clamp_min(1e-30))


def _gradient_errors(given: _Result, wanted: _Result) -> dict[str, float]:
    zero = torch.zeros(1)
    names = given.gradients.keys() | wanted.gradients.keys()
    return {
        name: _error(given.gradients.get(name, zero), wanted.gradients.get(name, zero))
        for name in sorted(names)
    }


def _output_errors(sp: SequenceParallel, given: _Result, wanted: _Result) -> dict[str, float]:
    """Errors of attention outputs by call; those of `given` are of this rank's tokens in the layout of sp."""
    if len(given.calls) != len(wanted.calls):
        raise InvalidArgument(
            f"check: {len(given.calls)} calls of attention over ranks, {len(wanted.calls)} on one device; as "
            "many are required"
        )
    errors = []
    for mine, whole in zip(given.calls, wanted.calls, strict=True):
        out = whole.out[:, _positions(sp, mine)]
        errors.append(float((mine.out.double() - out.double()).abs().max()) if out.numel() else 0.0)
        errors[-1] /= float(whole.out.double().abs().max().clamp_min(1e-30))
    together = _largest(sp, torch.tensor(errors, dtype=torch.float64))
    return {f"call {at}": float(error) for at, error in enumerate(together)}


def _positions(sp: SequenceParallel, call: Call) -> Tensor:
    return sp.positions(call.seq_len, parse(call.mask))


def _worst(errors: dict[str, float]) -> tuple[float, str]:
    name = max(errors, key=lambda one: (errors[one] != errors[one], errors[one]))
    return errors[name], f"worst of {len(errors)}: {name}"


def _rows(sp: SequenceParallel, ours: _Result, one: _Result) -> list[Row]:
    gradient, output = _worst(_gradient_errors(ours, one)), _worst(_output_errors(sp, ours, one))
    return [
        Row("loss", _error(ours.loss, one.loss), _BOUND, f"{float(ours.loss):.6f}"),
        Row("gradients", gradient[0], _BOUND, gradient[1]),
        Row("attention outputs", output[0], _BOUND, output[1]),
    ]


def _rows_of_narrow(sp: SequenceParallel, ours: _Result, one: _Result, exact: _Result) -> list[Row]:
    """Errors against fp32, bounded by those of one device in the narrow dtype."""
    # One device may round a single number to nearly the exact one by chance.
    least = torch.finfo(ours.calls[0].out.dtype).eps / 2
    rows = [
        Row(
            "loss",
            _error(ours.loss, exact.loss),
            _FACTOR * max(_error(one.loss, exact.loss), least),
            f"{float(ours.loss):.6f}",
        )
    ]
    local = OneDevice(sp)
    for name, mine, theirs in (
        ("gradients", _gradient_errors(ours, exact), _gradient_errors(one, exact)),
        ("attention outputs", _output_errors(sp, ours, exact), _output_errors(local, one, exact)),
    ):
        # The worst ratio decides; its two errors are shown.
        ratios = {key: error / max(theirs[key], least) for key, error in mine.items()}
        worst = max(ratios, key=lambda one: ratios[one])
        rows.append(Row(name, mine[worst], _FACTOR * max(theirs[worst], least), f"worst ratio: {worst}"))
    return rows


def _determinism(sp: SequenceParallel, first: _Result, second: _Result) -> Row:
    pairs = [(first.loss, second.loss)]
    pairs += [(first.gradients[name], second.gradients[name]) for name in first.gradients]
    pairs += [(a.out, b.out) for a, b in zip(first.calls, second.calls, strict=True)]
    changed = sum(int((a != b).sum()) for a, b in pairs)
    total = _largest(sp, torch.tensor([float(changed)]))
    return Row("determinism", float(total), 0.0, "values of a second run with other bits")


def _leak(model: nn.Module, batch: Batch, sp: SequenceParallel, run: Run) -> Row:
    """The largest change of an attention output at a query that cannot see a token that is changed."""
    ids = batch["input_ids"]
    assert ids is not None
    length = ids.shape[-1]
    tokens = sorted({length // 2, length - 1})
    leaked = torch.zeros(3, dtype=torch.float64)  # change where hidden, change where visible, hidden queries
    with torch.no_grad():
        before = _calls(model, batch, sp, run)
        for token in tokens:
            other = ids.clone()
            other[..., token] = torch.where(ids[..., token] > 0, ids[..., token] - 1, ids[..., token] + 1)
            after = _calls(model, {**batch, "input_ids": other}, sp, run)
            leaked = torch.maximum(leaked, _changes(sp, before, after, token))
    hidden, visible, queries = (float(one) for one in _largest(sp, leaked))
    if visible == 0.0:
        raise InvalidArgument(
            f"check: changing tokens {tokens} changes no attention output at all; a model that reads its "
            "input_ids is required"
        )
    bound = _BOUND if before[0].out.dtype.itemsize >= 4 else 4 * torch.finfo(before[0].out.dtype).eps
    note = f"tokens {tokens}; where visible {visible:.1e}" if queries else "the mask hides nothing"
    return Row("leak", hidden, bound, note)


def _calls(model: nn.Module, batch: Batch, sp: SequenceParallel, run: Run) -> list[Call]:
    observed = Observed(sp)
    run(model, batch, observed)
    return observed.calls


def _changes(sp: SequenceParallel, before: list[Call], after: list[Call], token: int) -> Tensor:
    reached = torch.zeros(before[0].seq_len, dtype=torch.bool)
    reached[token] = True
    hidden = visible = 0.0
    queries = 0
    for a, b in zip(before, after, strict=True):
        # Queries see what was reached by this layer's mask; a residual keeps what was reached before.
        reached = reached | _seen_by(a, reached)
        mine = reached[_positions(sp, a)]
        change = (a.out.double() - b.out.double()).abs().amax((0, 2, 3)) if a.out.numel() else torch.zeros(0)
        change = change / a.out.double().abs().max().clamp_min(1e-30) if a.out.numel() else change
        hidden = max([hidden, *change[~mine].tolist()])
        visible = max([visible, *change[mine].tolist()])
        queries = max(queries, int((~reached).sum()))
    return torch.tensor([hidden, visible, float(queries)], dtype=torch.float64)


def _seen_by(call: Call, keys: Tensor) -> Tensor:
    """Queries that see at least one of some keys, by the bands of the mask."""
    count = torch.cat([torch.zeros(1, dtype=torch.int64), keys.cumsum(0)])
    seen = torch.zeros_like(keys)
    for q_begin, q_end, k_begin, k_end, lo, hi in _native.Mask(call.mask, call.seq_len, call.seq_len).bands():
        q = torch.arange(q_begin, q_end)
        first = (q + lo).clamp(k_begin, k_end)
        last = (q + hi + 1).clamp(k_begin, k_end)
        seen[q_begin:q_end] |= count[torch.maximum(last, first)] > count[first]
    return seen
