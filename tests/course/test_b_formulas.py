"""B. Learning to calculate, from formulas to the network's shapes: B1, B4 to B11, B13, B15, B17.

The rows of this group share one text (generator, tokens, padding, masks, `y_prev`, shapes …); each
test says which part of it it takes its row for.
"""

import random

import pytest
import torch

from regard.config import TextConfig, TransformerConfig
from regard.data.batches import Batches, collate
from regard.data.corpus import encode
from regard.data.pairs import Skipped
from regard.data.splits import open_data
from regard.models import build_model
from regard.nn import Mask, masked_softmax, sinusoids
from regard.presets import preset
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import BOS, EOS, PAD, UNK

SIZE = 16


def course_formulas(count, seed, complexity=3):
    """The course's generator, written out."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        first = rng.randint(-(10**complexity), 10**complexity)
        second = rng.randint(0, 10**complexity)
        if rng.choice([False, True]):
            pairs.append((f"{first}+{second}", str(first + second)))
        else:
            pairs.append((f"{first}-{second}", str(first - second)))
    return pairs


@pytest.fixture(scope="module")
def splits():
    return open_data("arithmetic", options=preset("course")["data"]["options"])


@pytest.fixture(scope="module")
def formulas(splits):
    """All training pairs."""
    return [(pair.source, pair.targets[0]) for pair in splits.train]


@pytest.fixture(scope="module")
def tokenizer(formulas):
    text = TextConfig(**preset("course")["text"])
    texts = [text for pair in formulas[:500] for text in pair]
    return train_tokenizer(text.tokenizer, texts, size=text.size, reserved=text.reserved)


def rows_of(pairs, tokenizer):
    """Pairs of texts as rows of ids, such as a corpus holds."""
    return [
        ([*tokenizer.encode(source), EOS], [BOS, *tokenizer.encode(target), EOS])
        for source, target in pairs
    ]


@pytest.fixture(scope="module")
def corpus(splits, tokenizer, tmp_path_factory):
    """All training pairs as ids."""
    folder = tmp_path_factory.mktemp("course") / "train"
    return encode(splits.train, tokenizer, tokenizer, folder, max_length=64, skipped=Skipped())


def network(**settings):
    course = {**preset("course")["model"], **settings}
    return build_model(TransformerConfig(**course), SIZE, SIZE).eval()


def test_b1_all_15_000_formulas_are_the_courses(splits, formulas):
    """10,000 with seed 123456 to train, 5,000 with seed 123457 to validate."""
    assert formulas[:2] == [("649+864", "1513"), ("-940-819", "-1759")]
    assert formulas == course_formulas(10_000, seed=123456)
    dev = [(pair.source, pair.targets[0]) for pair in splits.dev]
    assert dev == course_formulas(5_000, seed=123457)


def test_b4_a_token_is_a_character(tokenizer):
    """A formula becomes the ids of its characters, and the ids the formula again."""
    ids = tokenizer.encode("-940-819")
    assert len(ids) == 8
    assert ids[0] == ids[4]
    assert tokenizer.token_texts(ids) == list("-940-819")
    assert tokenizer.decode(ids) == "-940-819"


def test_b5_special_tokens(tokenizer):
    """<pad>, <bos>, <eos> and <unk> come first; decoding leaves the first three out."""
    specials = tokenizer.token_texts([PAD, BOS, EOS, UNK])
    assert specials == ["<pad>", "<bos>", "<eos>", "<unk>"]
    assert {PAD, BOS, EOS, UNK} == {0, 1, 2, 3}
    ids = [BOS, *tokenizer.encode("12"), EOS, PAD, PAD]
    assert tokenizer.decode(ids) == "12"
    assert tokenizer.encode("1x2")[1] == UNK


def test_b6_every_answer_keeps_its_end(corpus, formulas):
    """No <eos> is lost to a length limit, also not that of -1759, the longest kind of answer."""
    longest = max(len(target) for _, target in formulas)
    assert longest == len("-1759")
    assert len(corpus) == len(formulas)
    assert max(corpus.target_lengths) == longest + 1
    for i in range(len(corpus)):
        source, target = corpus[i]
        assert source[-1] == EOS
        assert target[0] == BOS
        assert target[-1] == EOS


def test_b7_padding(tokenizer):
    """Shorter rows are filled up with <pad>, and their lengths are told."""
    batch = collate(rows_of([("1+2", "3"), ("649+864", "1513")], tokenizer))
    assert batch.source.shape == (2, 8)
    assert batch.source_lengths.tolist() == [4, 8]
    assert batch.source[0, 4:].eq(PAD).all()
    assert batch.source.ne(PAD).sum(-1).tolist() == [4, 8]
    assert batch.target_lengths.tolist() == [2, 5]
    assert batch.target_out.ne(PAD).sum(-1).tolist() == [2, 5]


def test_b8_the_padding_mask(tokenizer):
    """True where a real token stands: nobody looks at padding, at any query."""
    batch = collate(rows_of([("1+2", "3"), ("649+864", "1513")], tokenizer))
    mask = Mask(key_lengths=batch.source_lengths).dense(8, 8)
    assert torch.equal(mask, batch.source.ne(PAD)[:, None, None].expand(2, 1, 8, 8))
    weights = masked_softmax(torch.randn(2, 4, 8, 8), mask)
    assert weights[0, :, :, 4:].eq(0).all()
    assert weights[1].gt(0).all()


def test_b9_the_mask_of_the_future():
    """Query t sees keys up to t: a lower triangle, whose diagonal is seen."""
    mask = Mask(causal=True).dense(6, 6)
    assert torch.equal(mask[0, 0], torch.ones(6, 6, dtype=torch.bool).tril())
    theirs = torch.nn.Transformer.generate_square_subsequent_mask(6)
    assert torch.equal(~mask[0, 0], theirs.isinf())


def test_b10_y_prev_is_the_answer_a_token_later(tokenizer):
    """The decoder reads <bos> and the answer, and predicts the answer and <eos>."""
    batch = collate(rows_of([("649+864", "1513"), ("1+2", "3")], tokenizer))
    answer = tokenizer.encode("1513")
    assert batch.target_in[0].tolist() == [BOS, *answer]
    assert batch.target_out[0].tolist() == [*answer, EOS]
    short = tokenizer.encode("3")
    assert batch.target_in[1].tolist() == [BOS, *short, EOS, PAD, PAD]
    assert batch.target_out[1].tolist() == [*short, EOS, PAD, PAD, PAD]


def test_b11_batches_of_125(corpus):
    """80 batches an epoch, each formula once, all of them tensors of ids and lengths."""
    batches = Batches(corpus, sentences=125, seed=1)
    assert batches.per_epoch == 80
    seen = torch.cat([torch.tensor(batches.indices(step)) for step in range(80)])
    assert torch.equal(seen.sort().values, torch.arange(10_000))
    for step in (0, 79):
        batch = batches(step)
        assert batch.size == 125
        assert batch.source.shape == (125, batch.source_lengths.max())
        assert batch.target.shape == (125, batch.target_lengths.max() + 1)
        assert batch.source.dtype == torch.int64
        assert int(batch.source.max()) < SIZE


def test_b13_one_embedding_for_question_and_answer(close):
    """Ids become rows of one table of 16 × 64, not scaled."""
    model = network()
    table = model.encoder.embedding
    assert table is model.decoder.embedding
    assert table.weight.shape == (SIZE, 64)
    ids = torch.tensor([[5, 6, EOS]])
    close(table(ids), table.weight[ids])


def test_b15_sinusoids_or_none(close):
    """What the first block reads is the embedding plus the sinusoids, or the embedding alone."""
    ids = torch.tensor([[5, 5, 6, EOS]])
    lengths = torch.tensor([4])
    seen = {}
    for kind in ("sinusoidal", "none"):
        torch.manual_seed(1)
        model = network(position=kind)
        block = model.encoder.blocks[0]
        block.register_forward_pre_hook(lambda _, inputs, kind=kind: seen.update({kind: inputs[0]}))
        model.encoder(ids, lengths)

    embedded = model.encoder.embedding(ids)[0]
    close(seen["none"], embedded)
    waves = sinusoids(torch.arange(4), 64).to(torch.float64)
    close(seen["sinusoidal"], embedded + waves)


def test_b17_shapes(corpus):
    """(B, S) and (B, T) in; a memory of (B, S, 64) between; a logit for each of 16 tokens out."""
    model = network()
    batch = collate([corpus[i] for i in range(125)])
    memory = model.encoder(batch.source, batch.source_lengths)
    assert memory.states.shape == (*batch.source.shape, 64)
    logits = model(batch.source, batch.source_lengths, batch.target_in)
    assert logits.shape == (*batch.target_in.shape, SIZE)
    assert logits.shape[:2] == batch.target_out.shape
    assert logits.log_softmax(-1).exp().sum(-1).allclose(torch.ones(batch.target_in.shape))
