"""Words that must and must not come, samples of least risk, coverage, ensembles, alternatives at a
position.
"""

import math
import random
import re

import numpy as np
import pytest
import torch

import regard
from regard.config import RNNConfig, SearchConfig, TransformerConfig
from regard.errors import UserError
from regard.inference.demands import words
from regard.inference.reranking import least_risk
from regard.inference.translator import Sampling, Translator
from regard.models import build_model
from regard.models.ensemble import ensemble
from regard.nn.devices import cpu_has_bf16
from regard.records.result import ranking
from regard.search import Hypothesis
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import EOS

TINY = TransformerConfig(width=16, ffn=24, heads=2, encoder_layers=2, decoder_layers=2, dropout=0.0)
WORDS = "le la chat chats chien noir noire petit petite dort mange vite café œuvre cat category cate at".split()  # noqa: SIM905
TEXTS = [
    " ".join(random.Random(i).choices(WORDS, k=6)) + random.Random(i).choice([" .", " !", "?", ""])
    for i in range(200)
]


def translator(kind, seed=0, config=None, **search) -> Translator:
    """A model that has learned nothing: it has no wish to do as it is told. In float64 no two
    answers are equally good.
    """
    torch.manual_seed(seed)
    tokenizer = train_tokenizer(kind, TEXTS, size=400)
    model = build_model(config or TINY, tokenizer.size, tokenizer.size).eval().double()
    return Translator(
        model,
        tokenizer,
        tokenizer,
        SearchConfig(**({"limit_ratio": 0.0, "limit_extra": 12} | search)),
    )


def stands_in(phrase: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text) is not None


def held(kind: str, cases: int) -> None:
    rng, made = random.Random(7), {seed: translator(kind, seed) for seed in range(4)}
    for case in range(cases):
        must = [
            " ".join(rng.choices(WORDS, k=rng.choice((1, 1, 2, 3))))
            for _ in range(rng.choice((0, 1, 1, 2)))
        ]
        forbid = rng.sample(WORDS, rng.choice((0, 1, 2)))
        forbid = [
            word for word in forbid if not any(stands_in(word, phrase) for phrase in must)
        ]  # else there is no solution
        answer = made[case % 4](rng.choice(TEXTS), must=must, forbid=forbid)
        assert [p for p in must if not stands_in(p, answer.text)] == [], (must, forbid, answer)
        assert [p for p in forbid if stands_in(p, answer.text)] == [], (must, forbid, answer)
        assert not any(warning.startswith("could not") for warning in answer.warnings)


@pytest.mark.parametrize("kind", ["words", "bpe", "unigram", "characters", "bytes"])
def test_words_that_must_come_come_and_those_that_must_not_do_not(kind):
    held(kind, 30)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["words", "bpe", "unigram", "characters", "bytes"])
def test_in_a_thousand_cases(kind):
    held(kind, 1000)


def test_what_cannot_be_is_said():
    ours = translator("words")
    with pytest.raises(
        UserError, match="'petit chat' is required, but contains 'chat', which is forbidden"
    ):
        ours("le chat", must=["petit chat"], forbid=["chat"])
    with pytest.raises(
        UserError, match="'le chat' is required, but contains 'chat', which is forbidden"
    ):
        ours("le chat", prefix="le chat", forbid="chat")
    with pytest.raises(UserError, match="no answer can start with 'Le zèbre'"):
        ours("le chat", prefix="Le zèbre")
    every = ours(
        "le chat", forbid=[word for text in TEXTS for word in text.replace("?", " ?").split()]
    )
    assert not set(WORDS) & set(every.text.split())
    with pytest.raises(
        UserError, match="'zèbre' cannot be required: it is not in the target vocabulary"
    ):
        ours("le chat", must=["zèbre"])
    with pytest.raises(UserError, match="an empty text can be neither required nor forbidden"):
        ours("le chat", forbid=[" "])
    with pytest.raises(UserError, match="do not work with sampling"):
        ours("le chat", must=["chat"], sampling=Sampling())


def test_demands_do_not_depend_on_the_batch():
    ours = translator("bpe")
    alone = [ours(text, must=["chat noir"], forbid=["vite"]).text for text in TEXTS[:12]]
    assert [
        result.text for result in ours(TEXTS[:12], must=["chat noir"], forbid=["vite"])
    ] == alone


def test_least_risk_is_what_agrees_with_the_others():
    texts = ["the cat sleeps", "the cat sleeps", "a cat sleeps", "zzz"]
    found = [Hypothesis([i], -float(i), [], True) for i in range(4)]
    ranked = least_risk(found, texts)
    assert [one.tokens for one in ranked] == [[0], [2], [3]]
    assert 100 >= ranked[0].agreement > ranked[1].agreement > ranked[2].agreement >= 0
    assert [one.score for one in ranked] == [0.0, -2.0, -3.0]  # what they were
    ours = translator("words")
    wish = Sampling(seed=3, risk=16, temperature=0.5)
    alone = [ours(text, sampling=wish).text for text in TEXTS[:4]]
    assert [result.text for result in ours(TEXTS[:4], sampling=wish)] == alone
    drawn = ours(TEXTS[0], sampling=Sampling(seed=3, temperature=0.5), n_best=16)
    assert alone[0] in {drawn.text, *(other.text for other in drawn.alternatives)}


def test_diverse_answers_differ_more():
    def different(diversity: float) -> int:
        ours = translator("words", 1, width=6, diversity=diversity)
        answers = (
            [r.text, *(other.text for other in r.alternatives)] for r in ours(TEXTS[:20], n_best=6)
        )
        return sum(len({text.split()[0] for text in texts if text}) for texts in answers)

    assert different(5.0) > different(0.0)


def test_coverage_ranks_by_the_score_and_a_penalty():
    ours = translator("words", 2, width=5, coverage=0.5)
    for text in TEXTS[:5]:
        result = ours(text, n_best=5)
        seen = result.attention.blocks["cross"][-1].mean(0).sum(0).clip(max=1.0)
        assert result.coverage_penalty == pytest.approx(
            0.5 * float(np.log(seen).sum()), rel=1e-6
        )  # weights are kept in fp32
        sums = [ranking(answer) for answer in (result, *result.alternatives)]
        assert sums == sorted(sums, reverse=True)
        assert sums[0] == result.score + result.coverage_penalty


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(
    ("settings", "wishes"),
    [
        ({"width": 5}, {}),
        ({"width": 1}, {}),
        ({"width": 5, "coverage": 0.5}, {}),
        ({"width": 5, "diversity": 1.0}, {}),
        ({"width": 5}, {"must": "chat"}),
        ({"width": 5}, {"sampling": Sampling(seed=3)}),
        ({"width": 5}, {"sampling": Sampling(seed=3, risk=8)}),
    ],
)
def test_a_score_has_one_unit(settings, wishes, length_penalty):
    """Log-probability over length to the penalty, exactly, however the answers were found and
    ranked.
    """
    ours = translator("words", 2, length_penalty=length_penalty, **settings)
    for result in ours(TEXTS[:3], **wishes):
        length = len(result.logprobs)
        assert result.score == math.fsum(result.logprobs) / length**length_penalty
        assert (result.coverage_penalty is not None) == ("coverage" in settings)
        assert (result.agreement is not None) == bool(
            "sampling" in wishes and wishes["sampling"].risk
        )


def test_a_split_text_keeps_the_units():
    ours = translator("words", 2, width=3, coverage=0.5)
    ours.seen = 8
    text = "le chat dort . la noire mange vite ."
    covered = ours(text, n_best=2)
    assert len(covered.parts) == 2
    lengths = [len(part.logprobs) for part in covered.parts]
    penalties = [part.coverage_penalty * length for part, length in zip(covered.parts, lengths)]
    assert covered.coverage_penalty == pytest.approx(sum(penalties) / sum(lengths))
    assert ranking(covered) >= ranking(covered.alternatives[0])
    drawn = ours(text, sampling=Sampling(risk=8))
    assert 0 <= drawn.agreement <= 100
    assert drawn.score == pytest.approx(sum(drawn.logprobs) / len(drawn.logprobs))


@pytest.mark.parametrize("config", [TINY, RNNConfig(width=16, embedding=16, dropout=0.0)])
def test_an_ensemble_means_its_members(config):
    one, two = translator("words", 1, config), translator("words", 2, config)
    pair = Translator(ensemble([one.model, two.model]), one.source, one.target, one.search)
    twice = Translator(ensemble([one.model, one.model]), one.source, one.target, one.search)
    for text in TEXTS[:5]:
        assert twice(text).text == one(text).text
        assert twice(text).score == pytest.approx(one(text).score, rel=1e-9)
    text = TEXTS[0]
    source = torch.tensor([[*one.source.encode(text), EOS]])
    first = torch.tensor([[1]])
    means = torch.stack(
        [x.model(source, torch.tensor([source.shape[1]]), first).softmax(-1) for x in (one, two)]
    ).mean(0)
    assert torch.allclose(
        pair.model(source, torch.tensor([source.shape[1]]), first).exp(), means, rtol=0, atol=1e-9
    )
    assert [r.text for r in pair(TEXTS[:8])] == [pair(text).text for text in TEXTS[:8]]


def test_options_at_a_position():
    ours = translator("words", 4, width=1)
    result = ours(TEXTS[0])
    first, *others = ours.options(result, 2, n=4)
    assert first.text == result.text
    assert first.token == result.tokens[2]
    assert first.probability > others[0].probability > 0
    assert all(
        other.text.split()[:2] == result.text.split()[:2]
        for other in others
        if other.token != "<eos>"
    )
    with pytest.raises(UserError, match="positions go from 0 to"):
        ours.options(result, 99)


def test_bf16_answers(tmp_path):
    sizes = {
        "model": {"width": 16, "ffn": 16, "heads": 2},
        "train": {"steps": 5, "evaluate_every": 5, "save_every": 5},
    }
    pairs = [("a b", "b a"), ("b a", "a b"), ("a", "a")] * 20
    run = regard.train(pairs, out=tmp_path / "run", text={"tokenizer": "words"}, **sizes)
    if cpu_has_bf16():
        ours = regard.load(run, precision="bf16")
        assert ours.model.decoder.out.weight.dtype == torch.bfloat16
        exact = regard.load(run)
        weights = ours.model.state_dict()
        for name, weight in exact.model.state_dict().items():
            rounded = weights[name]
            if rounded.dtype == torch.bfloat16:  # products; norms and embeddings stay as they are
                assert torch.equal(rounded, weight.to(torch.bfloat16)), name
            else:
                assert torch.equal(rounded, weight), name
        for text in ("a b", "b a", "a"):
            answer = ours(text)
            assert answer.score != exact(text).score
            assert math.isfinite(answer.score)
            length = len(answer.logprobs) ** ours.search.length_penalty
            assert answer.score == pytest.approx(sum(answer.logprobs) / length)
    assert regard.load(run, run)("a b").text == regard.load(run)("a b").text


def test_an_unknown_option_is_refused(run):
    with pytest.raises(
        UserError, match=r"load\(\) has no option no_repea; did you mean no_repeat\?"
    ):
        regard.load(run, no_repea=3)
    with pytest.raises(
        UserError, match=r"load\(\) has no option chekpoint; did you mean checkpoint\?"
    ):
        regard.load(run, chekpoint="best")
    with pytest.raises(UserError, match=r"load\(\) has no option devise; did you mean device\?"):
        regard.load("no such run either", devise="cpu")


def test_a_script_without_spaces_has_no_bounds_of_words():
    tokenizer = train_tokenizer("bpe", ["黒猫が寝ている。", "白い犬が走る。"] * 20, size=400)
    torch.manual_seed(0)
    ours = Translator(
        build_model(TINY, tokenizer.size, tokenizer.size),
        tokenizer,
        tokenizer,
        SearchConfig(limit_extra=12),
    )
    for text in ("黒猫", "犬"):
        answer = ours(text, must=["猫"], forbid=["犬"])
        assert "猫" in answer.text
        assert "犬" not in answer.text
    assert words(tokenizer, ["猫"], []).missing("黒猫が寝ている。") == []


def test_the_better_of_two_tries_stays_and_a_prefix_is_kept():
    ours = translator("words", limit_extra=3)
    answer = ours(
        "le chat",
        must=["petit chat", "chien noir", "dort"],
        forbid=["dort petit", "noir dort"],
        prefix="le la",
    )
    assert answer.text.startswith("le la")
    assert ours("le chat", must=["chat  noir"], prefix="le la").text.startswith("le la")
    assert "chat noir" in ours("le chat", must=["chat  noir"]).text


def test_who_has_no_attention_of_its_own_says_so():
    blind = translator(
        "words", 1, RNNConfig(width=16, embedding=16, attention="none", dropout=0.0), coverage=0.5
    )
    with pytest.raises(UserError, match="needs a model with attention"):
        blind("le chat")
    one = translator("words", 1)
    pair = Translator(ensemble([one.model, one.model]), one.source, one.target, one.search)
    with pytest.raises(UserError, match="load one of its runs alone"):
        _ = pair("le chat").attention
