"""Law 11: reading the source while it is being written gives what reading it with the wait-k mask
gives, and does it once.

Only for causal encoders: any other must see the end of the source before its beginning means
anything.
"""

import json
import math
import os
import select
import subprocess
import sys
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.config import SearchConfig, TransformerConfig
from regard.errors import UserError
from regard.inference.online import Sentence
from regard.inference.translator import Translator
from regard.models import build_model
from regard.models.rnn import RNNEncoder
from regard.recipes.evaluation import _words
from regard.recipes.reporter import Reporter
from regard.scoring.latency import delays
from regard.search import Rules, beam, greedy
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import BOS, EOS

few = settings(max_examples=3, deadline=None, derandomize=True)
some = settings(max_examples=25, deadline=None, derandomize=True)
KINDS = [
    *(
        {"position": name}
        for name in ("none", "sinusoidal", "learned", "relative", "rotary", "alibi")
    ),
    {"placement": "post"},
    {"position": "relative", "score": "additive", "norm": "rms"},
    {"tie": "none", "encoder_layers": 1, "decoder_layers": 3},
    {
        "encoder_mask": "custom:by_head",
        "decoder_mask": "custom:apart",
        "cross_mask": "custom:apart",
    },
]
DEEP = {"encoder_layers": 2, "decoder_layers": 2}
RNNS = [
    {"cell": "gru", "attention": "after", "score": "additive"},
    {"cell": "lstm", "attention": "before", "bridge": "layers", **DEEP},
    {"cell": "linear", "attention": "before", "cross_mask": "custom:apart"},
    {"cell": "lstm", "attention": "none", **DEEP},
    {"cell": "rnn", "attention": "none", "bridge": "layers", "fast": False},
]
WAITS = st.integers(1, 9) | st.just(math.inf)
LIMIT = 12

SOME_TOKENS = type("SomeTokens", (), {"size": 30, "text_size": 30, "first": 16, "tags": ()})


@pytest.fixture(
    scope="session", params=[*KINDS, *RNNS], ids=lambda kind: "-".join(map(str, kind.values()))
)
def causal(request, build, transformer, rnn):
    """Trained to wait for 2 tokens; used with other waits too."""
    if "cell" in request.param:
        return build(rnn(bidirectional=False, wait=2, **request.param))
    return build(transformer(causal=True, wait=2, **request.param))


def waiting(model, wait):
    model.wait_for(0 if wait == math.inf else wait)
    return model


def start(model, batch):
    return model.decoder.start(model.encoder(batch.source, batch.source_lengths))


def online(model, source, wait):
    sentence = Sentence(model, Rules(), wait)
    for token in source:
        sentence.read(token)
    sentence.end(LIMIT)
    return sentence.tokens[1:]


@few
@given(st.integers(0, 10_000), WAITS)
@torch.no_grad()
def test_online_is_offline_token_by_token(causal, batch_of, seed, wait):
    batch = batch_of(seed, [(9, 0), (1, 0), (4, 0), (6, 0)])
    model, limit = waiting(causal, wait), [LIMIT] * 4
    found = greedy(model.step, start(model, batch), batch=4, limit=limit)
    narrow = beam(model.step, start(model, batch), batch=4, limit=limit, width=1)
    waiting(causal, 2)  # whatever the decoder was trained for
    for row, length, one, [other] in zip(
        batch.source, batch.source_lengths, found, narrow, strict=True
    ):
        written = online(model, row[: length - 1].tolist(), wait)
        assert written == one.tokens + [EOS] * one.finished
        assert one.tokens == other.tokens


@few
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(0, 5))
@torch.no_grad()
def test_what_comes_later_does_not_matter(causal, batch_of, seed, wait, t):
    """Target token t is the same, bit for bit, whatever stands from source token wait + t on."""
    one, two = batch_of(seed, [(9, 8)]), batch_of(seed + 1, [(9, 8)])
    model, allowed = waiting(causal, wait), wait + t
    other = torch.cat((one.source[:, :allowed], two.source[:, allowed:]), 1)
    before, after = (
        model(source, one.source_lengths, one.target_in) for source in (one.source, other)
    )
    assert torch.equal(before[:, : t + 1], after[:, : t + 1])
    written, same = (Sentence(model, Rules(), wait) for _ in range(2))
    for token, changed in zip(one.source[0, :-1].tolist(), other[0, :-1].tolist(), strict=True):
        written.read(token)
        same.read(changed)
    assert written.tokens[: t + 2] == same.tokens[: t + 2]
    assert len(written.tokens) == 9 - wait + 2 or written.done


@few
@given(st.integers(0, 10_000), st.sets(st.integers(1, 8)))
@torch.no_grad()
def test_a_causal_encoder_reads_in_pieces(causal, batch_of, close, seed, cuts):
    source, past, pieces = batch_of(seed, [(8, 0), (8, 0)]).source, None, []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), 9], strict=True):
        memory, past = causal.encoder.extend(source[:, begin:end], past)
        pieces.append(memory.states)
    close(torch.cat(pieces, 1), causal.encoder(source, torch.tensor([9, 9])).states)


def test_nothing_is_computed_twice(build, transformer):
    model, seen = build(transformer(causal=True, tie="none")), {}
    for name, side in (("source", model.encoder), ("target", model.decoder)):
        side.embedding.register_forward_hook(
            lambda _, tokens, __, n=name: seen.setdefault(n, []).extend(tokens[0].tolist())
        )
    written = online(model, [7, 8, 9, 10, 11], 2)
    assert seen["target"] == [BOS, *written[:-1]]
    assert seen["source"] == [7, 8, 9, 10, 11, EOS][: len(seen["source"])]
    assert len(seen["source"]) == 6 or EOS in written


def test_who_looks_ahead_is_refused(translating):
    model = translating
    if model.encoder.causal:
        return
    advice = r"model\.causal=true"
    if isinstance(model.encoder, RNNEncoder):
        advice = r"model\.bidirectional=false .*reads the source from its end"
    with pytest.raises(UserError, match=advice):
        Translator(model, SOME_TOKENS, SOME_TOKENS).online(3)


# ---- text ----

TEXT = [
    "le chat  noir dort.",
    "Ça va, n'est-ce pas ?",
    "e\u0301te\u0301 12 345",
    "a b c d e f g",
] * 5
PIECES = st.lists(
    st.sampled_from(
        [
            "le",
            " chat",
            "  noir",
            "\t",
            "'s",
            "é",
            "e",
            "\u0301",
            "12",
            ".",
            " ",
            "日本 ",
            "\u00a0x",
        ]
    )
)


@cache
def tokenizer(kind):
    return train_tokenizer(kind, TEXT, size=300)


@pytest.mark.parametrize("kind", ["characters", "bytes", "words", "bpe", "unigram"])
@some
@given(pieces=PIECES, wait=WAITS, seed=st.integers(0, 3), limit=st.sampled_from([0, 3]))
def test_text_comes_as_it_would_at_once(seed_of, kind, pieces, wait, seed, limit):
    """However the text is cut into pieces, and whatever bytes the answer is made of; twice, for a
    second sentence. Also with a limit on the tokens of the answer.
    """
    tokens = tokenizer(kind)
    torch.manual_seed(seed_of(seed))
    sizes = {"width": 8, "ffn": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    model = build_model(
        TransformerConfig(**sizes, causal=True, wait=2), tokens.size, tokens.size
    ).double()
    with torch.no_grad():
        model.decoder.out.weight.mul_(3)
    search = SearchConfig(width=1, limit_ratio=1.5, limit_extra=3, limit=limit)
    translator = Translator(waiting(model, wait), tokens, tokens, search)
    text = "".join(pieces)
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # what has been said cannot be said again without its loops
        patch.setattr("regard.inference.translator.free", lambda *_: {})
        expected = translator(text).text
    assert tokens.encode(text) == [id for ids in map(tokens.encode, cut(text)) for id in ids]
    live = translator.online(wait)
    for parts in (pieces, list(text)):
        assert "".join([*map(live.read, parts), live.end()]) == expected


def cut(text):
    """As `read` does."""
    from regard.inference.online import WORD

    words = [found[0] for found in WORD.finditer(text)]
    return [*words, text[sum(map(len, words)) :]]


@pytest.mark.parametrize("wait", [0, 0.5, -1])
def test_a_wait_of_nothing_is_refused(wait, build, transformer):
    translator = Translator(build(transformer(causal=True)), SOME_TOKENS, SOME_TOKENS)
    with pytest.raises(UserError, match="at least 1"):
        translator.online(wait)


# ---- the command line ----


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    """Words to capitals, which it learns."""
    rows = [row for a in "abcd" for b in "abcd" for row in ((a, b), (b, a, b, a), (a, b, b))]
    pairs = [(" ".join(row), " ".join(row).upper()) for row in rows]
    train = tiny["train"] | {"steps": 150, "rate": 0.01, "evaluate_every": 150, "save_every": 150}
    train |= {"threads": 1}
    out, model = (
        tmp_path_factory.mktemp("online") / "capitals",
        tiny["model"] | {"causal": True, "wait": 1},
    )
    data = {"batch_sentences": 20, "dev": 4, "test": 4}
    text = {"tokenizer": "words"}
    return regard.train(
        pairs,
        out=out,
        reporter=Reporter(quiet=True),
        model=model,
        train=train,
        data=data,
        text=text,
    )


@pytest.mark.once
def test_the_answer_comes_before_the_end_of_the_line(run):
    live, words = (
        regard.load(run).online(1),
        [sys.executable, "-m", "regard", "translate", str(run.path), "--wait", "1"],
    )
    first, second, rest = live.read("a b"), live.read(" a"), live.read(" b") + live.end() + "\n"
    asked = [("a b", first), (" a", second), (" b\n", rest), ("\nb", "\n"), (" ", live.read("b "))]
    assert all(answer for _, answer in asked), "a model that says nothing proves nothing"
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        for piece, answer in asked:
            process.stdin.write(piece.encode())
            heard = b""
            while len(heard) < len(answer.encode()):
                assert select.select([process.stdout], [], [], 60)[0], f"nothing after {piece!r}"
                heard += os.read(process.stdout.fileno(), 100)
            assert heard.decode() == answer
        end, _ = process.communicate(b"c", timeout=180)
    assert process.returncode == 0
    assert end.decode() == live.read("c") + live.end() + "\n"


@pytest.mark.once
@pytest.mark.parametrize("wait", [1, 2, 3, math.inf])
def test_delays_are_those_of_the_real_policy(run, wait):
    """Counted while the words come, and from the tokens afterwards."""
    translator = regard.load(run, beam=1)
    live, words, text, real = translator.online(wait), ["a", "b", "a", "b"], "", []
    for number, word in enumerate(words, 1):
        text += live.read(word + " ") if number < len(words) else live.read(word) + live.end()
        real += [number] * (len(text.split()) - len(real))
    result = waiting(translator.model, wait) and translator(" ".join(words))
    assert result.text == text
    assert delays(*_words(translator, result), wait) == real


@pytest.mark.once
def test_evaluate_waiting(run, command, tmp_path):
    (tmp_path / "pairs.tsv").write_text("a b a b\tA B A B\nd c\tD C\n")
    done = command("evaluate", run.path, tmp_path / "pairs.tsv", "--wait", "1,3,inf", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["wait"] for row in rows] == ["1", "3", "inf"]
    assert (
        rows[0]["average_lagging"]
        <= rows[1]["average_lagging"]
        <= rows[2]["average_lagging"]
        == (4 + 2) / 2
    )
    assert all(row["laal"] >= row["average_lagging"] for row in rows)
    assert "LAAL" in command("evaluate", run.path, tmp_path / "pairs.tsv", "--wait", "2").stdout


@pytest.mark.once
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("evaluate", "--wait", "1,x"), "whole numbers"),
        (("evaluate", "--wait", "0"), "whole numbers"),
        (("evaluate", "--wait", "1", "--beam", "2"), "--beam"),
        (("translate", "a", "--wait", "1", "--beam", "2"), "takes are --limit and --set"),
        (("translate", "a", "--wait", "1", "--must", "b"), "takes are --limit and --set"),
    ],
)
def test_what_does_not_go_with_wait(run, words, told):
    with pytest.raises(UserError, match=told):
        CliRunner().invoke(app, [words[0], str(run.path), *words[1:]], catch_exceptions=False)
