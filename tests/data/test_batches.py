"""Corpora on disk and batches from them: nothing lost, nothing cut, the same whatever was asked
before.
"""

import json
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from regard.data.batches import Batches, collate
from regard.data.corpus import Corpus, encode
from regard.data.pairs import Pair, Skipped
from regard.errors import UserError
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import BOS, EOS, PAD

BYTES = train_tokenizer("bytes", [], size=0)
laws = settings(max_examples=60, deadline=None)


class Lengths:
    """All that the plan of batches needs of a corpus."""

    def __init__(self, sources, targets) -> None:
        self.source_lengths = np.asarray(sources, np.int32)
        self.target_lengths = np.asarray(targets, np.int32)

    def __len__(self) -> int:
        return len(self.source_lengths)

    def __getitem__(self, i: int):
        return [5] * self.source_lengths[i], [BOS] + [6] * self.target_lengths[i]


lengths = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=200)
budgets = st.one_of(
    st.fixed_dictionaries({"tokens": st.integers(1, 2_000), "at_random": st.booleans()}),
    st.fixed_dictionaries({"sentences": st.integers(1, 50), "at_random": st.booleans()}),
)


@laws
@given(sizes=lengths, budget=budgets, seed=st.integers(0, 99))
def test_each_example_once_an_epoch(sizes, budget: dict[str, int], seed: int) -> None:
    batches = Batches(Lengths(*zip(*sizes)), **budget, seed=seed)
    for epoch in range(2):
        steps = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        seen = np.concatenate([batches.indices(step) for step in steps])
        assert sorted(seen) == list(range(len(sizes)))
    assert sorted(np.concatenate(list(batches.ordered()))) == list(range(len(sizes)))


@laws
@given(
    sizes=lengths,
    budget=budgets,
    seed=st.integers(0, 99),
    steps=st.lists(st.integers(0, 500), max_size=8),
)
def test_a_batch_is_a_pure_function(
    sizes, budget: dict[str, int], seed: int, steps: list[int]
) -> None:
    corpus = Lengths(*zip(*sizes))
    used = Batches(corpus, **budget, seed=seed)
    for step in steps:
        fresh = Batches(corpus, **budget, seed=seed).indices(step)
        assert len(fresh)
        np.testing.assert_array_equal(used.indices(step), fresh)


@laws
@given(
    sizes=lengths,
    tokens=st.integers(1, 2_000),
    sentences=st.integers(1, 50),
    at_random=st.booleans(),
)
def test_budgets_are_kept(sizes, tokens: int, sentences: int, at_random: bool) -> None:
    corpus = Lengths(*zip(*sizes))
    batches = Batches(corpus, tokens=tokens, seed=1, at_random=at_random)
    for indices in [
        *(batches.indices(step) for step in range(batches.per_epoch)),
        *batches.ordered(),
    ]:
        longest = max(max(sizes[i]) for i in indices)
        assert len(indices) == 1 or len(indices) * longest <= tokens
    batches = Batches(corpus, sentences=sentences, seed=1, at_random=at_random)
    assert batches.per_epoch == -(-len(sizes) // sentences)
    assert all(len(batches.indices(step)) <= sentences for step in range(batches.per_epoch))


def test_order_differs_by_epoch_and_seed_and_wastes_little() -> None:
    rng = np.random.default_rng(0)
    corpus = Lengths(rng.integers(1, 60, 5_000), rng.integers(1, 60, 5_000))
    for budget in ({"tokens": 2_000}, {"sentences": 32}):
        batches = Batches(corpus, **budget, seed=1)
        assert not np.array_equal(batches.indices(0), batches.indices(batches.per_epoch))
        assert not np.array_equal(batches.indices(0), Batches(corpus, **budget, seed=2).indices(0))
        longer = np.maximum(corpus.source_lengths, corpus.target_lengths)
        padded = sum(
            longer[i].max() * len(i) for i in map(batches.indices, range(batches.per_epoch))
        )
        assert longer.sum() / padded > 0.9
        firsts = [longer[batches.indices(step)].mean() for step in range(50)]
        assert len(firsts) == 50
        assert firsts != sorted(firsts)


@pytest.mark.parametrize("budget", [{"tokens": 2_000}, {"sentences": 32}])
def test_batches_at_random_mix_all_lengths(budget: dict[str, int]) -> None:
    rng = np.random.default_rng(0)
    corpus = Lengths(rng.integers(1, 60, 5_000), rng.integers(1, 60, 5_000))
    longer = np.maximum(corpus.source_lengths, corpus.target_lengths)
    spread = {}
    for at_random in (False, True):
        batches = Batches(corpus, **budget, seed=1, at_random=at_random)
        indices = [batches.indices(step) for step in range(batches.per_epoch)]
        spread[at_random] = np.mean([longer[i].std() for i in indices])

        # Another seed or epoch puts other pairs together.
        first = set(indices[0])
        for step in range(batches.per_epoch, 2 * batches.per_epoch):
            shared = len(first.intersection(batches.indices(step)))
            assert shared < len(first) / 2
        assert not np.array_equal(
            indices[0], Batches(corpus, **budget, seed=2, at_random=at_random).indices(0)
        )
    assert spread[False] < 0.1 * longer.std()
    assert spread[True] > 0.9 * longer.std()


def test_batches_at_random_fill_the_budget() -> None:
    """One long pair costs its own batch, not all of them."""
    rng = np.random.default_rng(0)
    lengths = [*rng.integers(5, 15, 5_000), 500]
    corpus = Lengths(lengths, lengths)
    batches = Batches(corpus, tokens=1_000, seed=1, at_random=True)
    used = []
    for step in range(batches.per_epoch):
        indices = batches.indices(step)
        used.append(len(indices) * max(lengths[i] for i in indices))
    assert np.mean(used) > 900


@pytest.mark.parametrize("at_random", [False, True])
@pytest.mark.parametrize("budget", [{"tokens": 4_096}, {"sentences": 64}])
def test_memory_is_a_few_bytes_a_pair(
    tmp_path: Path, budget: dict[str, int], at_random: bool
) -> None:
    n = 1_000_000
    np.full((n, 2), 9, "<i4").tofile(tmp_path / "lengths.bin")
    (tmp_path / "ids.bin").touch()
    os.truncate(tmp_path / "ids.bin", 2 * 19 * n)
    (tmp_path / "corpus.json").write_text(
        json.dumps({"format": 1, "pairs": n, "dtype": "<u2", "digest": ""})
    )
    tracemalloc.start()
    try:
        batches = Batches(Corpus.open(tmp_path), **budget, seed=1, at_random=at_random)
        assert batches(0).size == (batches.tokens or 64 * 9) // 9
        batches(batches.per_epoch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Lengths at random: a second array while an epoch begins.
    assert peak < (12 if at_random and batches.tokens else 8) * n


def test_pairs_vary_by_epoch_and_not_by_chance(tmp_path: Path) -> None:
    def vary(source, target, seed: int):
        seeds.append(seed)
        return source, [*target[:-1], 300 + seed % 99, EOS]

    corpus, seeds = _corpus(tmp_path / "train"), list[int]()
    plain, used, fresh = (
        Batches(corpus, tokens=500, seed=3, vary=with_it) for with_it in (None, vary, vary)
    )
    before = [used(step) for step in (4, 0, used.per_epoch + 1)]
    assert torch.equal(used(4).target, before[0].target)
    assert torch.equal(fresh(4).target, before[0].target)
    assert torch.equal(used(4).source, plain(4).source)
    assert used(4).tokens == plain(4).tokens + plain(4).size
    seeds.clear()
    for step in range(2 * used.per_epoch):
        used(step)
    assert (
        len(set(seeds)) == len(seeds) == 2 * len(corpus)
    )  # a pair's own, and another in another epoch
    assert Batches(corpus, tokens=500, seed=4, vary=vary)(0).size
    assert seeds[-1] not in seeds[: 2 * len(corpus)]  # nor that of another run
    assert torch.equal(next(used.in_order()).target, next(plain.in_order()).target)


def test_exactly_one_budget() -> None:
    corpus = Lengths([1], [1])
    for budget in ({}, {"tokens": 5, "sentences": 5}, {"tokens": 0}, {"sentences": -1}):
        with pytest.raises(ValueError):
            Batches(corpus, **budget, seed=0)


texts = st.text(st.sampled_from("abcé😀 "), min_size=1, max_size=12)
some_pairs = st.lists(
    st.tuples(texts, st.lists(texts, min_size=1, max_size=3)), min_size=1, max_size=20
)


@settings(max_examples=40, deadline=None)
@given(data=some_pairs, max_length=st.integers(2, 40))
def test_a_corpus_holds_what_fits_whole(tmp_path_factory, data, max_length: int) -> None:
    path = tmp_path_factory.mktemp("data") / "train"
    rows, long = [], set()
    for line, (source, targets) in enumerate(data, 1):
        for target in targets:
            row = [*BYTES.encode(source), EOS], [BOS, *BYTES.encode(target), EOS]
            if max(len(row[0]), len(row[1]) - 1) <= max_length:
                rows.append(row)
            else:
                long.add(line)
    pairs = [Pair(source, tuple(targets), line) for line, (source, targets) in enumerate(data, 1)]
    skipped = Skipped()
    if not rows:
        with pytest.raises(UserError, match="every pair has more than"):
            encode(pairs, BYTES, BYTES, path, max_length=max_length, skipped=skipped)
        assert not list(path.parent.iterdir())
        return
    corpus = encode(pairs, BYTES, BYTES, path, max_length=max_length, skipped=skipped)
    assert len(corpus) == len(rows)
    assert [(list(source), list(target)) for source, target in corpus] == rows
    assert list(corpus.source_lengths) == [len(source) for source, _ in rows]
    assert list(corpus.target_lengths) == [len(target) - 1 for _, target in rows]
    assert len(skipped) == len(long)
    assert [entry.name for entry in path.parent.iterdir()] == ["train"]


def _corpus(path: Path, last: str = "z") -> Corpus:
    pairs = (Pair("ab" * (i % 7), ("c" * (i % 5), last), i) for i in range(5_000))
    return encode(pairs, BYTES, BYTES, path, max_length=64, skipped=Skipped())


def test_the_digest_tells_contents_apart(tmp_path: Path) -> None:
    one, same, other = (
        _corpus(tmp_path / "a"),
        _corpus(tmp_path / "b"),
        _corpus(tmp_path / "c", "y"),
    )
    assert one.digest == same.digest == Corpus.open(tmp_path / "a").digest != other.digest
    assert _corpus(tmp_path / "a", "y").digest == other.digest  # written over
    assert pickle.loads(pickle.dumps(one)).digest == other.digest


def test_large_vocabularies_need_wider_ids(tmp_path: Path) -> None:
    words = [str(i) for i in range(70_000)]
    tokenizer = train_tokenizer("words", words, size=100_000)
    pairs = [Pair(words[-1], (words[5],), 1)]
    corpus = encode(
        pairs, tokenizer, tokenizer, tmp_path / "train", max_length=9, skipped=Skipped()
    )
    assert tokenizer.decode(corpus[0][0]) == words[-1]
    assert corpus.dtype == "<i4"


def test_damaged_corpora_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not an encoded corpus"):
        Corpus.open(tmp_path)
    _corpus(tmp_path / "a")
    ids = tmp_path / "a" / "ids.bin"
    ids.write_bytes(ids.read_bytes()[:-2])
    with pytest.raises(UserError, match="damaged"):
        Corpus.open(tmp_path / "a")


@laws
@given(data=some_pairs)
def test_collate_pads_and_owns_the_shift(data) -> None:
    rows = [
        ([*BYTES.encode(source), EOS], [BOS, *BYTES.encode(targets[0]), EOS])
        for source, targets in data
    ]
    batch = collate(rows)
    assert batch.size == len(rows)
    assert batch.tokens == int(batch.target_lengths.sum()) == int((batch.target_out != PAD).sum())
    assert batch.source_tokens == int((batch.source != PAD).sum())
    assert batch.source.dtype == batch.target.dtype == batch.source_lengths.dtype == torch.long
    for i, (source, target) in enumerate(rows):
        assert batch.source[i, : len(source)].tolist() == source
        assert batch.target_in[i, : len(target) - 1].tolist() == target[:-1]
        assert batch.target_out[i, : len(target) - 1].tolist() == target[1:]
        assert not batch.source[i, len(source) :].any()
        assert not batch.target[i, len(target) :].any()
    assert torch.equal(batch.to("cpu").source, batch.source)


def test_batches_of_a_corpus_and_of_torchs_loader(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path / "train")
    batches = Batches(corpus, tokens=500, seed=3)
    source, target = corpus[batches.indices(4)[0]]
    batch = batches(4)
    assert batch.source[0, : batch.source_lengths[0]].tolist() == source.tolist()
    assert batch.target[0, : batch.target_lengths[0] + 1].tolist() == target.tolist()
    assert sum(batch.size for batch in batches.in_order()) == len(corpus)
    assert next(batches.in_order()).source.shape[1] == corpus.source_lengths.max()
    loader = DataLoader(corpus, batch_size=100, collate_fn=collate)
    assert sum(batch.tokens for batch in loader) == corpus.target_lengths.sum()


def test_only_a_gpu_is_copied_to_without_waiting(monkeypatch):
    """A copy to the CPU that is not waited for could be read before it is there."""
    waited = []

    def to(tensor, device, non_blocking=False):
        waited.append(not non_blocking)
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    batch = collate([([5, 2], [1, 6, 2])])
    batch.to("cpu")
    assert waited == [True] * 4
    batch.to("cuda")
    assert waited[4:] == [False] * 4
