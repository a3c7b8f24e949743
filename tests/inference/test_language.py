"""A language model that writes: what it says follows from the prompt and the model alone."""

import json
import math
import pickle

import numpy as np
import pytest
import torch

from regard.config import SearchConfig, build
from regard.data.batches import collate
from regard.errors import UserError
from regard.inference.language import LanguageModel
from regard.models import build_model
from regard.records.generation import Generation
from regard.search import Sampling
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import BOS, EOS

LETTERS = train_tokenizer("characters", ["abcdefghijklmnop "], size=100)
KINDS = {
    "transformer": {"width": 16, "ffn": 24, "heads": 2, "decoder_layers": 2, "max_positions": 64},
    "rotary-window": {
        "width": 16,
        "ffn": 24,
        "heads": 2,
        "decoder_layers": 2,
        "position": "rotary",
        "decoder_pattern": "window",
        "window": 3,
    },
    "lstm": {"kind": "rnn", "width": 16, "embedding": 16, "tie": "none"},
}
LEARNED = {"width": 16, "ffn": 24, "heads": 2, "decoder_layers": 1, "position": "learned"}
PROMPTS = ["abc", "", "a", "abc def", "abc", "nop", "p" * 9]


def made(kind, max_length=0, **search):
    """With opinions: weights so large that what it says depends on all that it reads."""
    torch.manual_seed(5)
    settings = build({"model": KINDS[kind] if isinstance(kind, str) else kind}).model
    model = build_model(settings, LETTERS.size, LETTERS.size, objective="causal").double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    config = SearchConfig(**({"width": 1} | search))
    return LanguageModel(model, LETTERS, config, max_length=max_length)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def model(kind):
    """Do not change it."""
    return made(kind)


@pytest.fixture(scope="module")
def transformer():
    return made("transformer")


@torch.no_grad()
def by_recomputing(model, prompt, tokens):
    """Greedy without a state: the whole text is read again for every token."""
    ids = [BOS, *LETTERS.encode(prompt)]
    logprobs = []
    for _ in range(tokens):
        batch = collate([([EOS], [*ids, EOS])])
        logits = model.model.predict(batch)[0, -1]
        logits[model.suppress] = -torch.inf
        ids.append(int(logits.argmax()))
        logprobs.append(float(logits.log_softmax(-1)[ids[-1]]))
        if ids[-1] == EOS:
            break
    return ids[1:], logprobs


# one text


def test_cached_is_uncached(model):
    for prompt in PROMPTS:
        generation = model(prompt, tokens=12)
        ids, logprobs = by_recomputing(model, prompt, 12)
        assert generation.finished == (ids[-1] == EOS)
        assert generation.text == LETTERS.decode(ids)
        assert generation.logprobs == pytest.approx(logprobs, abs=1e-9)
        assert generation.score == pytest.approx(sum(logprobs) / len(logprobs), abs=1e-9)


def test_a_text_begins_with_its_prompt(model):
    for prompt in PROMPTS:
        generation = model(prompt, tokens=7)
        assert generation.prompt == prompt
        assert generation.text == prompt + "".join(generation.tokens)
        assert generation.finished or len(generation.tokens) == 7
        assert len(generation.logprobs) == len(generation.tokens) + generation.finished <= 7
        assert str(generation) == generation.text


def test_an_empty_prompt_begins_a_text(model):
    assert model("", tokens=5) == model(tokens=5)
    assert model([], tokens=5) == []


def test_no_special_is_ever_written(transformer):
    texts = transformer([""] * 20, tokens=30, n_best=5, sampling=Sampling(temperature=9.0))
    everything = "".join(other.text for text in texts for other in [text, *text.alternatives])
    assert set(everything) <= set("abcdefghijklmnop ")


# in company


@pytest.mark.parametrize(
    ("width", "n_best", "sampling"),
    [(1, 1, None), (4, 3, None), (1, 3, Sampling(seed=4, temperature=1.3, top_p=0.9))],
    ids=["greedy", "beam", "sample"],
)
def test_alone_is_in_company(kind, width, n_best, sampling):
    model = made(kind, width=width)
    company = model(PROMPTS, tokens=9, n_best=n_best, sampling=sampling)
    for prompt, together in zip(PROMPTS, company, strict=True):
        alone = model(prompt, tokens=9, n_best=n_best, sampling=sampling)
        assert alone.text == together.text
        assert alone.finished == together.finished
        assert alone.logprobs == pytest.approx(together.logprobs, abs=1e-9)
        ours = [other.text for other in alone.alternatives]
        assert ours == [other.text for other in together.alternatives]
        assert len(ours) == n_best - 1


def test_little_room_changes_nothing(transformer):
    narrow = made("transformer", batch_tokens=8)
    wide = transformer(PROMPTS, tokens=9)
    assert [text.text for text in narrow(PROMPTS, tokens=9)] == [text.text for text in wide]


def test_a_stream_comes_in_order_and_as_it_is_read(transformer, monkeypatch):
    monkeypatch.setattr("regard.inference.language.WINDOW", 2)
    read = []

    def prompts():
        for prompt in PROMPTS:
            read.append(prompt)
            yield prompt

    stream = transformer.generate(prompts(), tokens=3)
    assert next(stream).prompt == PROMPTS[0]
    assert read == PROMPTS[:2]
    assert [text.prompt for text in stream] == PROMPTS[1:]


# several texts


def test_n_best_is_different_texts_best_first(model):
    generation = model("abc", tokens=6, n_best=5)
    scores = [generation.score, *(other.score for other in generation.alternatives)]
    texts = [generation.text, *(other.text for other in generation.alternatives)]
    assert scores == sorted(scores, reverse=True)
    assert len(set(zip(texts, scores, strict=True))) == 5
    assert all(text.startswith("abc") for text in texts)


def test_a_seed_draws_the_same_again_and_another_something_else(transformer):
    def drawn(seed):
        return [text.text for text in transformer(PROMPTS, tokens=9, sampling=Sampling(seed=seed))]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_hardly_any_temperature_is_greedy(transformer):
    cold = transformer(PROMPTS, tokens=9, sampling=Sampling(temperature=1e-6))
    greedy = transformer(PROMPTS, tokens=9)
    assert [text.text for text in cold] == [text.text for text in greedy]
    only_one = transformer(PROMPTS, tokens=9, sampling=Sampling(top_k=1))
    assert [text.text for text in only_one] == [text.text for text in greedy]


def test_samples_come_as_often_as_they_are_likely(transformer):
    options = {option.text: option.probability for option in transformer.options("abc", 20)}
    texts = transformer("abc", tokens=1, n_best=4000, sampling=Sampling(seed=1))
    drawn = [texts.text, *(other.text for other in texts.alternatives)]
    likeliest = max(options, key=options.get)
    assert 0.1 < options[likeliest] < 0.95
    assert drawn.count(likeliest) / 4000 == pytest.approx(options[likeliest], abs=0.03)


def test_what_does_not_apply_is_refused(transformer):
    with pytest.raises(UserError, match="risk"):
        transformer("a", sampling=Sampling(risk=3))
    with pytest.raises(UserError, match="tokens"):
        transformer("a", tokens=0)
    with pytest.raises(UserError, match="wider than"):
        transformer("a", n_best=1000)


def test_a_letter_it_does_not_know_is_told(transformer):
    assert "Z" in transformer("aZ", tokens=3).warnings[0]
    assert transformer("ab", tokens=3).warnings == []


# length


def test_a_text_longer_than_training_gets_a_warning():
    model = made("transformer", max_length=12, minimum=30)  # so that no text ends earlier
    [warning] = model("abc", tokens=20).warnings
    assert warning == "longer than any row in training (23 tokens; data.max_length=12)"
    assert model("abc", tokens=9).warnings == []
    assert made("transformer", minimum=30)("abc", tokens=20).warnings == []


@pytest.mark.parametrize("width", [1, 3])
def test_a_text_ends_with_the_learned_positions(width):
    model = made(LEARNED | {"max_positions": 20}, width=width, minimum=30)
    for prompt in ("abc", "", "abcdefghijklmnopabc"):
        generation = model(prompt, tokens=100)
        written = 20 - len(prompt)
        assert len(generation.tokens) == written
        assert generation.warnings == [
            f"stopped after {written} token{'s' * (written > 1)}, at the end of the 20 learned "
            f"positions (model.max_positions)"
        ]
    assert model("abc", tokens=17).warnings == []
    assert model("abc", tokens=17).text == model("abc", tokens=100).text


def test_a_prompt_longer_than_the_learned_positions_does_not_end_the_stream():
    model = made(LEARNED | {"max_positions": 20})
    before, long, after = model(["abc", "a" * 20, "abc"], tokens=4)
    assert before.text == after.text == model("abc", tokens=4).text
    assert (long.text, long.tokens, long.finished) == ("a" * 20, [], False)
    assert "nothing written: the prompt of 20 tokens fills the 20" in long.warnings[0]


def test_one_text_is_not_a_list_of_letters(transformer):
    for method in ("generate", "scores", "bits_per_character"):
        with pytest.raises(UserError, match=rf"{method}\(\) takes a list of texts: write {method}"):
            getattr(transformer, method)("abc")


# likelihoods


def test_a_long_text_is_scored_in_rows_as_in_training():
    model = made("lstm", max_length=5)
    text = "abcdefghijkl"  # with <eos>: 13 tokens in rows of 4, 5 and 4
    ids = [BOS, *LETTERS.encode(text), EOS]
    expected = []
    for start, end in ((0, 4), (4, 9), (9, 13)):
        row = ids[start : end + 1]
        with torch.no_grad():
            logits = model.model.predict(collate([([EOS], row)]))[0]
        expected += logits.log_softmax(-1)[range(len(row) - 1), row[1:]].tolist()
    likelihood = model.score(text)
    assert likelihood.logprobs == pytest.approx(expected, abs=1e-9)
    assert likelihood.tokens == [*text, "<eos>"]
    assert likelihood.logprobs != pytest.approx(made("lstm").score(text).logprobs, abs=1e-3)
    company = [text, "", "ab", text]
    for one in model.scores(company):
        assert model.score(one.target).logprobs == pytest.approx(one.logprobs, abs=1e-9)


def test_a_score_is_the_sum_of_what_was_predicted(model):
    for text in ("abc", "", "nop a"):
        ids = [*LETTERS.encode(text), EOS]
        with torch.no_grad():
            logits = model.model.predict(collate([([EOS], [BOS, *ids])]))[0]
        expected = logits.log_softmax(-1)[range(len(ids)), ids]
        likelihood = model.score(text)
        assert likelihood.logprobs == pytest.approx(expected.tolist(), abs=1e-9)
        assert likelihood.total == pytest.approx(float(expected.sum()), abs=1e-9)
        assert likelihood.tokens == [*text, "<eos>"]
        assert likelihood.correct == (logits.argmax(-1) == torch.tensor(ids)).tolist()


def test_texts_are_scored_alike_alone_and_in_company(model):
    together = list(model.scores(PROMPTS))
    assert [one.target for one in together] == PROMPTS
    for one in together:
        assert model.score(one.target).logprobs == pytest.approx(one.logprobs, abs=1e-9)


def test_bits_per_character_by_hand(transformer):
    texts = ["abc", "", "a b"]
    nats = -sum(transformer.score(text).total for text in texts)
    characters = (3 + 1) + 1 + (3 + 1)
    expected = nats / math.log(2) / characters
    assert transformer.bits_per_character(texts) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(UserError, match="no texts"):
        transformer.bits_per_character([])


def test_unknown_tokens_have_no_bits_per_character(transformer):
    assert transformer.bits_per_character(["abc", "aZ"]) is None


def test_options_are_all_that_may_come(model):
    options = model.options("abc", 1000)
    assert len(options) == len("abcdefghijklmnop ") + 1  # and <eos>
    probabilities = [option.probability for option in options]
    assert sum(probabilities) == pytest.approx(1, abs=1e-6)
    assert probabilities == sorted(probabilities, reverse=True)
    assert options[0].text == model("abc", tokens=1).text
    assert [o.token for o in model.options("abc", 2)] == [o.token for o in options[:2]]
    assert model.options() == model.options("", 5)


# records


def test_a_model_can_be_sent_to_another_process(model):
    again = pickle.loads(pickle.dumps(model))
    assert again(PROMPTS, tokens=5) == model(PROMPTS, tokens=5)
    assert "LanguageModel(" in repr(again)


def test_a_generation_is_kept_without_its_model(transformer):
    generation = transformer("abc", tokens=5, n_best=2)
    for again in (
        pickle.loads(pickle.dumps(generation)),
        Generation.from_dict(json.loads(json.dumps(generation.as_dict()))),
    ):
        assert again == generation
        with pytest.raises(UserError, match="without its model"):
            _ = again.attention
    assert "<b><bdi>abc</bdi></b>" in generation._repr_html_()


def test_looking_at_a_text(transformer):
    record = transformer.look("abca")
    assert list(record.blocks) == ["decoder"]
    weights = record.blocks["decoder"]  # (L, H, T, S)
    assert weights.shape == (2, 2, 5, 5)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert (weights[..., ~np.tri(5, dtype=bool)] == 0).all()
    assert record.target == [*"abca", "<eos>"]
    assert record.candidates[3][0][0] in {o.token for o in transformer.options("abc", 1)}
    assert transformer("abc", tokens=3).attention.text_out == transformer("abc", tokens=3).text
