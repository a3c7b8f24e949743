"""Can an answer be trusted? Loops, coverage, strange characters, long texts: as a user meets
them.
"""

import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from regard.config import SearchConfig, merge
from regard.errors import UserError
from regard.inference.loops import stuck
from regard.inference.translator import Sampling, Translator
from regard.models import Seq2Seq
from regard.recipes.reporter import Reporter
from regard.records.result import overlooked
from regard.runs import storage
from regard.search import Hypothesis, Job
from regard.text.sentences import cut
from regard.text.tokenizer import KINDS, train_tokenizer
from regard.text.vocabulary import BOS, EOS

SURE, UNSURE = math.log(0.9), math.log(0.2)

# loops


def repeated(source, tokens, logprobs):
    return stuck(
        Job(source, found=[Hypothesis(tokens, 0.0, logprobs, len(logprobs) > len(tokens))])
    )


@pytest.mark.parametrize(
    ("text", "finished", "unit"),
    [
        ("the cat sat on the mat .", True, ""),
        ("ha ha ha", True, ""),
        ("no " * 4, True, "no "),
        ("x" + "ab" * 4 + "y", True, "ab"),
        ("1000000", True, ""),
        ("10000000", False, "0"),  # up to the limit
        ("1000", False, "0"),
        ("100", False, ""),
        ("one two one two one two one t", False, "wt oeno "),
        ("aaab" * 3, True, "aaab"),
        ("abcdefghij" * 2, True, ""),
    ],
)
def test_what_a_loop_is(text, finished, unit):
    found = repeated([], [*map(ord, text)], [UNSURE] * (len(text) + finished))
    assert sorted(map(chr, found)) == sorted(unit)


def test_who_counts_is_sure_when_to_stop():
    tokens = [7] * 12
    assert repeated([], tokens, [SURE] * 12 + [UNSURE]) == [7]
    assert (
        repeated([], tokens, [SURE] * 13) == []
    )  # SCAN: I_WALK twelve times, then <eos> without doubt
    middle = [5, *tokens, 6]
    assert repeated([], middle, [SURE] * 13 + [UNSURE, SURE]) == [7]
    assert repeated([], middle, [UNSURE] * 13 + [SURE, UNSURE]) == []


def test_a_loop_of_the_source_is_no_fault():
    tokens, unsure = [7, 8] * 6, [UNSURE] * 12
    assert repeated([3, 4, 5], tokens, unsure) == [7, 8]
    assert repeated([3] * 12, tokens, unsure) == []
    assert repeated([3, 4] * 3, tokens, unsure) == []
    assert repeated([3] * 3, tokens, unsure) == [7, 8]


class Chain(nn.Module):
    """A model whose next token depends on the last one only: `table` says with what probability."""

    class State:
        def select(self, sentences, beams):
            return self

        join = select

    def __init__(self, size: int, table: dict[int, dict[int, float]]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.full((size, size), -torch.inf))
        for last, follow in table.items():
            for token, share in follow.items():
                self.logits.data[last, token] = math.log(share)
        self.asked = 0

    def start(self, source, lengths):
        self.asked += len(source)
        return self.State()

    def step(self, tokens, state):
        return self.logits[tokens], state


def chain(table: dict[str, dict[str, float]], **search: object) -> Translator:
    """Over letters; "^" begins and "$" ends."""
    tokenizer = train_tokenizer("characters", ["abcdefgh"], size=100)
    ids = {"^": BOS, "$": EOS} | {letter: tokenizer.encode(letter)[0] for letter in "abcdefgh"}
    numbers = {ids[a]: {ids[b]: p for b, p in row.items()} for a, row in table.items()}
    settings = SearchConfig(**{"width": 1} | search)
    return Translator(Chain(tokenizer.size, numbers), tokenizer, tokenizer, settings)


STUCK = {"^": {"a": 1}, "a": {"b": 1}, "b": {"c": 1}, "c": {"a": 0.6, "d": 0.4}, "d": {"$": 1}}


@pytest.mark.parametrize("width", [1, 3])
def test_a_loop_is_broken(width):
    """Once more with just enough no_repeat; alone or beside others."""
    translator = chain(STUCK, width=width, limit_ratio=0.0, limit_extra=30)
    for result in translator(["fgh", "gh", "h"]):
        assert result.text == "abcabcd"
        assert result.warnings == ["repeats 'abc' over and over: decoded again with no_repeat=4"]
        assert len(result.logprobs) == len(result.text) + 1
        assert result.no_repeat == 4


@pytest.mark.parametrize("wish", [{"sampling": Sampling(top_k=1)}, {"forbid": ["e"]}])
def test_what_was_drawn_or_demanded_is_left_alone(wish):
    """But told."""
    result = chain(STUCK, limit_ratio=0.0, limit_extra=30)("h", **wish)
    assert result.text.startswith("abcabcabc")
    assert "repeats 'abc' over and over" in result.warnings


def test_a_loop_that_cannot_be_broken_is_told():
    """Nothing else may follow, so that the second answer stops in the same loop: the first
    is kept.
    """
    translator = chain({"^": {"a": 1}, "a": {"a": 1}}, no_repeat=0, limit_ratio=0.0, limit_extra=3)
    result = translator("h")
    assert result.text == "aaa"
    assert (
        "repeats 'a' over and over: decoded again with no_repeat=4, without success"
        in result.warnings
    )
    assert any("length limit of 3" in warning for warning in result.warnings)


def test_the_users_no_repeat_is_left_alone():
    translator = chain(STUCK, no_repeat=12, limit_ratio=0.0, limit_extra=13)
    (limit, loop) = translator("h").warnings
    assert loop == "repeats 'abc' over and over"
    assert "length limit" in limit
    assert translator.model.asked == 1


def test_a_sure_repetition_is_left_alone():
    """Eight times the same and a sure end, as 10^8 or SCAN's `walk … thrice` have it: one decode,
    no word.
    """
    translator = chain({"^": {"a": 1}, "a": {"a": 0.1, "$": 0.9}}, minimum=8)
    result = translator("h")
    assert (result.text, result.warnings, translator.model.asked) == ("a" * 8, [], 1)
    unsure = chain({"^": {"a": 1}, "a": {"a": 0.3, "b": 0.3, "$": 0.4}, "b": {"$": 1}}, minimum=8)(
        "h"
    )
    assert unsure.text != "a" * 8
    assert "repeats 'a'" in unsure.warnings[-1]
    forced = translator("h", prefix="b" * 9 + "a")  # what the user forces is no loop
    assert (forced.text, forced.warnings) == ("b" * 9 + "a", [])


def test_an_answer_does_not_depend_on_its_company():
    translator = chain(STUCK, limit_ratio=0.0, limit_extra=40)
    texts = [
        "a",
        "abcabcabcabcabcabcabcabcabcabcabcabcabcabc",
        "h",
    ]  # the second may repeat: its source does
    together = translator(texts)
    alone = [translator(text) for text in texts]
    assert [result.text for result in together] == [result.text for result in alone]
    assert [len(result.text) for result in together] == [7, 40, 7]
    assert not any("over and over" in warning for warning in together[1].warnings)


# splitting

TEXT = "One. Two  two!  Three?\n\n\tFour… five “six.” seven (3.14).\r\nEight。Nine！ten"


@given(st.text("ab .!?…。！\n\t\"'”", max_size=60), st.integers(1, 12), st.integers(1, 40))
def test_parts_and_gaps_are_the_text(text, room, more):
    parts = cut(text, len, room, room + more)
    assert "".join(part + gap for part, gap in parts) == text
    assert all(part == part.rstrip() and not gap.strip() for part, gap in parts)
    assert all("\n" not in part.strip() for part, _ in parts)
    assert all(len(part) <= room + more or not re.search(r"\s", part.lstrip()) for part, _ in parts)


def test_where_a_text_is_cut():
    def words(one):
        return len(one.split())

    one_each = [part for part, _ in cut(TEXT, words, 1, 100)]
    packed = [part for part, _ in cut(TEXT, words, 4, 100)]
    assert packed == [
        "One. Two  two!  Three?",
        "Four… five “six.”",
        "seven (3.14).",
        "Eight。Nine！ten",
    ]
    apart = [
        "One.",
        "Two  two!",
        "Three?",
        "Four…",
        "five “six.”",
        "seven (3.14).",
        "Eight。",
        "Nine！",
        "ten",
    ]
    assert [part for part, _ in cut(TEXT, words, 4, 100, packs=False)] == apart == one_each
    assert [part for part, _ in cut("a b c d e. f", words, 2, 4, packs=False)] == [
        "a b",
        "c d",
        "e.",
        "f",
    ]
    assert [part for part, _ in cut("a b c d e", words, 2, 4)] == ["a b", "c d", "e"]
    assert [part for part, _ in cut("a b c d e", words, 2, 5)] == ["a b c d e"]


@pytest.fixture(scope="module")
def sums(run):
    """The run on sums, which has seen about ten tokens, as if several sums had stood in a line."""
    translator = regard.load(run)
    translator.model = run.model("best").double()  # where no answer depends on rounding
    assert not translator.packs
    translator.packs = True
    return translator


LONG = "1+1. 22+3.  4-5!\n-7-8? 100+1. 2-2.\t"


def test_a_long_text_is_answered_in_parts(sums):
    result = sums(LONG, n_best=2)
    parts = [part for part, _ in cut(LONG, len, sums.seen - 1, 4096)]
    alone = sums(parts, n_best=2)
    assert len(parts) > 2
    assert result.source == LONG
    assert [part.source for part in result.parts] == parts
    gaps = [gap for _, gap in cut(LONG, len, sums.seen - 1, 4096)]
    assert gaps[-1] == "\t"
    assert any("\n" in gap for gap in gaps)
    assert result.text == "".join(part.text + gap for part, gap in zip(alone, gaps, strict=True))
    assert result.tokens == [token for part in alone for token in part.tokens]
    assert result.logprobs == pytest.approx([x for part in alone for x in part.logprobs], rel=1e-9)
    assert result.score == pytest.approx(
        sum(result.logprobs) / len(result.logprobs), rel=1e-9
    )  # length_penalty is 1
    assert result.alternatives[0].text.split() == [
        word for part in alone for word in part.alternatives[0].text.split()
    ]
    assert result.alternatives[0].score <= result.score
    assert f"split into {len(parts)} parts" in result.warnings[0]
    with pytest.raises(UserError, match=r"result\.parts\[0\]\.attention"):
        _ = result.attention
    assert result.parts[0].attention.blocks["cross"].shape[-1] == len(parts[0]) + 1
    assert 0 <= result.coverage <= 1


def test_split_can_be_turned_off(sums):
    whole = Translator(
        sums.model, sums.source, sums.target, replace(sums.search, split=False), seen=sums.seen
    )
    result = whole(LONG)
    assert result.parts == []
    assert any("longer than any source in training (" in warning for warning in result.warnings)


def test_a_long_sentence_stays_whole(sums):
    result = sums("12345678901234567890+1")
    assert result.parts == []
    assert any(
        "longer than any source in training (23 tokens" in warning for warning in result.warnings
    )


def test_what_is_demanded_of_the_whole_is_not_split(sums):
    for wish in ({"prefix": "77"}, {"must": ["7"]}):
        result = sums(LONG, **wish)
        assert result.parts == []
        assert any("longer than any source in training (" in warning for warning in result.warnings)
    assert "7" not in sums(LONG, forbid=["7"]).text
    assert len(sums(LONG, forbid=["7"]).parts) > 1


def test_only_who_has_seen_several_sentences_is_given_several(sums):
    apart = Translator(
        sums.model, sums.source, sums.target, sums.search, seen=sums.seen, packs=False
    )
    text = "1! 2? " * 4
    assert len(sums(text).parts) < len(apart(text).parts) == 8


def test_options_are_those_of_a_part(sums):
    with pytest.raises(UserError, match=r"result\.parts\[0\]"):
        sums.options(sums(LONG), 0)
    assert sums.options(sums(LONG).parts[0], 0)


@pytest.mark.parametrize("text", ["1" * 9000, "\0" * 9000])
def test_what_memory_may_not_hold_is_not_answered(sums, text):
    result = sums(text)
    assert result.text == ""
    assert result.warnings == [
        "not translated: 9,001 tokens without a space (more than search.batch_tokens=4096)"
    ]
    assert sums("1+1. " + text).parts[0].text == sums("1+1.").text


def test_a_stream_stays_a_stream(sums):
    """Answers come before the stream has ended, split or not."""
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield LONG

    stream = sums.translate(endless(), window=2)
    assert next(stream).text == next(stream).text
    assert read == 2


def test_not_even_text(sums):
    assert sums("1+\udce9").source == "1+\udce9"  # a lone surrogate


# coverage


def test_coverage_is_the_attention_a_token_got(sums):
    result = sums("12+34")
    cross = result.attention.blocks["cross"]
    expected = np.minimum(cross[-1].mean(axis=0).sum(axis=0)[:5], 1).mean()
    assert result.coverage == pytest.approx(
        expected, abs=float(np.finfo(np.float32).eps) * cross.size
    )  # sums of fp32 weights
    assert sums("").coverage is None
    assert "attention" not in vars(sums("12+34"))  # nobody asked


def test_overlooked_words():
    spans = [(0, 2), (2, 3), (3, 6), (6, 8)]  # "un|e| la|ng" + …
    assert overlooked("une lang", spans, np.array([0.1, 0.15, 0.1, 0.05])) == ["lang"]
    assert overlooked("une lang", spans, np.array([0.1, 0.05, 0.1, 0.15])) == ["une"]
    assert overlooked("", [], np.array([])) == []


# trained runs


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """A run for each kind of tokenizer, or with other settings."""
    made: dict[str, regard.Run] = {}

    def train(tokenizer: str, start_from=None, **model: object) -> regard.Run:
        key = f"{tokenizer} {start_from} {model}"
        if key not in made:
            pairs = [(f"a number {n} .", f"nombre {n} !") for n in range(30)]
            if start_from:
                pairs = [(f"ß number {n} .", f"nombre {n} !") for n in range(30)]
            given = merge(
                tiny,
                {"text": {"tokenizer": tokenizer, "size": 300}, "data": {"batch_sentences": 10}},
            )
            if model:
                given["model"] = model
            out = tmp_path_factory.mktemp("runs") / "run"
            made[key] = regard.train(
                pairs, out=out, start_from=start_from, reporter=Reporter(quiet=True), **given
            )
        return made[key]

    return train


@pytest.mark.parametrize("kind", KINDS)
def test_a_character_never_seen_is_told(trained, kind):
    translator = regard.load(trained(kind))
    known, strange = translator(["a number 7 .", "a 漢 7 ."])
    assert not any("漢" in warning or "seen in training:" in warning for warning in known.warnings)
    (told,) = (warning for warning in strange.warnings if "漢" in warning)
    assert told == (
        "not in the vocabulary: 漢"
        if kind in ("characters", "words")
        else "never seen in training: 漢"
    )


def test_strange_white_space_has_a_name(trained):
    (warning,) = (
        w for w in regard.load(trained("bytes"))("a\tnumber\x00 .").warnings if "never" in w
    )
    assert warning == "never seen in training: U+0000 U+0009"


def test_fine_tuning_remembers_the_old_characters(trained):
    old = trained("bpe")
    new = trained("bpe", start_from=old.path)
    assert {*new.manifest["characters"]} == {*old.manifest["characters"], "ß"}


def test_not_all_characters_of_an_older_run_are_known(trained, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(trained("bpe").path, old)
    manifest = storage.read_manifest(old)
    del manifest["characters"]
    storage.write_manifest(
        old, manifest, "config.toml", (old / "config.toml").read_bytes(), also_old=False
    )
    assert trained("bpe", start_from=old).manifest["characters"] == ""


def test_a_run_without_the_list_gives_no_warning(trained):
    run = trained("bytes")
    known = run.manifest.pop("characters")
    assert not any("never seen" in warning for warning in regard.load(run)("漢").warnings)
    run.manifest["characters"] = known


def test_a_model_without_attention_has_no_coverage(trained):
    run = trained(
        "words", kind="rnn", attention="none", width=16, encoder_layers=1, decoder_layers=1
    )
    result = regard.load(run)("a number 7 .")
    assert result.coverage is None
    assert result.overlooked == []
    assert isinstance(regard.load(run).model, Seq2Seq)


def test_a_long_unknown_word_is_named_briefly(trained):
    assert (
        "not in the vocabulary: " + "x" * 23 + "…"
        in regard.load(trained("words"))("a " + "x" * 10_000).warnings
    )
