"""Sessions of a model folder: logits are those of transformers, over threads and over processes."""

import itertools
import json
import os
import shutil
import time
from concurrent import futures

import pytest
import ranks
import torch

import armillary

transformers = pytest.importorskip("transformers")

WORDS = 61


def model_of(window=None):
    """A tiny model with random weights in fp32, whose attention is far from uniform."""
    torch.manual_seed(5)
    sizes = {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    family = "Llama" if window is None else "Mistral"
    if window is not None:
        sizes["sliding_window"] = window
    config = getattr(transformers, family + "Config")(**sizes)
    model = getattr(transformers, family + "ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, 0.2)
    return model


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    model = model_of()
    model.save_pretrained(folder)
    return folder, model


def text(length, seed=0):
    return torch.randint(WORDS, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def expected(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0, -1]


def assert_close(logits, right):
    assert (logits - right).abs().max() <= 1e-5 * right.abs().max()


@pytest.mark.parametrize(("threads", "chunk"), [(1, 0), (3, 0), (3, 48), (2, 5)])
def test_logits_are_those_of_transformers(llama, threads, chunk):
    folder, model = llama
    ids = text(100)
    with armillary.Sessions(folder, ranks=threads, chunk=chunk, page=8, pages=32) as sessions:
        session, logits = sessions.prefill(torch.tensor(ids))
        assert logits.shape == (WORDS,)
        assert_close(logits, expected(model, ids))
        for token in (3, 7):
            ids.append(token)
            assert_close(sessions.decode({session: token})[0], expected(model, ids))
        more = text(20, seed=1)
        again, logits = sessions.prefill(more, session)
        assert again == session and sessions.tokens(session) == 122
        assert_close(logits, expected(model, ids + more))


@pytest.mark.parametrize(("threads", "chunk"), [(1, 0), (3, 0), (2, 40)])
def test_prompts_are_read_together(llama, threads, chunk):
    folder, model = llama
    prompts = [text(70), text(3, seed=1), text(26, seed=2)]
    with armillary.Sessions(folder, ranks=threads, chunk=chunk, page=8, pages=32) as sessions:
        own, logits = sessions.prefill_all(prompts)
        assert len(set(own)) == 3 and logits.shape == (3, WORDS)
        for ids, one in zip(prompts, logits, strict=True):
            assert_close(one, expected(model, ids))
        # Behind two of them, in another order.
        again, logits = sessions.prefill_all([[5], torch.tensor(text(40, seed=3))], [own[2], own[0]])
        assert again == [own[2], own[0]]
        assert_close(logits[0], expected(model, [*prompts[2], 5]))
        assert_close(logits[1], expected(model, prompts[0] + text(40, seed=3)))
        assert [sessions.tokens(session) for session in own] == [110, 3, 27]
        assert sessions.prefill_all([])[1].shape == (0, WORDS)


def test_prompts_that_are_refused_together_leave_no_session(llama):
    folder, model = llama
    with armillary.Sessions(folder, page=4, pages=10) as sessions:
        with pytest.raises(
            armillary.InvalidArgument, match="10 pages of 4 tokens required .* 8 of 10 are free"
        ):
            sessions.prefill_all([text(8), text(38)])
        with pytest.raises(armillary.InvalidArgument, match="2 prompts for 1 sessions given; one for each"):
            sessions.prefill_all([[1], [2]], [0])
        session, _ = sessions.prefill([7])
        with pytest.raises(armillary.InvalidArgument, match="given twice"):
            sessions.prefill_all([[1], [2]], [session, session])
        assert sessions.tokens(session) == 1
        sessions.release(session)
        # All pages are free.
        assert_close(sessions.prefill(text(40))[1], expected(model, text(40)))


def greedy(model, ids, count):
    ids = list(ids)
    for _ in range(count):
        ids.append(expected(model, ids).argmax().item())
    return ids[-count:]


def until(tokens, ends):
    return list(itertools.takewhile(lambda token: token not in ends, tokens))


def assert_new_sessions_ended(sessions):
    session, _ = sessions.prefill([1])
    for number in range(session):
        with pytest.raises(armillary.InvalidArgument, match="is not open"):
            sessions.tokens(number)
    sessions.release(session)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_most_likely_tokens_are_generated(llama, threads):
    folder, model = llama
    ids = text(40)
    right = greedy(model, ids, 12)
    with armillary.Sessions(folder, ranks=threads, page=8, pages=32) as sessions:
        assert list(sessions.generate(ids, tokens=12, stop=())) == right
        assert list(sessions.generate(torch.tensor(ids), tokens=12, stop=[right[5]])) == until(
            right, {right[5]}
        )
        # Among one token, and among those that reach next to no probability.
        assert list(sessions.generate(ids, tokens=12, temperature=5, top_k=1, stop=())) == right
        assert list(sessions.generate(ids, tokens=12, temperature=5, top_p=1e-9, stop=())) == right
        begun = sessions.generate(ids, stop=())
        assert next(begun) == right[0]
        begun.close()
        assert_new_sessions_ended(sessions)
        # A session goes on behind what it has read.
        session, _ = sessions.prefill(ids[:-1])
        assert list(sessions.generate(ids[-1:], session, tokens=5, stop=())) == right[:5]
        assert sessions.tokens(session) == 44
        assert list(sessions.generate(right[4:5], session, tokens=7, stop=())) == right[5:]


def test_texts_end_where_the_model_says(llama, tmp_path):
    folder, model = llama
    ids = text(40)
    right = greedy(model, ids, 12)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": right[5]}))
    with armillary.Sessions(tmp_path) as sessions:
        ends = {right[5], *sessions._native.ends()}
        assert list(sessions.generate(ids, tokens=12)) == until(right, ends)
        assert list(sessions.generate(ids, tokens=12, stop=())) == right


def drawn(sessions, seed):
    return list(
        sessions.generate(text(40), tokens=16, temperature=1.5, top_p=0.95, top_k=40, seed=seed, stop=())
    )


def test_tokens_are_drawn_by_a_seed(llama):
    folder, _ = llama
    with armillary.Sessions(folder) as sessions:
        right = drawn(sessions, 7)
        assert len(right) == 16
        assert drawn(sessions, 7) == right
        assert drawn(sessions, 2**64 - 1) != right
    with armillary.Sessions(folder, ranks=4, tensor_parallel=2, chunk=16, page=4) as sessions:
        assert drawn(sessions, 7) == right


def test_a_full_cache_ends_a_text(llama):
    folder, model = llama
    with armillary.Sessions(folder, page=4, pages=11) as sessions:
        tokens = sessions.generate(text(40), stop=())
        # The fifth has been drawn behind 44 tokens, which are all that the pages have.
        assert list(itertools.islice(tokens, 5)) == greedy(model, text(40), 5)
        with pytest.raises(armillary.InvalidArgument, match="released sessions or a larger cache"):
            next(tokens)
        assert_new_sessions_ended(sessions)


def test_a_window_is_obeyed(tmp_path):
    model = model_of(window=24)
    model.save_pretrained(tmp_path)
    ids = text(120)
    # Fewer pages than the text has: those behind the window are used again.
    with armillary.Sessions(tmp_path, ranks=2, chunk=32, page=8, pages=6) as sessions:
        session, logits = sessions.prefill(ids)
        assert_close(logits, expected(model, ids))
        assert_close(sessions.decode({session: 4})[0], expected(model, [*ids, 4]))


def test_a_prompt_is_handed_over_to_other_ranks(llama):
    folder, model = llama
    ids = text(60)
    with armillary.Sessions(folder, ranks=4, page=8, pages=6) as sessions:
        session, logits = sessions.prefill_to(range(2, 4), ids)
        assert_close(logits, expected(model, ids))
        assert_close(sessions.decode({session: 3})[0], expected(model, [*ids, 3]))
        # Eight pages are on two ranks, and 80 more tokens are three on each.
        with pytest.raises(armillary.InvalidArgument, match="on rank 2, where 2 of 6 are free"):
            sessions.prefill(text(80))
        sessions.relayout(session, range(4))
        other, logits = sessions.prefill(text(80))
        assert_close(logits, expected(model, text(80)))
        logits = sessions.decode({session: 5, other: 7})
        assert_close(logits[0], expected(model, [*ids, 3, 5]))
        assert_close(logits[1], expected(model, [*text(80), 7]))


@pytest.mark.parametrize(("degree", "to"), [(1, range(1)), (2, range(1, 2))])
def test_a_session_goes_on_where_it_was_handed_over(llama, degree, to):
    folder, model = llama
    ids = text(50)
    with armillary.Sessions(folder, ranks=4, tensor_parallel=degree, chunk=32, page=4) as sessions:
        session, _ = sessions.prefill(ids)
        more = text(45, seed=1)
        again, logits = sessions.prefill_to(to, more, session)
        assert again == session
        assert_close(logits, expected(model, ids + more))
        copy = sessions.fork(session)
        logits = sessions.decode({session: 3, copy: 5})
        assert_close(logits[0], expected(model, [*ids, *more, 3]))
        assert_close(logits[1], expected(model, [*ids, *more, 5]))
        _, logits = sessions.prefill(more, copy)
        assert_close(logits, expected(model, [*ids, *more, 5, *more]))


def test_forks_share_pages_until_they_are_released(llama):
    folder, model = llama
    ids = text(40)
    with armillary.Sessions(folder, ranks=2, page=4, pages=12) as sessions:
        session, _ = sessions.prefill(ids)
        copy = sessions.fork(session)
        logits = sessions.decode({session: 3, copy: 5})
        assert_close(logits[0], expected(model, [*ids, 3]))
        assert_close(logits[1], expected(model, [*ids, 5]))
        with pytest.raises(armillary.InvalidArgument, match="released sessions or a larger cache"):
            sessions.prefill(text(60))
        sessions.release(session)
        assert sessions.tokens(copy) == 41
        assert_close(sessions.decode({copy: 9})[0], expected(model, [*ids, 5, 9]))
        sessions.release(copy)
        other, logits = sessions.prefill(text(60))
        assert_close(logits, expected(model, text(60)))
        assert other not in (session, copy)


@pytest.mark.parametrize(("threads", "degree"), [(2, 2), (4, 2), (4, 4)])
def test_matrices_are_shared_by_ranks(llama, threads, degree):
    folder, model = llama
    ids = text(50)
    with armillary.Sessions(folder, ranks=threads, tensor_parallel=degree, chunk=32, page=8) as sessions:
        session, logits = sessions.prefill(ids)
        assert_close(logits, expected(model, ids))
        assert_close(sessions.decode({session: 3})[0], expected(model, [*ids, 3]))


def test_pages_beyond_memory_are_refused(llama):
    folder, _ = llama
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # A rank of one head has pages of 16 tokens in two layers, keys and values of 8 numbers of 4 bytes.
    head = 16 * 2 * 2 * 8 * 4
    for degree, heads in ((1, 2), (2, 1)):
        most = memory // (2 * heads * head)
        with pytest.raises(armillary.InvalidArgument, match=f"GiB on 2 ranks .*at most {most} are required"):
            armillary.Sessions(folder, ranks=2, tensor_parallel=degree, pages=most + 1)


def test_wrong_use_is_refused_and_sessions_go_on(llama, tmp_path):
    folder, model = llama

    def refused(text, call):
        with pytest.raises(armillary.InvalidArgument, match=text):
            call()

    def sessions_of_four(degree):
        return armillary.Sessions(folder, ranks=4, tensor_parallel=degree)

    refused("has none of recipe.toml, manifest.json and config.json", lambda: armillary.Sessions(tmp_path))
    refused("layout balanced given", lambda: armillary.Sessions(folder, layout="balanced"))
    refused("0 ranks given", lambda: armillary.Sessions(folder, ranks=0))
    refused("ranks 1.5 given; a whole", lambda: armillary.Sessions(folder, ranks=1.5))
    refused(r"one below 2\^63 is required", lambda: armillary.Sessions(folder, pages=2**63))
    refused("tensor_parallel 3 given for 4 ranks; a divisor", lambda: sessions_of_four(3))
    refused("tensor_parallel 0 given for 4 ranks; .* nearest: 1", lambda: sessions_of_four(0))
    refused("over tp 3; at most tp 2", lambda: armillary.Sessions(folder, ranks=3, tensor_parallel=3))
    refused("unknown name 'rink'", lambda: armillary.Sessions(folder, strategy="rink"))
    refused("dtype torch.float16 given", lambda: armillary.Sessions(folder, dtype=torch.float16))
    sessions = armillary.Sessions(folder, ranks=2)
    refused("a prompt without tokens", lambda: sessions.prefill([]))
    refused(r"ids \[1, 2\] of torch.int64", lambda: sessions.prefill([[1, 2]]))
    refused(r"torch.float32 given; whole numbers", lambda: sessions.prefill([1.5]))
    refused("token 61 given; one from 0 to 60", lambda: sessions.prefill([WORDS]))
    refused("session 99 given, which is not open", lambda: sessions.decode({99: 1}))
    refused("session 99 given, which is not open", lambda: sessions.fork(99))
    refused("token 1.5 given; a whole number", lambda: sessions.decode({99: 1.5}))
    session, logits = sessions.prefill([4, 5])
    assert_close(logits, expected(model, [4, 5]))
    assert_close(sessions.decode({session: torch.tensor(6)})[0], expected(model, [4, 5, 6]))
    refused("temperature -1 given; 0 or more", lambda: sessions.generate([4], temperature=-1))
    refused("top-p 0 given", lambda: sessions.generate([4], top_p=0))
    refused("top-k -1 given", lambda: sessions.generate([4], top_k=-1))
    refused("tokens 0 given; at least 1", lambda: sessions.generate([4], tokens=0))
    refused("seed -1 given; 0 or more", lambda: sessions.generate([4], seed=-1))
    refused(r"seed 18446744073709551616 given; one below 2\^64", lambda: sessions.generate([4], seed=2**64))
    refused("stop 0.5 given; a whole number", lambda: sessions.generate([4], stop=[0.5]))
    refused("session 99 given, which is not open", lambda: next(sessions.generate([4], 99)))
    refused(
        "ranks <armillary.sessions.Sessions .* a range of ranks of these sessions",
        lambda: sessions.prefill_to(sessions, [4]),
    )
    refused(r"ranks range\(0, 2, 2\) given", lambda: sessions.relayout(session, range(0, 2, 2)))
    refused(r"ranks range\(1, 1\) given", lambda: sessions.relayout(session, range(1, 1)))
    refused(
        "2 ranks from rank 1 on; ranks below 2 are required", lambda: sessions.prefill_to(range(1, 3), [4])
    )
    refused("1 rank from rank -1 on", lambda: sessions.relayout(session, range(-1, 0)))
    refused("session 99 given, which is not open", lambda: sessions.relayout(99, range(1)))
    refused("session 99 given, which is not open", lambda: sessions.prefill_to(range(1), [4], 99))
    refused("a prompt without tokens", lambda: sessions.prefill_to(range(1), []))
    assert sessions.tokens(session) == 3
    native = sessions._native
    sessions.close()
    sessions.close()
    refused("they were closed", lambda: sessions.tokens(session))
    # As in a thread that was on its way.
    refused("they were closed", lambda: native.tokens(session))


def test_a_refusal_in_a_pass_ends_the_ranks(llama):
    folder, _ = llama
    with armillary.Sessions(folder, ranks=3, page=4, strategy="double_ring:window=2") as sessions:
        with pytest.raises(armillary.InvalidArgument, match="window=2 with world 3"):
            sessions.prefill(text(40))
        with pytest.raises(armillary.CommError, match="new sessions are required"):
            sessions.prefill([1])


def test_closing_lets_a_call_of_another_thread_end(llama):
    folder, model = llama
    ids = text(200)
    right = expected(model, ids)
    for seconds in (0, 0.005, 0.02):
        sessions = armillary.Sessions(folder, ranks=2, chunk=8, page=4, pages=32)
        with futures.ThreadPoolExecutor(1) as pool:
            call = pool.submit(sessions.prefill, ids)
            time.sleep(seconds)
            sessions.close()
            error = call.exception(60)
            if error is None:
                assert_close(call.result()[1], right)
            else:
                assert "they were closed" in str(error)


def in_processes(rank, world, folder, degree):
    import torch.distributed as dist

    settings = {"group": dist.group.WORLD, "tensor_parallel": degree, "chunk": 48, "page": 8}
    # All processes are of this machine.
    with pytest.raises(armillary.InvalidArgument, match=f"on {world} ranks of this machine"):
        armillary.Sessions(folder, **settings, pages=2**62)
    with armillary.Sessions(folder, **settings, pages=32) as sessions:
        # The cache outlives the mode.
        with torch.inference_mode():
            session, first = sessions.prefill(text(100))
        with pytest.raises(armillary.InvalidArgument, match="token -1 given"):
            sessions.decode({session: -1})
        second = sessions.decode({session: 3})[0]
        _, of_other = sessions.prefill_to(range(1, 2), text(100))
        assert torch.allclose(of_other, first, rtol=0, atol=1e-4)
        sessions.relayout(session, range(1))
        third = sessions.decode({session: 5})[0]
        return torch.stack([first, second, third]), drawn(sessions, 7)


@pytest.mark.parametrize(("processes", "degree"), [(3, 1), (4, 2)])
def test_processes_of_a_group(llama, processes, degree):
    folder, model = llama
    right = [expected(model, text(100) + more) for more in ([], [3], [3, 5])]
    with armillary.Sessions(folder) as sessions:
        tokens = drawn(sessions, 7)
    for logits, continuation in ranks.run(processes, in_processes, folder, degree):
        assert continuation == tokens
        for one, of_model in zip(logits, right, strict=True):
            assert_close(one, of_model)
