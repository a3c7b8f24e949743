"""Law 13: evidence is what it says it is, for every model, and the model is afterwards what it was
before.
"""

import copy
import random
import threading

import numpy as np
import pytest
import torch

from regard.errors import UserError
from regard.inference.translator import Translator
from regard.inspection.evidence import (
    gradient_times_input,
    heads,
    heads_of,
    logit_lens,
    occlusion,
    without,
)
from regard.models.ensemble import ensemble
from regard.models.transformer import TransformerDecoder
from regard.nn import Attention
from regard.nn.kernels import read_only
from regard.records.result import Result
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import BOS, EOS, FIRST

TOKENS = train_tokenizer(
    "characters", ["abcdefghijklmn"], size=100
)  # 30 with those reserved, as the models here have
TEXT, IDS, SPARE = "bangle", [17, 20, 16, 25], 4
SOURCE, TARGET = [*TOKENS.encode(TEXT), EOS], [*IDS, EOS]
RESULT = Result(TEXT, "", [], 0.0, [], ids=IDS)
SHAPE = len(TARGET), len(SOURCE)


LONGEST_SUM = 48
"""Of the products in these models: the inner width of a gated feed-forward, or both directions and
the embedding of an RNN.
"""


def same(ours, theirs):
    """In float64."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.dtype == theirs.dtype == np.float64
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9 * max(1.0, np.abs(theirs).max()))


@pytest.fixture(scope="session")
def model(translating):
    """Evidence is what of a source speaks for an answer: a decoder alone has none."""
    return translating


def translator(model):
    return Translator(model, TOKENS, TOKENS)


def logits(model, source=SOURCE):
    with torch.no_grad():
        return model(
            torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([[BOS, *IDS]])
        )[0]


def logprobs(model, source=SOURCE):
    return logits(model, source).log_softmax(-1)[range(len(TARGET)), TARGET]


def replaced(model, place, vector):
    """Log-probabilities where the encoder reads this vector: by a spare row of a table of its own,
    without any hook.
    """
    changed = copy.deepcopy(model)
    changed.encoder.embedding = copy.deepcopy(
        model.encoder.embedding
    )  # the decoder keeps the shared one
    with torch.no_grad():
        changed.encoder.embedding.weight[SPARE] = vector
    return logprobs(changed, [*SOURCE[:place], SPARE, *SOURCE[place + 1 :]])


def silent(model, gone):
    """The model with zeros in the weights by which some heads speak, or for what an RNN finds."""
    changed = copy.deepcopy(model)
    attentions = {
        name: module for name, module in changed.named_modules() if isinstance(module, Attention)
    }
    for one in gone:
        if not is_transformer(model):
            changed.decoder.attention.attend_to = lambda query, *given: torch.zeros_like(query)
            continue
        part = {"cross": "decoder", "segments": "encoder.level"}.get(one.block, one.block)
        its = attentions[
            f"{part}.blocks.{one.layer}.{'cross' if one.block == 'cross' else 'attention'}"
        ]
        width = its.output.weight.shape[1] // its.heads
        its.output.weight.data[:, one.head * width : (one.head + 1) * width] = 0
    return changed


def some(heads):
    """Four of them, others for each --law-seed."""
    return random.sample(heads, min(4, len(heads)))


def hooks(model):
    return [
        h
        for m in model.modules()
        for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())
    ]


def is_transformer(model):
    return isinstance(model.decoder, TransformerDecoder)


def test_occlusion_is_what_is_lost_by_reading_the_mean_vector(model):
    found, mean = (
        occlusion(translator(model), RESULT),
        model.encoder.embedding.weight[FIRST:].mean(0),
    )
    assert found.shape == SHAPE
    for place in range(len(SOURCE)):
        expected = logprobs(model) - replaced(model, place, mean)
        same(found[:, place], expected.detach().numpy())
    assert np.abs(found).max() > 1e-6  # or the law would say nothing


def test_occlusion_in_one_batch_is_that_one_by_one(model):
    found = [
        occlusion(translator(model), RESULT, budget=budget)
        for budget in (1, 4 * 30 * len(TARGET), 1 << 24)
    ]
    same(found[0], found[1])
    same(found[0], found[2])


def test_gradient_times_input_is_the_slope_along_the_vector(model):
    """A step of h is off by h · curvature / 2, which is how much a step of 2h is further off; and
    by rounding / h.

    Where a ReLU bends within the step, one of the two sides is another slope: the other side must
    be right.
    """
    found, here, h = gradient_times_input(translator(model), RESULT), logprobs(model), 1e-6
    assert found.shape == SHAPE
    rounding = 1e-12 / h * max(1, np.abs(found).max(), float(here.abs().max()))

    def excess(place, step):
        """By how much the slope is further from the step's than that may be."""
        vector = model.encoder.embedding.weight[SOURCE[place]].detach()
        once, twice = (
            (replaced(model, place, (1 + s) * vector) - here).numpy() / s for s in (step, 2 * step)
        )
        return np.abs(found[:, place] - once) - 2 * np.abs(twice - once) - rounding

    for place in (0, 2, len(SOURCE) - 1):
        assert np.minimum(excess(place, h), excess(place, -h)).max() <= 0
    assert np.abs(found).max() > 1e-6


def test_what_was_not_read_yet_is_no_evidence(model):
    if wait := model.decoder.wait:
        unread = np.arange(SHAPE[1]) >= np.arange(SHAPE[0])[:, None] + wait
        assert unread.any()
        assert np.abs(occlusion(translator(model), RESULT)[unread]).max() < 1e-9
        assert np.abs(gradient_times_input(translator(model), RESULT)[unread]).max() == 0


def test_every_head_is_weighed(model):
    found = heads(translator(model), [RESULT, ("lamb", "kid")])
    attentions = [m for m in model.modules() if isinstance(m, Attention)]
    assert len({one[:3] for one in found}) == len(found) == sum(m.heads for m in attentions)
    for one in some(found):
        changed, lost, tokens = silent(model, [one]), 0.0, 0
        for text, ids in ((TEXT, IDS), ("lamb", TOKENS.encode("kid"))):
            source, target = torch.tensor([[*TOKENS.encode(text), EOS]]), [*ids, EOS]
            with torch.no_grad():
                both = [
                    m(source, torch.tensor([source.shape[1]]), torch.tensor([[BOS, *ids]]))[0]
                    for m in (model, changed)
                ]
            whole, without_it = (
                x.log_softmax(-1)[range(len(target)), target].sum().item() for x in both
            )
            lost, tokens = lost + whole - without_it, tokens + len(target)
        assert one.lost == pytest.approx(lost / tokens, rel=1e-9, abs=1e-9)
    assert not found or max(abs(one.lost) for one in found) > 1e-6


def test_a_head_that_says_nothing_changes_nothing(model):
    for one in some(list(heads_of(model))):
        changed = silent(model, [one])
        expected = logits(changed)
        with without(changed, [one]):
            assert torch.equal(logits(changed), expected)
        with without(model, [one]):
            assert torch.equal(logits(model), expected)


def test_without_its_heads_an_attention_is_its_bias(model):
    said, every = [], heads_of(model)
    attentions = [m for m in model.modules() if isinstance(m, Attention)]
    outputs = [m.output for m in attentions]
    with without(model, every):
        kept = [
            m.register_forward_hook(lambda module, given, out: said.append((module, out)))
            for m in outputs
        ]
        logits(model)
    for handle in kept:
        handle.remove()
    assert {id(module) for module, _ in said} == set(map(id, outputs))
    for module, out in said:
        bias = getattr(module, "bias", None)
        assert torch.equal(out, torch.zeros_like(out) + (0 if bias is None else bias))


def test_the_last_layer_says_what_the_model_says(model):
    if not is_transformer(model):
        with pytest.raises(UserError, match="needs a Transformer"):
            logit_lens(translator(model), RESULT)
        return
    found, own = logit_lens(translator(model), RESULT), logits(model).softmax(-1)
    assert [len(row) for row in found] == [len(TARGET)] * len(model.decoder.blocks)
    same([one.probability for one in found[-1]], own[range(len(TARGET)), TARGET].numpy())
    same([[p for _, p in one.likely] for one in found[-1]], own.topk(3).values.numpy())
    assert [one.likely[0][0] for one in found[-1]] == TOKENS.token_texts(own.argmax(-1).tolist())


def everything(model):
    ours = translator(model)
    found = [occlusion(ours, RESULT), gradient_times_input(ours, RESULT), heads(ours, [RESULT])]
    return [*found, logit_lens(ours, RESULT) if is_transformer(model) else None]


def evidence(model):
    """What is continuous in the weights, so that rounding can only move it by a little. (A slope
    jumps where a ReLU bends.)
    """
    return torch.cat(
        (logits(model).flatten(), torch.from_numpy(occlusion(translator(model), RESULT)).flatten())
    )


def test_the_model_stays_as_it_was(model):
    before, weights = logits(model), copy.deepcopy(model.state_dict())
    everything(model)
    assert hooks(model) == []
    assert torch.equal(logits(model), before)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_also_when_something_breaks(model, part, monkeypatch):
    def broken(*given, **named):
        raise RuntimeError("broken")

    monkeypatch.setattr(getattr(model, part), "forward" if part == "encoder" else "hidden", broken)
    calls = [
        occlusion,
        gradient_times_input,
        lambda ours, one: heads(ours, [one]),
        *[logit_lens] * is_transformer(model),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="broken"):
            call(translator(model), RESULT)
        assert hooks(model) == []


def test_other_threads_see_the_whole_model(model):
    found, before = [], logits(model)
    every = heads_of(model)
    with without(model, every):
        thread = threading.Thread(target=lambda: found.append(logits(model)))
        thread.start()
        thread.join()
        assert not every or not torch.equal(logits(model), before)
    same(found[0].numpy(), before.numpy())  # another thread may use another number of threads


def test_weights_laid_out_for_a_cpu_give_the_same(model, rounding):
    """These are fp32 whatever the model's are."""
    fast = copy.deepcopy(model).float()
    read_only(fast)
    with torch.inference_mode():
        logits(fast)  # whatever it keeps for later calls is there now
    assert np.isfinite(
        gradient_times_input(translator(fast), RESULT)
    ).all()  # also where weights cannot learn
    allowed = rounding(model, evidence, terms=LONGEST_SUM, draws=3)
    away = (evidence(model) - evidence(fast).double()).abs().max()
    assert away <= allowed


def test_several_models_and_split_texts_are_refused(build, transformer):
    model = build(transformer())
    pair, split = (
        translator(ensemble([model, model])),
        Result(TEXT, "", [], 0.0, [], ids=IDS, parts=[RESULT, RESULT]),
    )
    for call in (occlusion, gradient_times_input, logit_lens, lambda ours, one: heads(ours, [one])):
        with pytest.raises(UserError, match="load one of its runs alone"):
            call(pair, RESULT)
        with pytest.raises(UserError, match=r"split into 2 parts.*parts\[0\]"):
            call(translator(model), split)
