"""A language model that looks both ways: what is behind a mask, and vectors of texts."""

import math
import pickle

import numpy as np
import pytest
import torch

from regard.config import SearchConfig, build
from regard.data.batches import collate
from regard.errors import UserError
from regard.inference.masked import MaskedLanguageModel
from regard.models import build_model
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import BOS, EOS, MASK

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran"]
TOKENS = train_tokenizer("words", [" ".join(WORDS)], size=100)
LETTERS = train_tokenizer("characters", ["abcdefg "], size=100)
SIZES = {"width": 16, "ffn": 24, "heads": 2, "encoder_layers": 2}
TEXTS = ["the cat sat", "", "a mat", "the dog ran on the mat", "cat", "the cat sat"]


def made(tokenizer, max_length=0, **search):
    torch.manual_seed(5)
    config = build({"model": SIZES}).model
    model = build_model(config, tokenizer.size, tokenizer.size, objective="masked").double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    config = SearchConfig(**search)
    return MaskedLanguageModel(model.eval(), tokenizer, config, max_length=max_length)


@pytest.fixture(scope="module")
def model():
    return made(TOKENS)


@pytest.fixture(scope="module")
def rows_of_four():
    """Trained on rows of four tokens, <eos> included."""
    return made(TOKENS, max_length=4)


@pytest.fixture(scope="module")
def letters():
    return made(LETTERS)


def logits_of(model, ids):
    with torch.no_grad():
        return model.model(torch.tensor([[*ids, EOS]]), torch.tensor([len(ids) + 1]))[0]


# filling


def test_a_mask_is_filled_with_the_likeliest_token(model):
    filling = model("the <mask> sat", n=3)
    ids = [*TOKENS.encode("the"), MASK, *TOKENS.encode("sat")]
    logits = logits_of(model, ids)[1].masked_fill(model.suppress, -torch.inf)
    best = logits.softmax(-1).topk(3)
    assert [option.token for option in filling.options[0]] == TOKENS.token_texts(
        best.indices.tolist()
    )
    found = [option.probability for option in filling.options[0]]
    assert found == pytest.approx(best.values.tolist(), abs=1e-9)
    assert filling.text == filling.options[0][0].text
    assert filling.text == f"the {filling.options[0][0].token} sat"
    assert str(filling) == filling.text
    assert filling.source == "the <mask> sat"


def test_every_word_may_be_behind_a_mask_and_nothing_else(model):
    [options] = model.fill("the <mask> sat", n=1000).options
    assert {option.token for option in options} == set(WORDS)
    assert sum(option.probability for option in options) == pytest.approx(1, abs=1e-9)


def test_masks_of_a_long_text_are_filled_in_its_rows(model, rows_of_four):
    long = rows_of_four.fill("the <mask> sat on <mask> mat and <mask>", n=3)
    rows = [model.fill(text, n=3) for text in ("the <mask> sat", "on <mask>", "mat and <mask>")]
    assert long.text == " ".join(row.text for row in rows)
    for ours, row in zip(long.options, rows, strict=True):
        [theirs] = row.options
        assert [option.token for option in ours] == [option.token for option in theirs]
        expected = [option.probability for option in theirs]
        assert [option.probability for option in ours] == pytest.approx(expected, abs=1e-9)


def test_several_masks_are_filled_each_by_itself(model):
    filling = model("<mask> cat <mask> on <mask>", n=2)
    assert len(filling.options) == 3
    words = filling.text.split()
    assert words[1] == "cat"
    assert words[3] == "on"
    assert [words[place] for place in (0, 2, 4)] == [row[0].token for row in filling.options]

    # The second choice of one mask, beside the first of the others.
    other = filling.options[1][1]
    assert other.text.split() == [*words[:2], other.token, *words[3:]]


def test_masks_of_letters(letters):
    filling = letters("ab<mask><mask> c")
    assert len(filling.text) == 6
    assert (filling.text[:2], filling.text[4:]) == ("ab", " c")
    assert all(len(row) == 5 for row in filling.options)


def test_a_mask_alone_is_a_text(model):
    assert model("<mask>").text in WORDS


def test_a_text_without_a_mask_is_refused(model):
    with pytest.raises(UserError, match="'the cat' has no <mask>: write it where"):
        model("the cat")
    with pytest.raises(UserError, match="no <mask>"):
        model("")
    with pytest.raises(UserError, match="n="):
        model("<mask>", n=0)


def test_a_list_gives_a_list(model):
    texts = ["the <mask>", "a <mask> sat"]
    assert model(texts) == [model(text) for text in texts]
    assert model([]) == []


def test_an_unknown_word_is_told(model):
    assert "not in the vocabulary" in model("zebra <mask>").warnings[0]
    assert model("cat <mask>").warnings == []


# likelihoods


def test_a_score_predicts_each_token_from_all_others(model):
    text = "the cat sat on the mat"
    ids = TOKENS.encode(text)
    expected = []
    for place, id in enumerate(ids):
        without = [*ids[:place], MASK, *ids[place + 1 :]]
        expected.append(float(logits_of(model, without)[place].log_softmax(-1)[id]))
    likelihood = model.score(text)
    assert likelihood.logprobs == pytest.approx(expected, abs=1e-9)
    assert likelihood.tokens == text.split()
    assert likelihood.total == pytest.approx(sum(expected), abs=1e-9)


def test_scores_need_no_more_room_than_is_there(model):
    texts = [text for text in TEXTS if text]
    narrow = list(made(TOKENS, batch_tokens=5).scores(texts))
    for ours, theirs in zip(narrow, model.scores(texts), strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-9)
        assert ours.target == theirs.target


def test_a_mask_is_context_and_is_not_predicted(model):
    likelihood = model.score("the <mask> sat")
    assert likelihood.tokens == ["the", "sat"]
    the, sat = TOKENS.encode("the sat")
    logits = logits_of(model, [MASK, MASK, sat])[0]
    assert likelihood.logprobs[0] == pytest.approx(float(logits.log_softmax(-1)[the]), abs=1e-9)
    assert len(likelihood.predicted) == len(likelihood.correct) == 2


def test_a_long_text_is_scored_in_rows_as_in_training(model, rows_of_four):
    rows = ["the cat sat", "on the", "mat and ran"]
    likelihood = rows_of_four.score(" ".join(rows))
    alone = [model.score(row) for row in rows]
    assert likelihood.tokens == " ".join(rows).split()
    expected = [logprob for one in alone for logprob in one.logprobs]
    assert likelihood.logprobs == pytest.approx(expected, abs=1e-9)


def test_what_a_long_text_needs_grows_with_its_length_and_not_its_square():
    model = made(TOKENS, max_length=8, batch_tokens=64)
    read = []
    model.model.encoder.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].shape))
    model.score("the cat sat on the mat and ran " * 20)
    assert max(rows * length for rows, length in read) <= 64
    assert sum(rows * length for rows, length in read) <= 160 * 8


def test_an_empty_text_has_no_score(model):
    for text in ("", "<mask>"):
        with pytest.raises(UserError, match=f"'{text}' has no tokens to predict"):
            model.score(text)


def test_an_empty_text_does_not_end_the_stream(model):
    texts = ["cat", "", "<mask>", "cat"]
    first, *empty, last = model.scores(texts)
    assert first == last
    assert [one.target for one in empty] == ["", "<mask>"]
    for one in empty:
        assert (one.tokens, one.total) == ([], 0)
        assert math.isnan(one.per_token)
        assert math.isnan(one.accuracy)
        assert one.as_dict()["per_token"] is None
        assert type(one).from_dict(one.as_dict()) == one


def test_one_text_is_not_a_list_of_letters(model):
    with pytest.raises(
        UserError, match=r"scores\(\) takes a list of texts: write scores\(\[text\]\)"
    ):
        model.scores("cat")


# vectors


def test_a_vector_is_the_mean_of_the_states(model):
    ids = TOKENS.encode("the cat sat")
    batch = collate([([*ids, EOS], [BOS, EOS])])
    with torch.no_grad():
        states = model.model.encoder(batch.source, batch.source_lengths).states[0]
    [vector] = model.embed(["the cat sat"])
    np.testing.assert_allclose(vector, states[:-1].mean(0).numpy(), atol=1e-6)


def test_a_vector_alone_is_that_in_company(model):
    together = model.embed(TEXTS)
    assert together.shape == (len(TEXTS), 16)
    assert np.isfinite(together).all()
    narrow = made(TOKENS, batch_tokens=4).embed(TEXTS)
    np.testing.assert_allclose(narrow, together, atol=1e-6)
    for text, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(model.embed([text])[0], vector, atol=1e-6)


def test_the_vector_of_a_long_text_is_the_mean_over_its_rows(model, rows_of_four):
    rows = ["the cat sat", "on the", "mat and ran"]
    three, two, last = model.embed(rows)
    expected = (3 * three + 2 * two + 3 * last) / 8
    texts = ["cat", " ".join(rows), "", "dog"]
    vectors = rows_of_four.embed(texts)
    np.testing.assert_allclose(vectors[1], expected, atol=1e-6)
    np.testing.assert_allclose(vectors[[0, 2, 3]], model.embed(["cat", "", "dog"]), atol=1e-6)
    assert vectors.dtype == np.float32


def test_what_is_no_list_of_texts_is_refused(model):
    with pytest.raises(UserError, match=r"embed\(\[text\]\)"):
        model.embed("the cat")
    with pytest.raises(UserError, match="no texts"):
        model.embed([])
    with pytest.raises(UserError, match="nearest: there are no texts"):
        model.nearest("the cat", [])


def test_the_nearest_text_is_the_same_one(model):
    near = model.nearest("the cat sat", TEXTS, 3)
    assert [one.text for one in near[:2]] == ["the cat sat", "the cat sat"]
    similarities = [one.similarity for one in near]
    assert similarities[:2] == pytest.approx([1, 1], abs=1e-5)
    assert similarities == sorted(similarities, reverse=True)
    ours, theirs = model.embed([near[2].text, "the cat sat"])
    cosine = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
    assert similarities[2] == pytest.approx(cosine, abs=1e-5)
    assert len(model.nearest("cat", TEXTS, 100)) == len(TEXTS)


# the model itself


def test_it_can_be_sent_to_another_process(model):
    again = pickle.loads(pickle.dumps(model))
    assert again("the <mask> sat") == model("the <mask> sat")
    assert "MaskedLanguageModel(" in repr(again)


def test_looking_at_a_text_with_a_mask(model):
    record = model.look("the <mask> sat")
    assert list(record.blocks) == ["encoder"]
    weights = record.blocks["encoder"]  # (L, H, T, S)
    assert weights.shape == (2, 2, 4, 4)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert (weights > 0).all()
    assert record.source[0] == "the"
    assert record.source[-1] == "<eos>"


def test_thousands_of_masks_are_refused(model):
    with pytest.raises(UserError, match="501 times <mask>: at most 500"):
        model.fill("<mask> " * 501)
