"""Law 12: a text has one translation, whatever stands beside it, in whatever order; for RNN and
Transformer.

In float64, where two hypotheses are as likely as each other to the last bit in no sentence that we
shall ever see.
"""

import gzip
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import regard
from regard.config import SearchConfig, build
from regard.data.batches import collate
from regard.inference.translator import Sampling, Translator
from regard.models import build_model
from regard.models.rnn import RNNState
from regard.search import Beam, Job, Rules, decode
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import EOS

TATOEBA = (
    Path(os.environ.get("REGARD_DATA", Path(__file__).parents[3] / "shared" / "data"))
    / "tatoeba-fra-eng"
)

KINDS = {
    "transformer": {
        "width": 32,
        "ffn": 64,
        "heads": 4,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "dropout": 0.0,
    },
    "relative": {
        "width": 32,
        "ffn": 64,
        "heads": 4,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "position": "relative",
    },
    "rnn": {"kind": "rnn", "width": 32, "embedding": 32, "dropout": 0.0},
}
WORDS = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "ai", "ou", "on")]
SEARCH = SearchConfig(limit_ratio=1.0, limit_extra=5)


def sentences(count: int, seed: int) -> list[str]:
    """Words drawn at random: of one, two, thirty and fifty words, and others, most of them short;
    all different.
    """
    draw = random.Random(seed)
    lengths = iter([1, 2, 30, 50])
    texts: set[str] = set()
    while len(texts) < count:
        length = next(lengths, 1 + int(draw.expovariate(1 / 7)))
        texts.add(" ".join(draw.choices(WORDS, k=length)))
    return sorted(texts)


@pytest.fixture(scope="module")
def texts(seed_of):
    return sentences(50, seed_of(5))


@pytest.fixture(scope="module", params=KINDS)
def translator(request, seed_of, shake):
    """It has learned nothing, and has opinions: what it says follows from all that it reads."""
    tokens = train_tokenizer("words", [" ".join(WORDS)], size=200)
    torch.manual_seed(seed_of(0))
    model = shake(
        build_model(build({"model": KINDS[request.param]}).model, tokens.size, tokens.size)
    ).double()
    with torch.no_grad():
        model.decoder.out.weight.mul_(2)
    return Translator(model, tokens, tokens, SEARCH)


def pairs(name: str, count: int) -> list[tuple[str, str]]:
    with gzip.open(next(TATOEBA.glob(f"{name}*")), "rt", encoding="utf-8") as lines:
        every = [tuple(line.rstrip("\n").split("\t")[:2]) for line in lines]
    return random.Random(5).sample(every, count)


@pytest.fixture(scope="module", params=["transformer", "rnn"])
def trained(request, tmp_path_factory):
    """Trained for a moment on real sentences: enough to have opinions, and so little that it is
    often in doubt.
    """
    settings = {
        "steps": 250,
        "rate": 3e-3,
        "warmup": 50,
        "evaluate_every": 250,
        "save_every": 250,
        "threads": 1,
    }
    run = regard.train(
        pairs("train", 4000),
        out=tmp_path_factory.mktemp("law") / request.param,
        model=KINDS[request.param],
        train=settings,
        text={"size": 1500},
        data={"batch_tokens": 1500},
    )
    return Translator(run.model("best").double(), run.source, run.target, run.config.search)


def answers(translator, texts, **search) -> dict[str, str]:
    translator.search = replace(translator.search, **search)
    return {result.source: result.text for result in translator.translate(texts)}


def one_text_one_translation(translator, texts, width):
    expected = answers(translator, texts, width=width, batch_tokens=4096)
    assert len(set(expected.values())) > 1  # or it would say the same whatever it reads
    mixed = random.Random(1).sample(texts, len(texts))
    assert answers(translator, mixed, batch_tokens=300) == expected
    long = " ".join(mixed[:8])  # all others are padded to it
    assert {**answers(translator, [long, *mixed], batch_tokens=10**6, split=False), long: ""} == {
        **expected,
        long: "",
    }
    for text in mixed[: len(texts) // 4]:
        assert answers(translator, [text]) == {text: expected[text]}


@pytest.mark.parametrize("width", [1, 5])
def test_one_text_one_translation(translator, texts, width):
    one_text_one_translation(translator, texts, width)


@pytest.mark.slow
@pytest.mark.skipif(
    not TATOEBA.is_dir(), reason=f"needs the Tatoeba corpus in {TATOEBA} (REGARD_DATA)"
)
@pytest.mark.parametrize("width", [1, 5])
def test_one_text_one_translation_of_real_sentences(trained, width):
    one_text_one_translation(trained, sorted({source for source, _ in pairs("test", 1000)}), width)


def test_a_sample_depends_on_its_seed_and_text_alone(translator, texts):
    wish = Sampling(seed=9, top_p=0.9)
    first = {
        r.source: [r.text, *(a.text for a in r.alternatives)]
        for r in translator.translate(texts, sampling=wish, n_best=3)
    }
    for text in texts[::4]:
        alone = translator(text, sampling=wish, n_best=3)
        assert [alone.text, *(a.text for a in alone.alternatives)] == first[text]
    other = {
        r.source: r.text for r in translator.translate(texts, sampling=Sampling(seed=10, top_p=0.9))
    }
    assert any(other[text] != first[text][0] for text in texts)


def bytes_of(tensors) -> int:
    return sum(
        x.nbytes()
        for x in {x.untyped_storage().data_ptr(): x.untyped_storage() for x in tensors}.values()
    )


def test_a_beam_needs_no_more_memory_than_its_own_pasts(translator, texts):
    """Nothing of the source is there twice; what is read is there once for each hypothesis, plus a
    fifth.
    """
    model = translator.model
    sources = [[*translator.source.encode(text), EOS] for text in texts[:8]]
    most = {}
    for width in (1, 5):
        sizes = []

        def step(tokens, state, sizes=sizes):
            logits, state = model.step(tokens, state)
            if isinstance(state, RNNState):
                source, own = [state.memory.key, state.memory.value], state.hidden
            else:
                source = [x for kv in state.cross for x in (kv.key, kv.value)]
                own = [x for kv in state.own for x in (kv.key, kv.value, kv.positions)]
                own += [] if state.seen is None else [state.seen]
            sizes.append((bytes_of(source), bytes_of(own), logits.nbytes))
            return logits, state

        def begin(jobs):
            made = collate([(job.source, [1, 2]) for job in jobs])
            return model.decoder.start(model.encoder(made.source, made.source_lengths))

        jobs = [Job(source, limit=40) for source in sources]
        list(decode(step, begin, jobs, Beam(width), Rules(minimum=39)))
        most[width] = [max(column) for column in zip(*sizes, strict=True)]
    source, own, logits = most[1]
    assert most[5][0] == source
    assert most[5][1] + most[5][2] <= 1.2 * (5 * own + 5 * logits)
