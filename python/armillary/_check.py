"""Is a model over ranks the same as on one device?"""

from __future__ import annotations

import copy
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from armillary import _native
from armillary._groups import gather_over_ranks
from armillary._one_device import Call, Logits, Observed, OneDevice, plain
from armillary._report import Report, Row, refuse_pipe
from armillary._texts import count_of
from armillary.errors import InvalidArgument
from armillary.loss import IGNORED
from armillary.masks import parse
from armillary.sequence_parallel import SequenceParallel

Batch = Mapping[str, Tensor | None]
Run = Callable[[nn.Module, Batch, SequenceParallel], Tensor]

# Rows and bounds are those of `armillary check`.
_LOSS, _GRADIENTS, _LOGITS, _OUTPUTS, _LEAK, _DETERMINISM = _native.CHECK_ROWS
_BOUND = _native.CHECK_BOUND
_ZERO = 1e-6  # of the largest gradient: what is 0 but for rounding, such as that of a bias of keys
_COLUMNS = ("attention_mask", "document_ids", "input_ids", "labels")
_FIRST_ROWS, _FIRST_TOKENS = 2, 256  # of a batch that is compared before training


@dataclass(frozen=True)
class _Result:
    loss: Tensor
    gradients: dict[str, Tensor]
    calls: list[Call]
    logits: Logits | None


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
    whole sequences [B, S] by name, the same on all ranks: input_ids, labels, and document_ids,
      attention_mask or neither.
    run: ``run(model, batch, sp)`` shards the batch, calls the model with ``sp.attention`` or within
      ``sp.patch_sdpa()`` and returns ``sp.loss(..)``. Not needed for models of transformers, which
      `armillary.hf.install` serves.
    report: a file that rank 0 writes: JSON if its name ends so, text otherwise.

    Rows of the report: loss, worst gradient, logits and worst attention output, relative to the largest value
    of each, against one device (1e-5 in fp32 and fp64; in bf16 and fp16, where both are compared with fp32,
    2.5 times the error of one device); a leak probe (a changed token changes no attention output that the
    masks of the layers so far hide from it); a determinism probe (the same bits twice). One device is the
    model of transformers as it is, with eager attention, for loss, gradients and logits, a document at a
    time; for attention outputs, and with `run`, a plain S x S attention.

    Returns the report, the same on all ranks; its truth is whether all bounds hold. Raises `InvalidArgument`
    if parameters differ between ranks or the batch has no labels or other entries."""
    if report is not None and sp.rank == 0:
        with sp._refusals():
            refuse_pipe(report)
    is_own = run is not None
    run = run or _run_of(model)
    _check_inputs(model, batch, sp, is_own)
    with _undisturbed(model):
        ours = _result(model, batch, Observed(sp), run)
        again = _result(model, batch, Observed(sp), run)
        one = _reference(model, batch, sp, run, is_own)
        narrow = one.loss.dtype.itemsize < 4 or _dtype(model).itemsize < 4
        if narrow:
            exact = _reference(copy.deepcopy(model).float(), batch, sp, run, is_own)
            rows = _rows_of_narrow(sp, ours, one, exact)
        else:
            rows = _rows(sp, ours, one)
        rows += [_leak(model, batch, sp, run), _determinism(sp, ours, again)]
    group = repr(sp).replace(f"rank {sp.rank} of {sp.world}", count_of(sp.world, "rank"))
    tokens = count_of(ours.calls[0].seq_len, "token")
    title = f"{type(model).__name__}, {_dtype(model)}, {tokens}: {group}"
    answer = Report(title, tuple(rows), sp.world)
    if report is not None and sp.rank == 0:
        answer.save(report)
    return answer


def check_first(model: nn.Module, batch: Batch, sp: SequenceParallel) -> Report:
    """`check` of the first rows and tokens of a batch, whose labels are its tokens if none is there.

    Raises `InvalidArgument`, with the rows that differ, unless all are as on one device."""
    short = {name: one[:_FIRST_ROWS, :_FIRST_TOKENS] for name, one in batch.items() if one is not None}
    labels = short.get("labels")
    is_labelled = labels is not None and bool((labels[:, 1:] != IGNORED).any())
    if "input_ids" in short and not is_labelled:
        hidden = short.get("attention_mask", torch.ones(1)) == 0
        short["labels"] = short["input_ids"].masked_fill(hidden, IGNORED)
    report = check(model, short, sp)
    if not report:
        wrong = [f"{row.name} {row.value:.1e} (at most {row.bound:.1e})" for row in report.rows if not row.ok]
        raise InvalidArgument(
            f"install: {type(model).__name__} over {count_of(sp.world, 'rank')} differs from one device: "
            f"{', '.join(wrong)}; an equal one is required: armillary.check(model, batch, sp) has the report"
        )
    return report


def _run_of(model: nn.Module) -> Run:
    """The run of a model of transformers. Raises `InvalidArgument` for others."""
    if not hasattr(model, "set_attn_implementation"):
        raise InvalidArgument(
            f"check: {type(model).__name__} is no model of transformers; run=, which calls it, is required"
        )
    from armillary import hf

    def run(model: Any, batch: Batch, sp: SequenceParallel) -> Tensor:
        with hf.install(model, sp, check=False, untested=True):
            whole: dict[str, Any] = dict(batch)
            inputs = hf.shard(sp, ragged="uneven", **whole)
            sharded = inputs["sharded"]
            out = model(**inputs)
        if isinstance(sp, Observed):
            sp.logits = Logits(out.logits.detach(), sp.positions(sharded.seq_len, sharded.mask))
        loss: Tensor = out.loss
        return loss

    return run


def _takes_labels(model: nn.Module) -> bool:
    from armillary._hf_modules import base_model

    return "labels" in inspect.signature(base_model(model).forward).parameters


def _dtype(model: nn.Module) -> torch.dtype:
    return next(parameter.dtype for parameter in model.parameters())


def _check_inputs(model: nn.Module, batch: Batch, sp: SequenceParallel, is_own: bool) -> None:
    if batch.get("input_ids") is None or batch.get("labels") is None:
        raise InvalidArgument(f"check: the batch has {sorted(batch)}; input_ids and labels are required")
    if not is_own and not _takes_labels(model):
        raise InvalidArgument(
            f"check: {type(model).__name__} takes no labels; a model with a loss, or run=, is required"
        )
    others = sorted(set(batch) - set(_COLUMNS))
    if others and not is_own:
        raise InvalidArgument(
            f"check: the batch has {others[0]}; only {', '.join(_COLUMNS)}, or run=, are required"
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
    """Evaluation mode. Gradients, buffers, numbers of modules (mode, lengths of caches) and random states are
    given back."""
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    numbers = {module: _numbers(module) for module in model.modules()}
    buffers = {
        module: {name: (one, one.clone()) for name, one in module._buffers.items() if one is not None}
        for module in model.modules()
    }
    numpy: Any = sys.modules.get("numpy")  # one that nobody has imported draws no numbers
    states = random.getstate(), numpy and numpy.random.get_state()
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(states[0])
        if numpy:
            numpy.random.set_state(states[1])
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        for module, before in numbers.items():
            vars(module).update(before)
        for module, copies in buffers.items():
            for name, (buffer, copied) in copies.items():
                module._buffers[name] = buffer
                if not torch.equal(buffer, copied):
                    buffer.detach().copy_(copied)


def _numbers(module: nn.Module) -> dict[str, bool | int | float]:
    return {name: one for name, one in vars(module).items() if isinstance(one, bool | int | float)}


def _result(model: nn.Module, batch: Batch, sp: Observed, run: Run) -> _Result:
    model.zero_grad(set_to_none=True)
    loss = run(model, batch, sp)
    if not sp.calls:
        raise InvalidArgument("check: the model called no attention of the sp that run was given")
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: _of_ranks(sp, one).mean(0) for name, one in _gradients(model).items()}
    return _Result(loss.detach(), gradients, list(sp.calls), sp.logits)


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: one.grad.to(torch.promote_types(one.dtype, torch.float32))
        for name, one in model.named_parameters()
        if one.grad is not None
    }


def _reference(model: nn.Module, batch: Batch, sp: SequenceParallel, run: Run, is_own: bool) -> _Result:
    """The model on one device: calls of attention as in `run`, all else without anything of ours."""
    calls = _result(model, batch, OneDevice(sp), run)
    if is_own:
        return calls
    model.zero_grad(set_to_none=True)
    loss, logits = plain(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return _Result(loss.detach(), _gradients(model), calls.calls, logits)


def _of_ranks(sp: SequenceParallel, value: Tensor) -> Tensor:
    """[world, ..]: the values of all ranks."""
    return gather_over_ranks(value, sp.group_name, sp.timeout_s)


def _largest(sp: SequenceParallel, value: Tensor) -> Tensor:
    return _of_ranks(sp, value).amax(0)


def _error(ours: Tensor, alone: Tensor) -> float:
    if alone.numel() == 0:
        return 0.0
    difference = (ours.double() - alone.double()).abs().max()
    return float(difference / alone.double().abs().max().clamp_min(1e-30))


def _gradient_errors(ours: _Result, alone: _Result) -> dict[str, float]:
    zero = torch.zeros(1)
    names = ours.gradients.keys() | alone.gradients.keys()
    pairs = {name: (ours.gradients.get(name, zero), alone.gradients.get(name, zero)) for name in names}
    least = _ZERO * max((_size(alone) for _, alone in pairs.values()), default=0.0)
    return {
        name: 0.0 if max(map(_size, pairs[name])) <= least else _error(*pairs[name]) for name in sorted(pairs)
    }


def _size(value: Tensor) -> float:
    return float(value.abs().max()) if value.numel() else 0.0


def _logit_error(sp: SequenceParallel, ours: _Result, alone: _Result) -> float | None:
    """The error of the logits of all ranks' tokens; None if the run tells none."""
    if ours.logits is None or alone.logits is None:
        return None
    index = ours.logits.positions
    shown = alone.logits.shown
    mine, whole = ours.logits.values, alone.logits.values[:, index]
    if shown is not None:
        mine, whole = mine[shown[:, index]], whole[shown[:, index]]
    difference = (mine.double() - whole.double()).abs().max() if mine.numel() else torch.zeros(())
    error = difference.double() / _size(alone.logits.values.double()) if mine.numel() else difference.double()
    return float(_largest(sp, error.reshape(1)))


def _output_errors(sp: SequenceParallel, ours: _Result, alone: _Result) -> dict[str, float]:
    """Errors of attention outputs by call; those of `ours` are of this rank's tokens in the layout of sp."""
    if len(ours.calls) != len(alone.calls):
        raise InvalidArgument(
            f"check: {count_of(len(ours.calls), 'call')} of attention over ranks, {len(alone.calls)} on "
            "one device; as many are required"
        )
    errors = []
    for mine, whole in zip(ours.calls, alone.calls, strict=True):
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
    logits = _logit_error(sp, ours, one)
    return [
        Row(_LOSS, _error(ours.loss, one.loss), _BOUND, f"{float(ours.loss):.6f}"),
        Row(_GRADIENTS, gradient[0], _BOUND, gradient[1]),
        *([] if logits is None else [Row(_LOGITS, logits, _BOUND, "of all tokens")]),
        Row(_OUTPUTS, output[0], _BOUND, output[1]),
    ]


def _rows_of_narrow(sp: SequenceParallel, ours: _Result, one: _Result, exact: _Result) -> list[Row]:
    """Errors against fp32, bounded by those of one device in the narrow dtype."""
    eps = torch.finfo(ours.calls[0].out.dtype).eps

    def bound(of_one_device: float) -> float:
        return _native.narrow_bound(of_one_device, eps)

    of_one = _error(one.loss, exact.loss)
    rows = [Row(_LOSS, _error(ours.loss, exact.loss), bound(of_one), f"{float(ours.loss):.6f}")]
    local = OneDevice(sp)
    for name, mine, theirs in (
        (_GRADIENTS, _gradient_errors(ours, exact), _gradient_errors(one, exact)),
        (_OUTPUTS, _output_errors(sp, ours, exact), _output_errors(local, one, exact)),
    ):
        # The worst ratio decides; its two errors are shown.
        ratios = {key: error / bound(theirs[key]) for key, error in mine.items()}
        worst = max(ratios, key=lambda one: ratios[one])
        rows.append(Row(name, mine[worst], bound(theirs[worst]), f"worst ratio: {worst}"))
    errors = _logit_error(sp, ours, exact), _logit_error(sp, one, exact)
    if errors[0] is not None and errors[1] is not None:
        rows.insert(2, Row(_LOGITS, errors[0], bound(errors[1]), "of all tokens"))
    return rows


def _determinism(sp: SequenceParallel, first: _Result, second: _Result) -> Row:
    pairs = [(first.loss, second.loss)]
    pairs += [(first.gradients[name], second.gradients[name]) for name in first.gradients]
    pairs += [(a.out, b.out) for a, b in zip(first.calls, second.calls, strict=True)]
    changed = sum(int((a != b).sum()) for a, b in pairs)
    total = _largest(sp, torch.tensor([float(changed)]))
    return Row(_DETERMINISM, float(total), 0.0, "values of a second run with other bits")


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
    bound = _native.leak_bound(torch.finfo(before[0].out.dtype).eps)
    note = f"tokens {tokens}; where visible {visible:.1e}" if queries else "the mask hides nothing"
    return Row(_LEAK, hidden, bound, note)


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
    visible = torch.zeros_like(keys)
    for q_begin, q_end, k_begin, k_end, lo, hi in _native.Mask(call.mask, call.seq_len, call.seq_len).bands():
        q = torch.arange(q_begin, q_end)
        first = (q + lo).clamp(k_begin, k_end)
        last = (q + hi + 1).clamp(k_begin, k_end)
        visible[q_begin:q_end] |= count[torch.maximum(last, first)] > count[first]
    return visible
