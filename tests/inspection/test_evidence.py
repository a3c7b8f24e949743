"""Evidence on a trained run: the rank correlation, the commands, and a run that is pruned. What it
means is law 13.
"""

import dataclasses
import hashlib
import json
import math
import re
import shutil
import time

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.config import RNNConfig, TransformerConfig
from regard.errors import UserError
from regard.inference.translator import Translator
from regard.inspection.doctor import doctor
from regard.inspection.evidence import (
    Head,
    agreement,
    gradient_times_input,
    heads,
    occlusion,
    without,
)
from regard.models import build_model
from regard.recipes.pruning import prune
from regard.recipes.reporter import Reporter
from regard.records.attention import AttentionRecord
from regard.records.result import Result
from regard.text.tokenizer import train_tokenizer

TEXT = "12+345"


def record(*rows):
    weights = np.array(rows, np.float32)[None, None]
    return AttentionRecord(["s"] * weights.shape[3], ["t"] * weights.shape[2], {"cross": weights})


# rank correlation


@pytest.mark.parametrize(
    ("attention", "lost", "expected"),
    [
        ([0.1, 0.2, 0.7], [1, 2, 300], 1.0),  # order alone counts
        ([0.7, 0.2, 0.1], [1, 2, 300], -1.0),
        ([0.1, 0.2, 0.3, 0.4], [2, 1, 4, 3], 1 - 6 * 4 / (4 * 15)),  # Spearman's own formula
        ([0.5, 0.5, 0.0], [3, 2, 1], math.sqrt(3) / 2),  # ranks 2.5, 2.5, 1 against 3, 2, 1
        (
            [0.1, 0.1, 0.3, 0.5],
            [1, 2, 3, 4],
            4.5 / math.sqrt(4.5 * 5),
        ),  # 1.5, 1.5, 3, 4 against 1, 2, 3, 4
    ],
)
def test_rank_correlation(attention, lost, expected):
    assert agreement(record(attention), np.array([lost], np.float32)) == pytest.approx(expected)


def test_it_is_the_mean_of_the_rows_that_have_one():
    seen = record([0.1, 0.2, 0.7], [0.7, 0.2, 0.1], [0.2, 0.2, 0.6])
    assert agreement(seen, np.array([[1, 2, 3], [1, 2, 3], [4, 4, 4]])) == pytest.approx(0)
    assert math.isnan(agreement(seen, np.zeros((3, 3))))


def test_without_attention_there_is_none():
    with pytest.raises(UserError, match="no attention"):
        agreement(AttentionRecord(["s"], ["t"], {}), np.zeros((1, 1)))


# speed and memory


@pytest.mark.parametrize(
    "config", [TransformerConfig(width=64, ffn=128), RNNConfig(width=64, embedding=64)]
)
def test_a_hundred_tokens_take_less_than_ten_seconds(config):
    tokens = train_tokenizer("characters", ["abcdefghijklmnopqrstuvwxyz"], size=100)
    ours = Translator(build_model(config, tokens.size, tokens.size), tokens, tokens)
    result = Result("abcdefghij" * 10, "", [], 0.0, [], ids=tokens.encode("klmnopqrst" * 10))
    began = time.process_time()
    assert occlusion(ours, result).shape == gradient_times_input(ours, result).shape == (101, 101)
    assert time.process_time() - began < 20  # both


def test_no_more_logits_at_a_time_than_the_budget(run, monkeypatch):
    ours, seen = regard.load(run), []
    result, size = ours(TEXT), ours.target.size
    hidden = type(ours.model.decoder).output
    monkeypatch.setattr(
        type(ours.model.decoder),
        "output",
        lambda self, x: seen.append(x.numel() // 16 * size) or hidden(self, x),
    )
    occlusion(ours, result, budget=3 * size * (len(result.ids) + 1))
    assert sorted(set(seen)) == [size * (len(result.ids) + 1) * n for n in (1, 3)]


# a pruned run


def digest(folder):
    return {
        p: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


@pytest.fixture(scope="module")
def pruned(run, tmp_path_factory):
    """Without three of its six heads: a fourth comes back when the score falls, so that one
    attention keeps half of itself.
    """
    before, falling = digest(run.path), iter([0.5, 0.0, 0.5])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "regard.recipes.pruning.exact_match", lambda answers, references: next(falling)
        )
        made = prune(run.path, tmp_path_factory.mktemp("pruned") / "new" / "run", tolerance=0.02)
    assert digest(run.path) == before
    assert len(gone(made)) % 2 == 1
    return made


def gone(made):
    return [Head(**one) for one in made.manifest["pruned"]["heads"]]


def test_heads_are_silent_in_every_checkpoint(run, pruned):
    names = {
        "encoder": "encoder.blocks.0.attention",
        "decoder": "decoder.blocks.0.attention",
        "cross": "decoder.blocks.0.cross",
    }
    assert 0 < len(gone(pruned)) <= pruned.manifest["pruned"]["of"] == 6
    assert pruned.checkpoints() == run.checkpoints()
    for checkpoint in pruned.checkpoints():
        ours, theirs = (dict(one.model(checkpoint).named_parameters()) for one in (pruned, run))
        for one in gone(pruned):
            columns = slice(8 * one.head, 8 * (one.head + 1))
            name = f"{names[one.block]}.output.weight"
            assert theirs[name][:, columns].any()
            assert not ours[name][:, columns].any()
            theirs[name].data[:, columns] = 0
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_it_answers_as_the_old_one_without_those_heads(run, pruned):
    old, new, texts = regard.load(run), regard.load(pruned), ["1+2", TEXT, "99+1"]
    old.model, new.model = run.model("best").double(), pruned.model("best").double()
    with without(old.model, gone(pruned)):
        expected = [(one.text, one.score) for one in old(texts)]
    assert [(one.text, pytest.approx(one.score, rel=1e-9)) for one in new(texts)] == expected


def test_quality_is_kept_and_told(pruned):
    facts = pruned.manifest["pruned"]
    before, after = facts["before"], facts["after"]
    assert before["loss"] != after["loss"] <= before["loss"] + math.log(1.02)
    assert after["exact_match"] >= before["exact_match"] - 0.5
    assert "bleu" not in before  # the answers are single words
    found = regard.evaluate(pruned, split="dev").report
    terms = 100 * found.examples  # sums in fp32, over fewer tokens than that
    assert found.loss == pytest.approx(after["loss"], rel=float(np.finfo(np.float32).eps) * terms)
    assert (
        f"{len(facts['heads'])} of 6 heads are turned off"
        in (pruned.path / "README.md").read_text()
    )


def test_it_is_sound_and_can_be_trained_on(pruned, tmp_path):
    assert [row.name for row in doctor(pruned.path) if row.passed is False] == []
    more = regard.train(
        pruned.config,
        out=pruned.path,
        resume=True,
        reporter=Reporter(quiet=True),
        train={"steps": 8},
    )
    assert more.checkpoints()[-1] == "step-00000008"


def test_what_a_killed_process_left_is_no_checkpoint(run, tmp_path):
    old = shutil.copytree(run.path, tmp_path / "old")
    (old / "checkpoints" / ".step-00000009.1.tmp").mkdir()
    assert prune(old, tmp_path / "new", [("1+2", "3")]).checkpoints() == run.checkpoints()


def test_without_tolerance_only_what_harms_goes(run, tmp_path):
    pairs = [("1+2", "3"), ("10+20", "30")]
    made = prune(run.path, tmp_path / "strict", pairs, tolerance=0.0)
    facts = made.manifest["pruned"]
    assert facts["after"]["loss"] <= facts["before"]["loss"]
    harmful = [one for one in heads(regard.load(run), pairs) if one.lost <= 0]
    assert bool(harmful) == bool(gone(made))


def test_heads_come_back_when_the_score_falls(run, tmp_path, monkeypatch):
    falling = iter([50.0, 10.0, 49.0, 49.6])
    monkeypatch.setattr(
        "regard.recipes.pruning.exact_match", lambda answers, references: next(falling) / 100
    )
    made = prune(run.path, tmp_path / "fallen", tolerance=10.0)
    assert len(gone(made)) == 6 - 2
    assert made.manifest["pruned"]["after"]["exact_match"] == pytest.approx(49.6)


def test_bleu_counts_words_as_the_data_has_them(run, tmp_path, monkeypatch):
    """With data.tokenized=true pruning reports the BLEU that evaluate reports."""
    tokenized = regard.Run.open(shutil.copytree(run.path, tmp_path / "tokenized"))
    data = dataclasses.replace(tokenized.config.data, tokenized=True)
    tokenized.change(dataclasses.replace(tokenized.config, data=data))
    pairs = [("1+1", "one, and one. make two"), ("2+2", "two and two. make four, again")]
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"{source}\t{target}\n" for source, target in pairs)
    )

    def translate(self, texts, **_):
        return (Result(text, "one and one. make four, again", [], 0.0, []) for text in texts)

    monkeypatch.setattr(Translator, "translate", translate)
    report = regard.evaluate(tokenized, tmp_path / "pairs.tsv").report
    assert "tok:none" in report.bleu_signature
    assert report.bleu != regard.evaluate(run, tmp_path / "pairs.tsv").report.bleu > 0
    assert prune(tokenized.path, tmp_path / "new", pairs).manifest["pruned"]["before"][
        "bleu"
    ] == pytest.approx(report.bleu)


def test_what_cannot_be_pruned_is_refused(run, tiny, tmp_path):
    with pytest.raises(UserError, match="exists"):
        prune(run.path, tmp_path)
    given = {
        "model": {"kind": "rnn", "width": 8, "embedding": 8},
        "train": tiny["train"],
        "search": tiny["search"],
    }
    rnn = regard.train(
        [("a", "b"), ("b", "a")] * 20, out=tmp_path / "rnn", reporter=Reporter(quiet=True), **given
    )
    with pytest.raises(UserError, match="no heads to turn off"):
        prune(rnn.path, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_nothing_is_left_of_one_that_failed(run, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.recipes.pruning.storage.write_manifest", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prune(run.path, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


# the command line


def call(*words):
    return CliRunner().invoke(
        app, list(map(str, words)), env={"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
    )


def test_the_command_shows_all_target_tokens_or_one(run):
    whole, one = (
        call("show", "evidence", run.path, TEXT),
        call("show", "evidence", run.path, TEXT, "--token", "0"),
    )
    for done in (whole, one):
        assert done.exit_code == 0, done.exception
        assert "Rank correlation (Spearman): " in done.stdout
        assert re.search(
            r"rank the same source token first for \d+ of \d+ target tokens", done.stdout
        )
        assert "a token can get much attention and still not matter" in done.stdout
        assert all(name in done.stdout for name in ("attention", "occlusion", "gradient × input"))
    result = regard.load(run)(TEXT)
    assert whole.stdout.count("│\n") == len(result.ids) + 1
    assert one.stdout.count("│\n") == len(TEXT) + 1
    named = call("show", "evidence", run.path, TEXT, "--token", "<eos>", "--heads", "--lens")
    assert "for <eos>" in named.stdout
    assert "cross layer 1 head 2" in named.stdout
    assert "layer 0" not in named.stdout


def test_json_holds_everything(run):
    found = json.loads(
        call(
            "show", "evidence", run.path, TEXT, "--json", "--heads", "--lens", "--beam", "1"
        ).stdout
    )
    shape = len(found["target"]), len(found["source"])
    for name in ("attention", "occlusion", "gradient_times_input"):
        assert np.shape(found[name]) == shape
    ours = regard.load(run, beam=1)
    # Differences of log-probabilities in fp32, each a logit less a sum over the vocabulary.
    lost = occlusion(ours, ours(TEXT))
    largest = max(abs(x) for x in ours(TEXT).logprobs) + np.abs(lost).max()
    rounding = float(np.finfo(np.float32).eps) * ours.target.size * largest
    np.testing.assert_allclose(found["occlusion"], lost, rtol=0, atol=rounding)
    assert len(found["heads"]) == 6
    assert len(found["lens"]) == 1
    assert set(found["rank_correlation"]) == {"mean", "rollout"}


def test_the_picture_has_its_own_scale(run, tmp_path):
    assert call("show", "evidence", run.path, TEXT, "--out", tmp_path / "x.svg").exit_code == 0
    assert "drop in log-probability without it" in (tmp_path / "x.svg").read_text()


def test_a_model_without_attention_has_evidence_too(tiny, tmp_path):
    given = {
        "model": {"kind": "rnn", "width": 8, "embedding": 8, "attention": "none"},
        "train": tiny["train"],
    }
    rnn = regard.train(
        [("a b", "b a"), ("b", "a")] * 20,
        out=tmp_path / "rnn",
        reporter=Reporter(quiet=True),
        **given,
    )
    done = call("show", "evidence", rnn.path, "a b")
    assert done.exit_code == 0, done.exception
    assert "occlusion" in done.stdout
    assert "attention" not in done.stdout
    with pytest.raises(UserError, match="needs a Transformer"):
        raise call("show", "evidence", rnn.path, "a b", "--lens").exception


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((TEXT, "--token", "nowhere"), "--token: 'nowhere' is not in the answer; choose one of 0:"),
        ((TEXT, "--token", "99"), "--token: '99' is not in the answer; choose one of 0:"),
        (("",), "the answer is empty"),
        (("--beem",), "no option --beem; did you mean --beam?"),
    ],
)
def test_mistakes_are_told_in_one_line(run, words, said):
    error = call("show", "evidence", run.path, *words).exception
    assert isinstance(error, UserError)
    assert said in str(error)
    assert "\n" not in str(error)


def test_a_wrong_token_is_told_before_anything_is_computed(run, monkeypatch):
    def computed(*_):
        raise AssertionError("computed")

    monkeypatch.setattr("regard.inspection.evidence.occlusion", computed)
    with pytest.raises(UserError, match="--token: 'nowhere' is not in the answer"):
        raise call("show", "evidence", run.path, TEXT, "--token", "nowhere").exception


def test_prune_prints_the_scores(run, tmp_path):
    done = call("prune", run.path, "--out", tmp_path / "new", "--tolerance", "0.02")
    assert done.exit_code == 0, done.exception
    assert all(name in done.stdout for name in ("loss", "exact_match", "of 6 heads turned off"))
    told = json.loads(
        call("prune", run.path, "--out", tmp_path / "two", "--tolerance", "0.02", "--json").stdout
    )
    assert told["of"] == 6
