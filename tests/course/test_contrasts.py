"""E15: where does the translator fail? Contrastive pairs: a right and a wrong target each."""

import json
import random
import re
import tomllib
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

import regard
import regard.data.tasks.contrasts as grammar
from regard.cli import app, main
from regard.data.contrasts import read_contrasts
from regard.data.tasks import TASKS
from regard.data.tasks.phrases import OBJECTS, PRONOUNS
from regard.errors import UserError
from regard.inference.contrasts import judge_contrasts
from regard.records.contrast import Contrast, ContrastItem
from regard.records.likelihood import Likelihood
from regard.scoring import scores_by_kind

WORDS = tomllib.loads(Path(grammar.__file__).with_name("phrases.toml").read_text("utf-8"))
KINDS = [feature.kind for feature in grammar.FEATURES]
HOME = ContrastItem("i'm home .", "je suis chez moi .", "je suis chez lui .", "pronoun")


@pytest.fixture
def _in_double():
    """Trained runs are float32: the rest of this folder works in float64."""


@pytest.fixture(scope="module")
def items():
    """A hundred contrasts of each kind, as the task draws them from its test split."""
    drawn = list(TASKS["phrases"].contrasts(100 * len(KINDS), 1))
    return {kind: [item for item in drawn if item.kind == kind] for kind in KINDS}


def words_of(french):
    """The words of a sentence as they are without elision; of "l'" nobody knows what it was."""
    french = re.sub(r"\b(j|n|d|qu)'", r"\1e ", french)
    return french.replace("l'", "l' ").split()


def changed(item):
    """The words of the right and of the wrong target where they differ, other words being equal."""
    right = words_of(item.right)
    wrong = words_of(item.wrong)
    while right and wrong and right[0] == wrong[0]:
        right.pop(0)
        wrong.pop(0)
    while right and wrong and right[-1] == wrong[-1]:
        right.pop()
        wrong.pop()
    return right, wrong


def one_word(item):
    """The one word that differs, right and wrong."""
    right, wrong = changed(item)
    assert len(right) == len(wrong) == 1, item
    return right[0], wrong[0]


def conjugations():
    """The forms of each verb in each tense, by person."""
    for name in ("actions", "modals", "states"):
        for line in WORDS["verbs"][name].strip().splitlines():
            _, french, rest, *_ = line.split("|")
            yield french.split(",")[1:]
            yield [rest.split(",")[2] + ending for ending in ("ai", "as", "a", "ons", "ont")]
    yield from (forms.split() for forms in WORDS["verbs"]["imperfect"].values())


def adjectives():
    for line in WORDS["adjectives"]["words"].strip().splitlines():
        yield line.split(",")[1:5]


def test_e15_there_are_as_many_of_each_kind_and_they_repeat_nothing(items):
    assert {kind: len(of_kind) for kind, of_kind in items.items()} == dict.fromkeys(KINDS, 100)
    for of_kind in items.values():
        assert len({item.source for item in of_kind}) == 100
        assert all(item.right != item.wrong for item in of_kind)


def test_e15_the_wrong_verb_is_another_person_of_the_same_tense(items):
    conjugated = list(conjugations())
    for item in items["verb agreement"]:
        right, wrong = one_word(item)
        assert any(right in forms and wrong in forms for forms in conjugated), item


def test_e15_the_wrong_adjective_is_another_form_of_the_same(items):
    by_form = list(adjectives())
    for item in items["adjective agreement"]:
        right, wrong = one_word(item)
        assert any(right in forms and wrong in forms for forms in by_form), item


@pytest.mark.parametrize("kind", ["adjective agreement", "participle agreement"])
def test_e15_no_woman_is_called_wrong(items, kind):
    """ "Je suis heureuse" is as right as "je suis heureux": only the number can be wrong there."""
    tested = 0
    for item in items[kind]:
        right, wrong = one_word(item)
        speaker = re.search(r"\b(je\b|j'|tu\b|nous\b)", item.right)
        if speaker is None or "l'" in item.right or " le" in item.right:
            continue
        tested += 1
        forms = [[right + ending for ending in ("", "e", "s", "es")]]
        forms = [row for row in adjectives() if right in row] or forms
        plural = speaker[1] == "nous"
        acceptable = {form for row in forms for form in (row[2:] if plural else row[:2])}
        assert wrong not in acceptable, item
    assert tested


def test_e15_the_wrong_participle_has_another_ending(items):
    for item in items["participle agreement"]:
        right, wrong = one_word(item)
        stem = min(right, wrong, key=len).rstrip("es")
        stem = stem if right.startswith(stem) else right.rstrip("es")
        assert {right.removeprefix(stem), wrong.removeprefix(stem)} <= {"", "e", "s", "es"}, item


def test_e15_the_wrong_subject_is_another_pronoun(items):
    french = {pronoun.english: pronoun.french for pronoun in PRONOUNS}
    for item in items["subject pronoun"]:
        right, wrong = one_word(item)
        subjects = [word for word in re.findall(r"[a-z]+", item.source) if word in french]
        assert right == french[subjects[0]], item
        assert wrong in french.values()


def test_e15_the_wrong_object_is_another_pronoun(items):
    french = {pronoun.english: pronoun.french for pronoun in OBJECTS}
    for item in items["object pronoun"]:
        right, wrong = one_word(item)
        english = [word for word in item.source.split() if word in french][-1]
        spellings = {french[english]}
        if english in ("him", "her"):
            spellings.add("l'")
        assert right in spellings, item
        assert wrong in {"le", "la", "les", "l'"} - spellings, item


def test_e15_the_wrong_home_is_somebody_elses(items):
    for item in items["stressed pronoun"]:
        right, wrong = one_word(item)
        assert f"chez {right}" in item.right
        assert wrong in {"moi", "toi", "lui", "elle", "eux", "elles"}
        epicene = re.search(r"(professeur|enfant|touriste|peintre|médecin|écrivain)", item.right)
        assert not (epicene and {right, wrong} in ({"lui", "elle"}, {"eux", "elles"})), item


def test_e15_the_wrong_sentence_lacks_the_negation_and_nothing_else(items):
    for item in items["negation"]:
        assert re.search(r"n't|\bnot\b|never|cannot", item.source)
        right = words_of(item.right)
        right.remove("ne")
        right.remove("jamais" if "jamais" in right else "pas")
        assert right == words_of(item.wrong)
        assert "de" not in right, item  # "j'ai de chien" would be wrong in another way, too


def test_e15_contrasts_are_of_combinations_that_training_never_shows(items):
    trained = {english for english, _ in TASKS["phrases"].pairs(20_000, 1)}
    tested = {item.source for of_kind in items.values() for item in of_kind}
    assert not trained & tested
    pairs = {item.source: item.right for of_kind in items.values() for item in of_kind}
    drawn = dict(TASKS["phrases"].pairs(4_000, 1, split="test"))
    shared = pairs.keys() & drawn.keys()
    assert len(shared) > 50
    assert all(pairs[source] == drawn[source] for source in shared)


def test_e15_the_same_seed_gives_the_same_contrasts_and_more_continue_fewer():
    task = TASKS["phrases"]
    few = list(task.contrasts(10, 7))
    assert list(task.contrasts(20, 7))[:10] == few
    assert list(task.contrasts(10, 8)) != few
    assert list(task.contrasts(10, 7, split="train")) != few


def test_e15_a_kind_that_is_exhausted_is_left_out(monkeypatch):
    monkeypatch.setattr("regard.data.tasks.phrases.PATIENCE", 1)
    with pytest.raises(UserError, match=r"the grammar has only \d+ test contrasts; use fewer"):
        list(islice(grammar.generate(random.Random(1), split="test"), 10**6))


def test_e15_contrasts_are_no_task_to_train_on():
    assert "contrasts" not in TASKS
    with pytest.raises(UserError, match="copy has no contrasts; phrases has"):
        TASKS["copy"].contrasts(1)
    with pytest.raises(UserError, match="no split 'valid'"):
        TASKS["phrases"].contrasts(1, split="valid")


def stub(totals, unknown=()):
    """Scores by a table of targets, which reads three pairs ahead as batches do."""

    def scores(pairs):
        stream = iter(pairs)
        while window := list(islice(stream, 3)):
            for source, target in window:
                tokens = ["<unk>" if word in unknown else word for word in target.split()]
                logprobs = [totals[target], *[0.0] * (len(tokens) - 1)]
                yield Likelihood(source, target, tokens, logprobs, [], [], [])

    return scores


def test_e15_accuracy_and_margin_by_kind():
    totals = {"a": -1.0, "b": -3.0, "c": -2.0, "d": -2.5, "e": -4.0}
    items = [
        ContrastItem("1", "a", "b", "verb"),  # margin 2
        ContrastItem("2", "d", "c", "pronoun"),  # margin -0.5
        ContrastItem("3", "b", "a", "verb"),  # margin -2
        ContrastItem("4", "c", "e", "verb"),  # margin 2
        ContrastItem("5", "a", "e"),  # margin 3
    ]
    contrasts = list(judge_contrasts(stub(totals), iter(items)))
    assert [ContrastItem(one.source, one.right, one.wrong, one.kind) for one in contrasts] == items
    assert [one.margin for one in contrasts] == [2.0, -0.5, -2.0, 2.0, 3.0]
    assert [one.correct for one in contrasts] == [True, False, False, True, True]

    verb, pronoun, none = scores_by_kind(contrasts)
    assert (verb.kind, verb.items, verb.right) == ("verb", 3, 2)
    assert verb.accuracy == pytest.approx(2 / 3)
    assert verb.margin == pytest.approx(2 / 3)
    assert verb.worst.source == "3"
    assert (pronoun.kind, pronoun.items, pronoun.right, pronoun.accuracy) == ("pronoun", 1, 0, 0)
    assert (none.kind, none.right) == ("", 1)
    assert verb.as_dict()["worst"] == contrasts[2].as_dict()


def test_e15_targets_that_no_model_can_tell_apart_are_not_right():
    totals = {"yes x": -20.0, "yes y": -20.00001, "yes": -1.0}
    items = [("1", "yes x", "yes y"), ("1", "yes", "yes x")]
    both, one = judge_contrasts(stub(totals, unknown={"x", "y"}), items)
    assert not both.correct
    assert both.unknown
    assert one.correct
    assert one.unknown


def test_e15_what_differs_is_in_brackets():
    def difference(right, wrong):
        return Contrast("", right, wrong, "", 0.0, 0.0).difference()

    assert difference(HOME.right, HOME.wrong) == "je suis chez [moi | lui] ."
    assert difference("il ne dort pas .", "il dort .") == "il [ne dort pas | dort] ."
    assert difference("il dort", "il dort bien") == "il dort [– | bien]"
    assert difference("la la", "la") == "la [la | –]"


def test_e15_a_contrast_is_two_scores(run):
    translator = regard.load(run, device="cpu")
    items = [(f"{n}+1", f"{n + 1}", f"{n + 2}", "digit") for n in range(3)]
    for item, contrast in zip(items, translator.contrasts(items), strict=True):
        source, right, wrong, kind = item
        assert contrast.kind == kind
        assert contrast.right_logprob == pytest.approx(translator.score(source, right).total)
        assert contrast.wrong_logprob == pytest.approx(translator.score(source, wrong).total)
    with pytest.raises(UserError, match="a contrast is"):
        list(translator.contrasts([("1+1", "2")]))


def call(*words):
    """Standard output of a command that should succeed."""
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def judging(monkeypatch):
    """Let every run score targets by a table."""

    def judge_by(totals):
        scores = stub(totals)
        monkeypatch.setattr(regard.Translator, "scores", lambda self, pairs: scores(pairs))

    return judge_by


def test_e15_the_command_prints_a_table_by_kind(run, tmp_path, judging):
    judging({"2": -1.0, "3": -2.0, "4": -4.0, "5": -3.5})
    file = tmp_path / "sums.tsv"
    lines = ["source\tright\twrong\tkind", "1+1\t2\t3\teasy", "2+2\t4\t5\thard", ""]
    file.write_text("\n".join([*lines, "1+2\t3\t4\thard"]))
    said = call("score", run.path, "--contrasts", file).splitlines()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in said if "│" in line]
    assert rows == [
        ["easy", "1", "1", "100.00%", "1.00"],
        ["hard", "2", "1", "50.00%", "0.75"],
        ["all", "3", "2", "66.67%", "0.83"],
    ]
    assert said[-2:] == ["  ✓   1.00  1+1 → [2 | 3]", "  ✗  -0.50  2+2 → [4 | 5]"]

    *contrasts, last = map(
        json.loads, call("score", run.path, "--contrasts", file, "--json").splitlines()
    )
    assert [one["correct"] for one in contrasts] == [True, False, True]
    assert [one["margin"] for one in contrasts] == [1.0, -0.5, 2.0]
    assert [(kind["kind"], kind["right"]) for kind in last["summary"]] == [("easy", 1), ("hard", 1)]


def test_e15_kinds_may_be_left_out_and_unknown_words_are_told(run, tmp_path):
    file = tmp_path / "sums.tsv"
    file.write_bytes("1+1\t2\té\n".encode("latin-1"))
    words = ["score", run.path, "--contrasts", file, "data.encoding=latin-1"]
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert "│ all " in done.stdout
    assert "warning: 1 contrast with words that are not in the vocabulary (<unk>)" in done.stderr


def test_e15_the_grammars_contrasts_are_a_file_that_score_reads(tmp_path):
    words = ["data", "generate", "phrases", "--contrasts", "--count", 14, "--seed", 3]
    file = tmp_path / "contrasts.tsv"
    file.write_text(call(*words), encoding="utf-8")
    items = list(read_contrasts(file))
    assert items == list(TASKS["phrases"].contrasts(14, 3))
    assert [item.kind for item in items] == KINDS * 2
    lines = call(*words, "--json").splitlines()
    assert [ContrastItem(**json.loads(line)) for line in lines] == items


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--contrasts", "short.tsv"], "short.tsv line 2: 2 columns, expected source TAB right"),
        (["--contrasts", "long.tsv"], "long.tsv line 1: 5 columns, expected source TAB right"),
        (["--contrasts", "hole.tsv"], "hole.tsv line 1: column 'wrong' is empty"),
        (["--contrasts", "same.tsv"], "same.tsv line 3: the right and the wrong target are the"),
        (["--contrasts", "latin.tsv"], "latin.tsv line 1: not UTF-8; data.encoding=latin-1 may"),
        (["--contrasts", "header.tsv"], "header.tsv: no contrastive pairs in it"),
        (["--contrasts", "empty.tsv"], "empty.tsv: the file is empty"),
        (["--contrasts", "nothing.tsv"], "nothing.tsv: no such file"),
        (["--contrasts", "."], ".: a folder, not a file"),
        (["--contrasts", "header.tsv", "--input", "same.tsv"], "--contrasts cannot be combined"),
        (["--contrasts", "header.tsv", "--tokens"], "--contrasts cannot be combined"),
        (["--contrasts", "header.tsv", "data.header=no"], "only data.encoding can be set"),
        (["--contrasts", "header.tsv", "1+1"], "'1+1' is not a setting"),
    ],
)
def test_e15_a_bad_line_is_named_in_one_line(run, tmp_path, monkeypatch, capfd, words, message):
    files = {
        "short.tsv": b"1+1\t2\t3\n1+1\t2\n",
        "long.tsv": b"1+1\t2\t3\tdigit\tmore\n",
        "hole.tsv": b"1+1\t2\t \tdigit\n",
        "same.tsv": b"1+1\t2\t3\n\n1+1\t2\t2 \r\n",
        "latin.tsv": "1+1\t2\té\n".encode("latin-1"),
        "header.tsv": b"Source\tRight\tWrong\n",
        "empty.tsv": b"",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["regard", "score", str(run.path), *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    output = capfd.readouterr()
    assert stopped.value.code == 2, output.err
    assert message in output.err
    assert len(output.err.splitlines()) == 1
    assert output.out == ""
