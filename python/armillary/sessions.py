"""Models that read a prompt and continue it, token by token, over ranks: ``armillary.Sessions``."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType

import torch
from torch import Tensor

from armillary import _groups, _native
from armillary.errors import CommError, InvalidArgument

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Sessions:
    """Sequences that a model has read, whose keys and values are spread over ranks.

        with armillary.Sessions("llama/", ranks=4, chunk=8192) as sessions:
            session, logits_V = sessions.prefill(ids)
            copy = sessions.fork(session)
            logits_BV = sessions.decode({session: 3, copy: 5})

    `model` is a folder of Hugging Face, a GGUF file, or a run or checkpoint of `armillary train`. Ranks are
    `ranks` threads of this process; with a `group` (a ProcessGroup or a DeviceMesh of one axis) they are its
    processes, and each makes the same calls with the same values. `tensor_parallel` neighbours share the
    matrices of each layer. Logits are those of one rank, up to rounding, and are on the CPU.

    A cache has `pages` of `page` tokens on each rank, for all sessions. A prefill reads `chunk` tokens at a
    time (0: all), whose attention has this `layout` and `strategy`; `gather_queries` pays for a `decode` of
    many sessions. `dtype` is float32, or bfloat16 for matrices and the cache. `timeout` (seconds) bounds
    every wait of a rank for others.

    Raises `InvalidArgument` for what cannot be, after which sessions go on, unless it is a strategy that
    ranks and heads do not allow; that and any other error ends them."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        ranks: int | None = None,
        group: _groups.Group = None,
        tensor_parallel: int = 1,
        pages: int = 1024,
        page: int = 16,
        chunk: int = 0,
        layout: str = "zigzag",
        strategy: str = "ring",
        gather_queries: bool = False,
        dtype: torch.dtype = torch.float32,
        timeout: float = 600,
    ) -> None:
        self._native: _native.Sessions | None = None
        if dtype not in _DTYPES:
            raise InvalidArgument(f"Sessions: dtype {dtype} given; float32 or bfloat16 of torch is required")
        if group is not None and ranks is not None:
            raise InvalidArgument("Sessions: ranks and group given; one of them is required")
        settings: dict[str, int | str | float] = {
            "model": os.fspath(model),
            "group": _name_of(group),
            "ranks": 1 if ranks is None else _number_of("ranks", ranks, bits=31),
            "tensor_parallel": _number_of("tensor_parallel", tensor_parallel, bits=31),
            "pages": _number_of("pages", pages),
            "page": _number_of("page", page),
            "chunk": _number_of("chunk", chunk),
            "layout": layout,
            "strategy": strategy,
            "gather_queries": gather_queries,
            "dtype": _DTYPES[dtype],
            "timeout": float(timeout),
        }
        self._native = _native.Sessions(settings)

    def prefill(self, ids: Tensor | Sequence[int], session: int | None = None) -> tuple[int, Tensor]:
        """Reads tokens `ids` [L] into a new session, or behind those of one. Returns it and the logits [V]
        behind the last token. If it raises, there is no new session, and an old one is as before, or has
        read whole chunks."""
        sessions, logits_BV = self.prefill_all([ids], None if session is None else [session])
        return sessions[0], logits_BV[0]

    def prefill_all(
        self, prompts: Sequence[Tensor | Sequence[int]], sessions: Sequence[int] | None = None
    ) -> tuple[list[int], Tensor]:
        """Reads prompts of any lengths, each as `prefill`, in passes over all of them. Returns their sessions
        and the logits [B, V] behind the last token of each."""
        tokens = [_tokens_of(ids) for ids in prompts]
        with self._sessions_for(len(tokens), sessions) as own:
            return own, self._open().prefill(list(zip(own, tokens, strict=True)))

    def prefill_to(
        self, ranks: range, ids: Tensor | Sequence[int], session: int | None = None
    ) -> tuple[int, Tensor]:
        """Reads `ids` as `prefill`, on all ranks, and hands keys and values over to some of them, layer by
        layer beside the layers behind; `decode` goes on there. `ranks` counts neighbours of `tensor_parallel`
        as one. A next prefill that is spread brings the session to all ranks again."""
        native_ranks = _ranks_of(ranks)
        tokens = _tokens_of(ids)
        with self._sessions_for(1, None if session is None else [session]) as own:
            return own[0], self._open().prefill_to(own[0], tokens, native_ranks)

    def relayout(self, session: int, ranks: range) -> None:
        """Brings what a session has read to these ranks, as `prefill_to`."""
        self._open().relayout(session, _ranks_of(ranks))

    def decode(self, tokens: Mapping[int, int]) -> Tensor:
        """Adds one token to each session. Returns the logits [B, V] behind them, in the order given."""
        pairs = [(session, _number_of("token", token)) for session, token in tokens.items()]
        return self._open().decode(pairs)

    def generate(
        self,
        ids: Tensor | Sequence[int],
        session: int | None = None,
        *,
        tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        stop: Iterable[int] | None = None,
    ) -> Generator[int, None, None]:
        """Reads `ids` as `prefill` and yields at most `tokens` behind them, as `armillary generate` does: the
        most likely ones, or with a `temperature` those drawn by `seed` among the `top_k` (0: all) most likely
        ones, whose probabilities add up to `top_p`. One of `stop` ends them and is not yielded; None: those
        behind which texts of the model end.

        A `session` goes on: it has read all but the last token drawn. A new one ends with the iterator, which
        is to be read to its end or closed. Processes of a group take equally many tokens."""
        prompt = _tokens_of(ids)
        most = _number_of("tokens", tokens)
        if most < 1:
            raise InvalidArgument(f"Sessions: tokens {most} given; at least 1 is required")
        number = _number_of("seed", seed, bits=64)
        if number < 0:
            raise InvalidArgument(f"Sessions: seed {number} given; 0 or more is required; nearest: 0")
        settings: dict[str, int | float] = {
            "temperature": float(temperature),
            "top_p": float(top_p),
            "top_k": _number_of("top_k", top_k),
            "seed": number,
        }
        sampling = _native.Sampling(settings)
        ends = self._open().ends() if stop is None else [_number_of("stop", token) for token in stop]

        def continuation() -> Generator[int, None, None]:
            own, logits_V = self.prefill(prompt, session)
            try:
                for more in reversed(range(most)):
                    token = self._open().draw(logits_V, sampling, self.tokens(own))
                    if token in ends:
                        return
                    yield token
                    if more > 0:
                        logits_V = self.decode({own: token})[0]
            finally:
                if session is None:
                    with contextlib.suppress(CommError, InvalidArgument):  # As in _sessions_for.
                        self.release(own)

        return continuation()

    def fork(self, session: int) -> int:
        """A session that has read the same tokens, whose pages it shares until one of the two goes on."""
        return self._open().fork(session)

    def release(self, session: int) -> None:
        """Ends a session: its pages are free."""
        self._open().release(session)

    def tokens(self, session: int) -> int:
        """Tokens that a session has read."""
        return self._open().tokens(session)

    def close(self) -> None:
        """Ends all sessions and their ranks. Closed ones may be closed again."""
        native, self._native = self._native, None
        if native is not None:
            native.close()

    def __enter__(self) -> Sessions:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _sessions_for(self, prompts: int, sessions: Sequence[int] | None) -> Iterator[list[int]]:
        """The sessions of so many prompts: those that are given, or new ones, which end with a refusal."""
        if sessions is not None and len(sessions) != prompts:
            raise InvalidArgument(
                f"Sessions: {prompts} prompts for {len(sessions)} sessions given; one for each is required"
            )
        new: list[int] = []
        try:
            if sessions is None:
                new.extend(self._open().open() for _ in range(prompts))
            yield new if sessions is None else list(sessions)
        except InvalidArgument:
            for session in new:
                with contextlib.suppress(CommError, InvalidArgument):  # The ranks have ended, or were closed.
                    self.release(session)
            raise

    def _open(self) -> _native.Sessions:
        if self._native is None:
            raise InvalidArgument("Sessions: they were closed; new ones are required")
        return self._native


def _name_of(group: _groups.Group) -> str:
    if group is None:
        return ""
    process_group = _groups.process_group(group, "Sessions")
    return "" if process_group is None else str(process_group.group_name)


def _number_of(name: str, value: int, bits: int = 63) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"Sessions: {name} {value!r} given; a whole number is required") from None
    if -(2**bits) <= number < 2**bits:
        return number
    raise InvalidArgument(f"Sessions: {name} {number} given; one below 2^{bits} is required")


def _ranks_of(ranks: range) -> tuple[int, int]:
    if isinstance(ranks, range) and ranks.step == 1 and ranks.start < ranks.stop:
        count = _number_of("ranks", ranks.stop - ranks.start, bits=31)
        return _number_of("rank", ranks.start, bits=31), count
    raise InvalidArgument(
        f"Sessions: ranks {ranks!r} given; a range of ranks of these sessions, as range(2, 4), is required"
    )


def _tokens_of(ids: Tensor | Sequence[int]) -> list[int]:
    tokens = torch.as_tensor(ids)
    # A list without tokens has no integer dtype, and is refused with the text of the library.
    is_whole = not (tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool)
    if tokens.dim() == 1 and (is_whole or tokens.numel() == 0):
        return [int(token) for token in tokens.tolist()]
    raise InvalidArgument(
        f"Sessions: ids {list(tokens.shape)} of {tokens.dtype} given; whole numbers [L] are required"
    )
