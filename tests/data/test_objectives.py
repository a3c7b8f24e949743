"""What is asked of a text: which tokens are masked, by what they are replaced, and how often."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config import TrainConfig
from regard.data.objectives import TRANSLATE, Denoise, Masked, objective_of
from regard.errors import UserError
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import BOS, EOS, MASK, PAD

FIRST, SIZE = 10, 1010
few = settings(max_examples=60, deadline=None)
texts = st.lists(st.integers(FIRST, SIZE - 1), min_size=1, max_size=40)
rates = st.floats(0, 0.99)
seeds = st.integers(0, 2**32)


def row_of(ids):
    """A text as a corpus has it."""
    return np.array([EOS], np.int32), np.array([BOS, *ids, EOS], np.int32)


def in_corpus(row):
    """The two lengths that a corpus keeps of a row."""
    return np.array([len(row[0])]), np.array([len(row[1]) - 1])


def counts_agree(objective, row, new):
    source, target = new
    predicted = int((target[1:] != PAD).sum())
    assert objective.count_predicted(in_corpus(row)[1]).tolist() == [predicted]
    assert objective.count_read(*in_corpus(row)).tolist() == [len(source)]


# masked


def test_of_ten_tokens_eight_are_masked_one_is_random_and_one_stays():
    ids = np.random.default_rng(1).integers(FIRST, SIZE, 40_000)
    source, target = Masked(0.15, FIRST, SIZE).row(row_of(ids), seed=3)
    asked = target[1:-1] != PAD
    assert asked.sum() == 6000
    there = source[:-1][asked]
    shares = [(there == MASK).mean(), (there == ids[asked]).mean()]
    assert shares == pytest.approx([0.8, 0.1], abs=0.02)
    others = there[(there != MASK) & (there != ids[asked])]
    assert len(others) / 6000 == pytest.approx(0.1, abs=0.02)
    assert len(set(others.tolist())) > 300  # of a vocabulary of 1,000
    assert others.min() >= FIRST
    assert others.max() < SIZE


@few
@given(texts, rates, seeds)
def test_only_what_is_asked_for_may_change(ids, rate, seed):
    objective = Masked(rate, FIRST, SIZE)
    row = row_of(ids)
    source, target = objective.row(row, seed)
    assert target[0] == BOS
    assert len(target) == len(source) + 1
    assert source[-1] == EOS
    assert target[-1] == PAD
    asked = target[1:-1] != PAD
    assert (target[1:-1][asked] == np.array(ids)[asked]).all()
    assert (source[:-1][~asked] == np.array(ids)[~asked]).all()
    assert asked.sum() == max(1, round(rate * len(ids)))
    counts_agree(objective, row, (source, target))


@pytest.mark.parametrize("objective", [Masked(0.3, FIRST, SIZE), Denoise(0.3, 3.0)], ids=["m", "d"])
def test_one_seed_one_noise(objective):
    row = row_of(range(FIRST, FIRST + 30))
    first = objective.row(row, 5)
    for ours, theirs in zip(first, objective.row(row, 5), strict=True):
        assert np.array_equal(ours, theirs)
    others = [objective.row(row, seed)[0].tolist() for seed in range(20)]
    assert len(set(map(tuple, others))) > 15
    assert np.array_equal(row[1], row_of(range(FIRST, FIRST + 30))[1])  # the corpus' own


def test_every_place_is_asked_for_equally_often():
    objective = Masked(0.2, FIRST, SIZE)
    row = row_of(range(FIRST, FIRST + 10))
    asked = np.mean([objective.row(row, seed)[1][1:-1] != PAD for seed in range(3000)], axis=0)
    assert asked == pytest.approx([0.2] * 10, abs=0.04)


# denoise


@few
@given(texts, rates, st.floats(1, 10), seeds)
def test_kept_tokens_stay_in_order_and_each_span_is_one_mask(ids, rate, span, seed):
    ids = [FIRST + place for place in range(len(ids))]  # all different
    objective = Denoise(rate, span)
    row = row_of(ids)
    source, target = objective.row(row, seed)
    assert np.array_equal(target, row[1])
    assert source[-1] == EOS
    noisy = source[:-1].tolist()
    kept = [id for id in noisy if id != MASK]
    assert kept == sorted(kept)
    assert set(kept) <= set(ids)
    assert len(ids) - len(kept) == round(rate * len(ids))
    assert all(pair != (MASK, MASK) for pair in itertools.pairwise(noisy))

    # Each <mask> stands where something is missing.
    for place, id in enumerate(noisy):
        if id == MASK:
            before = noisy[place - 1] if place else FIRST - 1
            after = noisy[place + 1] if place + 1 < len(noisy) else FIRST + len(ids)
            assert after - before > 1
    counts_agree(objective, row, (source, target))


@few
@given(texts, seeds)
def test_without_noise_a_text_is_to_be_copied(ids, seed):
    source, target = Denoise(0.0, 3.0).row(row_of(ids), seed)
    assert source.tolist() == [*ids, EOS]
    assert target.tolist() == [BOS, *ids, EOS]


def test_spans_are_as_long_as_was_said():
    ids = np.arange(FIRST, FIRST + 900)
    noisy = Denoise(0.3, 5.0).corrupt(ids, np.random.default_rng(2))
    assert (noisy == MASK).sum() == 54  # 270 tokens in spans of 5
    lengths = np.diff(noisy[noisy != MASK])
    assert lengths.max() > 7
    assert (lengths == 2).any()  # a single token


def test_spans_may_begin_and_end_a_text():
    ids = np.arange(FIRST, FIRST + 6)
    noisy = [Denoise(0.3, 2.0).corrupt(ids, np.random.default_rng(s)).tolist() for s in range(60)]
    assert any(text[0] == MASK for text in noisy)
    assert any(text[-1] == MASK for text in noisy)


# settings


def test_the_objective_of_settings():
    letters = train_tokenizer("characters", ["abc"], size=100)
    for name in ("translate", "causal"):
        assert objective_of(TrainConfig(objective=name), letters) is TRANSLATE
    masked = objective_of(TrainConfig(objective="masked", mask_rate=0.3), letters)
    assert masked == Masked(0.3, letters.first, letters.text_size)
    denoise = objective_of(TrainConfig(objective="denoise", mask_span=2.0), letters)
    assert denoise == Denoise(0.15, 2.0)


def test_a_vocabulary_without_a_mask_is_refused():
    letters = train_tokenizer("characters", ["abc"], size=100, reserved=0)
    with pytest.raises(UserError, match=r"text\.reserved=1"):
        objective_of(TrainConfig(objective="masked"), letters)
