"""No route around attention over ranks goes unseen, and nothing that was put into a model from outside."""

import importlib.util
import re
import time
import warnings

import pytest

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

import hf_models
import ranks
import torch
import torch.distributed as dist
import transformers
from armillary._hf_masks import DeclaredMask, ModelMask

import armillary
from armillary import hf


@pytest.fixture
def model():
    return hf_models.build("llama")


@pytest.fixture
def sp():
    return armillary.SequenceParallel(strategy="ring")


def refuses(model, sp, match, **settings):
    with pytest.raises(armillary.InvalidArgument, match=match), hf.install(model, sp, **settings):
        model(**hf.shard(sp, **hf_models.batch(False)))


@pytest.mark.parametrize("way", ["model", "config", "layer"])
def test_attention_that_is_switched_is_refused(model, sp, way):
    with hf.install(model, sp):
        if way == "model":
            model.set_attn_implementation("sdpa")
        elif way == "config":
            model.config._attn_implementation = "eager"
        else:
            model.model.layers[1].self_attn.config = hf_models.CONFIGS["llama"]()
            model.model.layers[1].self_attn.config._attn_implementation = "sdpa"
        with pytest.raises(armillary.InvalidArgument, match="has _attn_implementation='(sdpa|eager)' since"):
            model(**hf.shard(sp, **hf_models.batch(False)))


def attends_by_itself(model):
    def forward(hidden_states, **_):
        heads = hidden_states.unflatten(-1, (4, 8)).transpose(1, 2)
        out = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return out.transpose(1, 2).flatten(-2), None

    model.model.layers[1].self_attn.forward = forward


def is_dropped(model):
    model.model.layers[1].forward = lambda hidden_states, **_: hidden_states


@pytest.mark.parametrize("change", [attends_by_itself, is_dropped])
def test_layers_that_do_not_attend_are_refused(model, sp, change):
    change(model)
    refuses(
        model, sp, "model.layers.1.self_attn of LlamaForCausalLM did not attend over ranks", untested=True
    )


def test_a_loss_that_is_not_ours_is_refused(sp):
    class OwnLossForCausalLM(transformers.LlamaForCausalLM):
        def forward(self, labels=None, **inputs):
            out = super().forward(**inputs)
            logits = out.logits[:, :-1].flatten(0, 1)
            out.loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten())
            return out

    model = OwnLossForCausalLM(hf_models.CONFIGS["llama"]()).eval()
    model.config.model_type = "own"
    refuses(model, sp, "called its loss function 0 times", untested=True)


def hook(module, args, out):
    return out + out.mean(1, keepdim=True)


class Mixed(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).cumsum(1)


def noise(model):
    from transformers.integrations.neftune import neftune_post_forward_hook

    model.get_input_embeddings().register_forward_hook(neftune_post_forward_hook)


ADDED = {
    "hook": (lambda model: model.model.norm.register_forward_hook(hook), "model.norm has the hook hook"),
    "noise": (noise, "has the hook neftune_post_forward_hook .* noise scaled by the tokens of a rank"),
    "class": (lambda model: setattr(model, "lm_head", Mixed(32, 61)), "lm_head has the class Mixed"),
    "forward": (
        lambda model: setattr(model.model.norm, "forward", lambda x: x.flip(1)),
        "model.norm has the forward .*lambda",
    ),
}


@pytest.mark.parametrize("case", ADDED)
def test_what_was_put_in_is_refused_before_and_after_install(model, sp, case):
    put_in, match = ADDED[case]
    with hf.install(model, sp):
        put_in(model)
        with pytest.raises(armillary.InvalidArgument, match=match):
            model(**hf.shard(sp, **hf_models.batch(False)))
    with pytest.raises(armillary.InvalidArgument, match=match):
        hf.install(model, sp)


def test_own_use_of_the_mask_is_refused_by_name(model, sp):
    mask = DeclaredMask(sp.mask, ModelMask(), sp.deal(4), 0, hf.install(model, sp))
    scores = torch.zeros(4, 4)
    for use in (
        lambda: mask.dtype,
        lambda: mask[:, :2],
        lambda: scores + mask,
        lambda: mask + scores,
        lambda: torch.where(mask, scores, 0),
        lambda: torch.nn.functional.scaled_dot_product_attention(scores, scores, scores, attn_mask=mask),
        lambda: ~mask,
        lambda: mask.dim(),
    ):
        with pytest.raises(armillary.InvalidArgument, match="LlamaForCausalLM reads the mask by itself"):
            use()


def test_rotary_positions_of_other_types_are_refused(sp):
    model = hf_models.build("llama")
    model.config.rope_parameters = {"rope_type": "spiral", "rope_theta": 1e4}
    with pytest.raises(armillary.InvalidArgument, match="rotary positions of type spiral"):
        hf.install(model, sp)


def batch_with(mask, ignored=True):
    whole = hf_models.batch(False)
    padding = torch.tensor([mask] * hf_models.BATCH)
    labels = whole["labels"].masked_fill(padding == 0, -100) if ignored else whole["labels"]
    return {"input_ids": whole["input_ids"], "labels": labels, "attention_mask": padding}


def test_padding_on_the_right_is_that_of_one_device(model, sp):
    batch = batch_with([1] * 40 + [0] * 8)
    expected = model(**batch)
    with hf.install(model, sp):
        outputs = model(**hf.shard(sp, **batch))
    torch.testing.assert_close(outputs.loss, expected.loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(outputs.logits[:, :40], expected.logits[:, :40], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("batch", "match"),
    [
        (batch_with([0] * 8 + [1] * 40), "hides tokens before one .* padding on the right .* document_ids"),
        (batch_with([1] * 8 + [0] * 8 + [1] * 32), "row 0 hides tokens before one"),
        (
            batch_with([1] * 40 + [0] * 8, ignored=False),
            "row 0 has the label .* -100 is required for padding",
        ),
        (
            batch_with([1] * 48) | {"attention_mask": torch.ones(2, 40)},
            "attention_mask is .*a number for each token",
        ),
    ],
)
def test_other_padding_is_refused_by_name(sp, batch, match):
    with pytest.raises(armillary.InvalidArgument, match=match):
        hf.shard(sp, **batch)


def test_padding_of_a_bidirectional_model_is_refused():
    sp = armillary.SequenceParallel(mask="full")
    with pytest.raises(armillary.InvalidArgument, match="a batch with padding is causal"):
        hf.shard(sp, **batch_with([1] * 40 + [0] * 8))


def of_few_tokens(rank, world):
    """Texts of forward passes in which a rank has no token, how long they took, and a loss afterwards."""
    model, results = hf_models.build("llama"), []
    whole = hf_models.batch(False)
    for layout in ("zigzag", "contiguous", "striped"):
        sp = armillary.SequenceParallel(strategy="ring", layout=layout)
        batch = {"input_ids": whole["input_ids"][:, :1], "labels": whole["labels"][:, :1]}
        begin = time.monotonic()
        with hf.install(model, sp, check=False):
            try:
                text = f"loss {model(**hf.shard(sp, **batch, ragged='uneven')).loss:.5f}"
            except armillary.Error as error:
                text = f"{type(error).__name__}: {error}"
            took_s = time.monotonic() - begin
            dist.barrier()
            loss = float(model(**hf.shard(sp, **whole)).loss)
        dist.barrier()  # the next refusal would end a call that the other rank is still in
        results.append((layout, text, took_s, loss))
    return results, float(model(**whole).loss)


def test_a_rank_without_tokens_is_refused_on_all_ranks_at_once():
    for rank, (results, loss_alone) in enumerate(ranks.run(2, of_few_tokens)):
        for layout, text, took_s, loss in results:
            assert loss == pytest.approx(loss_alone, rel=1e-5)
            none = rf"InvalidArgument: armillary.hf: layout {layout} gives rank \d none of 1 tokens; one for"
            assert re.match(none, text), (rank, layout, text)
            assert took_s < 30, (rank, layout, took_s)


def test_one_rank_is_not_told_to_check(model, sp):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hf.install(model, sp).uninstall()


def test_check_before_training(model, sp):
    batch = hf_models.batch(True)
    assert hf.install(model, sp, check=batch).report.ok
    assert model.config._attn_implementation.startswith("armillary_")


def test_check_before_training_needs_no_label_in_the_first_tokens(model, sp):
    ids = torch.randint(2, hf_models.VOCABULARY, (1, 300), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[:, :280] = -100  # a long prompt
    assert hf.install(model, sp, check={"input_ids": ids, "labels": labels}).report.ok


def test_check_before_training_refuses_what_differs(model, sp, monkeypatch):
    plain = hf.shard

    def shifted_twice(*args, **settings):
        batch = plain(*args, **settings)
        batch["shift_labels"] = batch["shift_labels"].roll(-1, 1)
        return batch

    monkeypatch.setattr(hf, "shard", shifted_twice)
    with pytest.raises(armillary.InvalidArgument, match="differs from one device: loss .* gradients"):
        hf.install(model, sp, check=hf_models.batch(False))
    assert model.config._attn_implementation == "eager"
