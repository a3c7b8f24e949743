"""Where the data leaves the plan open, both are tried, and the better one on dev is trained."""

import io
import math
import random
import signal
from dataclasses import replace

import pytest
import torch

import regard
from regard.config import TrainConfig, build, to_settings
from regard.data.corpus import Corpus
from regard.data.splits import from_iterable
from regard.data.tasks import TASKS
from regard.errors import Interrupted
from regard.recipes import planning, trials
from regard.recipes.fitting import fit
from regard.recipes.planning import plans
from regard.recipes.reporter import Reporter
from regard.recipes.survey import survey
from regard.recipes.trials import UNKNOWN, Trial, most_trials, small, total_nats, trial_seconds
from regard.runs.run import Run
from regard.runs.weights import get_weights
from regard.text.vocabulary import UNK
from regard.training.trainer import Trouble

LATIN = "abcdefghijklmnoprstuvz"
GREEK = "αβγδεζηθικλμνξοπρστυφχ"


# the data: languages that do not exist


def word(rng, low=3, high=9):
    return "".join(rng.choices(LATIN, k=rng.randint(low, high)))


def greek(text):
    return text.translate(str.maketrans(LATIN, GREEK))


def backwards(words):
    return " ".join(words), " ".join(one[::-1] for one in words)


def long_sentences(rng):
    return backwards([word(rng) for _ in range(rng.randint(6, 12))])


def short_words_to_sentences(rng):
    """Four words become six: one side alone makes sentences of them."""
    words = [word(rng, 2, 5) for _ in range(4)]
    return " ".join(words), " ".join([*words, word(rng), word(rng)])


def sounds(rng):
    one = word(rng)
    return one, " ".join(one)


def names(rng):
    one = word(rng)
    return one, greek(one)


def full_names(rng):
    one = f"{word(rng)} {word(rng)}"
    return one, greek(one)


def plurals(rng):
    one = word(rng)
    return one, f"{one}es"


def sums(rng):
    one = rng.randint(0, 999)
    other = rng.randint(0, 999)
    return f"{one}+{other}", str(one + other)


def vocabulary(count):
    rng = random.Random(count)
    return list(dict.fromkeys(word(rng) for _ in range(2 * count)))[:count]


COMMANDS = vocabulary(200)


def commands(rng):
    return backwards(rng.choices(COMMANDS, k=rng.randint(2, 12)))


def phrases(rng):
    return backwards([word(rng, 2, 7) for _ in range(rng.choice((3, 3, 4)))])


def products(rng):
    """One or two long words, such as Lautsprecherkabel."""
    return backwards([word(rng, 9, 15) for _ in range(rng.choice((2, 2, 3)))])


def measured(draw, count):
    rng = random.Random(count)
    return survey(from_iterable([draw(rng) for _ in range(count)]).train)


CLEAR = [
    (long_sentences, 2000, "bpe"),
    (short_words_to_sentences, 2000, "bpe"),
    (sounds, 2000, "characters"),
    (names, 2000, "characters"),
    (full_names, 2000, "characters"),
    (plurals, 2000, "characters"),
    (sums, 2000, "characters"),
    (commands, 5000, "words"),
]


# what leaves it open


@pytest.mark.parametrize(("draw", "count", "tokenizer"), CLEAR)
def test_what_is_clear_has_no_rival(draw, count, tokenizer):
    found = measured(draw, count)
    assert found.kind().source == tokenizer
    assert found.rival() is None


@pytest.mark.parametrize("words", [1, 3])
def test_a_word_and_its_tags_has_no_rival(words):
    rng = random.Random(words)
    lemmas = [" ".join(word(rng) for _ in range(words)) for _ in range(300)]
    pairs = [{"lemma": lemma, "form": f"{lemma}es", "tags": "N;PL"} for lemma in lemmas]
    splits = from_iterable(pairs, source="lemma", target="form", features="tags")
    assert survey(splits.train, has_tags=True).rival() is None
    untagged = from_iterable([(pair["lemma"], pair["form"]) for pair in pairs])
    assert (survey(untagged.train).rival() is None) == (words == 1)


@pytest.mark.parametrize(
    ("draw", "first", "second"),
    [(phrases, "bpe", "characters"), (products, "characters", "bpe")],
)
def test_between_names_and_sentences_both_are_possible(draw, first, second):
    found = measured(draw, 500)
    rival = found.rival()
    assert found.kind().source == first
    assert (rival.source, rival.target) == (second, second)
    assert "between names and sentences" in rival.evidence


@pytest.mark.parametrize(
    ("words", "seen", "length", "first", "second"),
    [
        (500, 25, 5, "words", "bpe"),
        (500, 25, 8, "words", "bpe"),
        (500, 15, 5, "bpe", "words"),
        (500, 15, 6, "bpe", None),  # these are ordinary sentences
        (2500, 50, 5, "words", "bpe"),
        (4000, 25, 5, "bpe", "words"),
        (500, 60, 5, "words", None),
        (500, 5, 5, "bpe", None),
        (6000, 30, 5, "bpe", None),
    ],
)
def test_a_vocabulary_that_is_just_about_closed(words, seen, length, first, second):
    """Texts of five words are too long for names, and too short for ordinary sentences."""
    known = [f"w{number:04d}" for number in range(words)] * seen
    random.Random(words).shuffle(known)
    texts = [" ".join(known[at : at + length]) for at in range(0, len(known), length)]
    pairs = [(text, text.upper()) for text in texts]
    found = survey(from_iterable({"train": pairs, "dev": pairs[:2], "test": pairs[:2]}).train)
    rival = found.rival()
    assert found.kind().source == first
    assert (rival and rival.source) == second
    assert rival is None or "times" in rival.evidence


def test_a_generated_task_has_one_plan():
    splits = from_iterable(drawn(phrases))

    def count(name):
        return len(plans(replace(splits, name=name), {}, most=2, measure=lambda model, load: 1e3))

    assert count("pairs.tsv") == 2
    assert {count(name) for name in TASKS} == {1}


def test_each_plan_has_its_own_model():
    splits = from_iterable(drawn(phrases))
    first, second = plans(splits, {}, most=2, measure=lambda model, load: 1e6)
    assert first.settings["text"]["tokenizer"] == "bpe"
    assert second.settings["text"]["tokenizer"] == "characters"
    assert first.settings["model"] != second.settings["model"]
    assert len(plans(splits, {}, most=1, measure=lambda model, load: 1e6)) == 1


# when plans are tried, and for how long


@pytest.mark.parametrize(
    "given",
    [
        {"train": {"trials": 0}},
        {"train": {"trials": "1"}},
        {"train": {"minutes": 0.9}},
        {"train": {"minutes": 0}},
        {"train": {"steps": 100}},
        {"train": {"epochs": 2}},
        {"train": {"schedule": "linear"}},
        {"train": {"start_from": "runs/old"}},
        {"text": {"lowercase": True}},
    ],
)
def test_what_somebody_has_set_is_not_tried(given):
    splits = from_iterable(drawn(phrases))
    most = most_trials(given, splits)
    assert len(plans(splits, given, most=most, measure=lambda model, load: 1e6)) == 1


def architectures(pairs, given=None, most=2):
    splits = from_iterable(pairs)
    found = plans(splits, given or {}, most=most, measure=lambda model, load: 1e6)
    return [plan.architecture for plan in found]


def test_words_that_are_spelled_may_have_either_model():
    spelled = drawn(names, 500)
    assert architectures(spelled) == ["LSTM", "Transformer"]
    assert architectures(spelled, most=1) == ["LSTM"]
    assert architectures(spelled, {"text": {"lowercase": True}}) == ["LSTM", "Transformer"]
    assert architectures(spelled, {"model": {"width": 64}}) == ["Transformer"]
    assert architectures(spelled, {"model": {"kind": "rnn"}}) == [""]
    assert architectures(spelled, {"train": {"steps": 100}}) == ["Transformer"]
    assert architectures(spelled, {"data": {"positions": "3"}}) == ["Transformer"]
    assert architectures(spelled, {"train": {"path": "compiled"}}) == ["Transformer"]
    assert architectures(spelled, {"text": {"tokenizer": "bpe"}}) == ["Transformer"]
    assert architectures(spelled, {"text": {"tokenizer": "characters"}})[0] == "LSTM"


def chosen_for(draw, given, measure=lambda model, load: 1e6):
    [plan] = plans(from_iterable(drawn(draw, 2000)), given, most=1, measure=measure)
    return plan.settings


def test_what_suits_few_words_is_for_words():
    """Who sets other tokens, or a beam, has neither greedy search nor relative positions."""
    usual = chosen_for(commands, {})
    assert usual["search"] == {"length_penalty": 0.0, "width": 1}
    assert usual["model"]["position"] == "relative"
    assert usual["model"]["dropout"] == 0.1

    other = chosen_for(commands, {"text": {"tokenizer": "bpe"}})
    assert other["search"] == {}
    assert "position" not in other["model"]
    for name in ("width", "length_penalty", "patience", "diversity", "coverage"):
        assert chosen_for(commands, {"search": {name: 0.5}})["search"] == {}


def test_the_model_that_is_trained_is_the_one_that_is_measured():
    measured = []

    def measure(model, load):
        measured.append(model)
        return 1e6

    chosen = chosen_for(commands, {}, measure)
    assert all(model["position"] == "relative" for model in measured)
    assert measured[-1].items() <= chosen["model"].items()


@pytest.mark.parametrize("draw", [sums, commands, long_sentences])
def test_others_are_left_to_a_transformer(draw):
    assert architectures(drawn(draw, 2000)) == ["Transformer"]


def test_a_rival_kind_is_tried_before_another_model():
    splits = from_iterable(drawn(products, 500))
    found = plans(splits, {}, most=3, measure=lambda model, load: 1e6)
    assert [plan.name for plan in found] == [
        "LSTM, characters",
        "Transformer, BPE, up to 1,000",
        "Transformer, characters",
    ]


@pytest.mark.parametrize(
    ("others", "best"),
    [([10.0, 9.9], 0), ([10.0, 9.0], 1), ([10.0, 11.0], 0), ([10.0, 9.8, 9.5], 2)],
)
def test_the_first_choice_stays_unless_another_is_clearly_better(others, best):
    tried = [Trial(str(nats), "", "", pairs=5, nats=nats) for nats in others]
    assert trials._best(tried)[0] == best


@pytest.mark.parametrize(("right", "best"), [((0.8, 0.805), 0), ((0.8, 0.82), 1), ((0.8, 0.7), 0)])
def test_right_answers_count_more_than_likely_ones(right, best):
    """Where answers are right or wrong as a whole."""
    nats = (10.0, 9.9)
    tried = [
        Trial("", "", "", pairs=500, nats=n, right=share, answers=500)
        for n, share in zip(nats, right)
    ]
    assert trials._best(tried)[0] == best


def judged_by(right, nats, answers):
    tried = [
        Trial("", "", "", pairs=answers, nats=n, right=share, answers=answers)
        for share, n in zip(right, nats)
    ]
    return trials._best(tried)[0]


def test_a_single_answer_decides_nothing():
    assert judged_by((0, 1 / 15), (5.0, 50.0), answers=15) == 0
    assert judged_by((0, 4 / 15), (5.0, 50.0), answers=15) == 1


def test_where_none_can_spell_yet_the_likelier_answers_count():
    assert judged_by((0, 0), (50.0, 5.0), answers=500) == 1
    assert judged_by((0.1, 0), (50.0, 5.0), answers=500) == 0


def test_answers_are_looked_at_where_words_are_spelled(tmp_path, few_steps, monkeypatch):
    """Both plans are trained for four steps; none of them can spell yet."""
    sizes = ((0, planning._lstm(8)),)
    monkeypatch.setattr(planning, "LSTMS", sizes)
    monkeypatch.setattr(planning, "OF_LETTERS", ((0, planning.transformer(8, 8, 2, 1)),))
    monkeypatch.setattr("regard.recipes.training.fit", lambda run, **more: run)
    said = io.StringIO()
    run = regard.train(drawn(names, 300), out=tmp_path / "run", reporter=Reporter(said))
    first, second = run.manifest["trials"]
    assert (first["right"], second["right"]) == (0, 0)
    assert "LSTM, characters: 0.0% of dev answers right" in said.getvalue()
    assert "training with LSTM, characters: no other plan is clearly better" in said.getvalue()
    assert run.config.model.kind == "rnn"


def test_nothing_set_is_tried():
    splits = from_iterable(drawn(phrases))
    assert most_trials({}, splits) == 2
    assert most_trials({"train": {"minutes": "3", "trials": "3"}}, splits) == 3
    assert most_trials({}, replace(splits, dev=None)) == 1


@pytest.mark.parametrize(("minutes", "seconds"), [(3, 20), (6, 20), (20, 60)])
def test_a_trial_is_a_small_share_of_the_time(minutes, seconds):
    assert trial_seconds(minutes) == pytest.approx(seconds)


def test_a_trial_is_the_training_in_small():
    """Else the whole trial might be a part of the warm-up."""
    train = TrainConfig(
        minutes=20, steps=10_000, schedule="wsd", warmup=400, ema=0.999, path="compiled"
    )
    config = replace(build({}), train=replace(train, decay_start=10, decay_end=20))
    tried = small(config, 60).train
    assert (tried.minutes, tried.steps, tried.warmup) == (1, 1000, 20)
    longer = replace(config, train=replace(config.train, steps=40_000))
    assert small(longer, 60).train.steps == 2000
    assert small(build({"train": {"minutes": 20, "steps": 30}}), 60).train.steps == 30
    assert tried.ema == pytest.approx(0.98)
    assert (tried.decay_start, tried.decay_end, tried.path) == (0, 0, "plain")
    assert (tried.seed, tried.rate) == (train.seed, train.rate)
    assert small(build({"train": {"minutes": 20}}), 60).train.ema == 0


# trials


def drawn(draw, count=200):
    rng = random.Random(1)
    return [draw(rng) for _ in range(count)]


@pytest.fixture
def few_steps(monkeypatch):
    """Trials of four steps, however fast the machine is; and its speed is measured in one."""
    monkeypatch.setattr("regard.recipes.pace.STEPS", 1)

    def four(config, seconds):
        return replace(config, train=replace(config.train, decay_start=2, decay_end=4))

    monkeypatch.setattr(trials, "small", four)


@pytest.fixture
def train(tiny, tmp_path, few_steps):
    """Train on short phrases for six steps, and say aloud what happens."""

    def call(out="run", resume=False, **sections):
        # What a plan would choose by the speed of the machine is given.
        usual = {
            "minutes": 20,
            "schedule": "wsd",
            "decay_start": 4,
            "decay_end": 6,
            "warmup": 2,
            "ema": 0.5,
            "evaluate_every": 3,
            "save_every": 3,
            "threads": 1,
            "tensorboard": "off",
        }
        said = io.StringIO()
        run = regard.train(
            iter(drawn(phrases)),  # nobody can read them twice
            out=tmp_path / out,
            resume=resume,
            reporter=Reporter(said),
            model=tiny["model"] | {"dropout": 0.2},
            train=usual | sections.get("train", {}),
            data={"batch_tokens": 128} | sections.get("data", {}),
            text=sections.get("text", {}),
            search=sections.get("search", {}),
        )
        run.said = said.getvalue()
        return run

    return call


@pytest.fixture
def only_trials(monkeypatch):
    """The run is prepared, but not trained."""
    monkeypatch.setattr("regard.recipes.training.fit", lambda run, **more: run)


def judge(monkeypatch, verdict):
    """Let verdict(vocabulary) say how many nats dev takes. BPE knows more tokens than letters."""

    def nats(model, dev, batch_tokens, device):
        table = next(weight for name, weight in model.named_parameters() if "embed" in name)
        return verdict("bpe" if len(table) > 100 else "characters")

    monkeypatch.setattr(trials, "total_nats", nats)


def left_over(folder):
    return sorted(path.name for path in folder.rglob("*") if path.name.endswith((".tmp", "trials")))


@pytest.mark.parametrize("better", ["characters", "bpe"])
def test_the_better_plan_is_trained(train, monkeypatch, tmp_path, better):
    seen = []

    def verdict(tokenizer):
        seen.append((tokenizer, left_over(tmp_path)))
        return 10.0 if tokenizer == better else 20.0

    judge(monkeypatch, verdict)
    run = train()
    assert run.config.text.tokenizer == better
    assert seen == [(name, [".run.tmp", "trials"]) for name in ("bpe", "characters")]
    assert left_over(tmp_path) == []
    assert run.checkpoints()[-1] == "step-00000006"

    lines = run.said.splitlines()
    before = next(line for line in lines if line.startswith("trying 2 plans for 60 seconds each"))
    assert "between names and sentences" in before
    assert sum("nats per dev pair after" in line for line in lines) == 2
    chosen = "BPE, up to 1,000" if better == "bpe" else "characters"
    why = "it is better on dev"
    if better == "bpe":  # which was the first choice
        why = "no other plan is clearly better on dev"
    assert f"training with Transformer, {chosen}: {why}" in lines
    assert any(line.startswith(f"tokens: {chosen} (") for line in lines)


def test_what_was_tried_is_recorded(train, only_trials):
    run = Run.open(train().path)
    first, second = run.manifest["trials"]
    assert first.keys() == second.keys()
    assert (first["tokenizer"], second["tokenizer"]) == ("BPE, up to 1,000", "characters")
    assert (first["steps"], second["steps"]) == (4, 4)
    assert first["dev_pairs"] == second["dev_pairs"] > 0
    assert first["seconds"] > 0
    assert "width 16" in first["model"]
    best = min((first, second), key=lambda trial: trial["nats_per_dev_pair"])
    assert [trial["chosen"] for trial in (first, second)] == [best is first, best is second]


def test_no_trials_are_asked_for(train, only_trials, monkeypatch):
    judge(monkeypatch, lambda tokenizer: pytest.fail("tried"))
    run = train(train={"trials": 0})
    assert run.config.text.tokenizer == "bpe"
    assert "trials" not in run.manifest
    assert "trying" not in run.said


@pytest.mark.parametrize("better", ["characters", "bpe"])
def test_the_chosen_run_is_bit_for_bit_the_run_without_trials(train, monkeypatch, better):
    judge(monkeypatch, lambda tokenizer: 10.0 if tokenizer == better else 20.0)
    began = []

    def note_and_fit(run, **more):
        began.append((torch.get_num_threads(), torch.get_rng_state()))
        return fit(run, **more)

    monkeypatch.setattr("regard.recipes.training.fit", note_and_fit)
    torch.manual_seed(3)
    tried = train("tried")
    settings = to_settings(tried.config)
    text = {name: settings["text"][name] for name in ("tokenizer", "size", "share")}
    torch.manual_seed(3)
    plain = train("plain", text=text, search=settings["search"], train={"trials": 0})
    assert "trials" not in plain.manifest
    (threads, state), (plain_threads, plain_state) = began
    assert threads == plain_threads
    assert torch.equal(state, plain_state)
    settings["train"]["trials"] = 0
    assert to_settings(plain.config) == settings
    assert tried.checkpoints() == plain.checkpoints()
    for name in plain.checkpoints():
        assert (
            tried.checkpoint(name)["model.safetensors"]
            == (plain.checkpoint(name)["model.safetensors"])
        )
    untrained = get_weights(tried.new_model())
    assert any(
        not torch.equal(weight, untrained[name])
        for name, weight in get_weights(tried.model()).items()
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_interrupts_a_trial_has_lost_nothing(train, monkeypatch, tmp_path, number, code):
    handler = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        judge(patch, lambda tokenizer: signal.raise_signal(number))
        with pytest.raises(Interrupted, match="nothing is lost: the same command starts") as caught:
            train()
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is handler

    again = train(resume=True)
    assert len(again.manifest["trials"]) == 2
    assert again.checkpoints()[-1] == "step-00000006"


def no_memory():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore of it.")


def no_number():
    raise Trouble


@pytest.mark.parametrize(
    ("fail", "told"),
    [
        (no_memory, "CUDA out of memory. Tried to allocate 2 GiB."),
        (no_number, "the loss is NaN or infinite"),
        (lambda: math.nan, "the loss on dev is NaN or infinite"),
    ],
)
def test_a_trial_that_fails_loses_aloud(train, only_trials, monkeypatch, fail, told):
    judge(monkeypatch, lambda tokenizer: fail() if tokenizer == "bpe" else 10.0)
    run = train()
    assert run.config.text.tokenizer == "characters"
    assert f"Transformer, BPE, up to 1,000: the trial failed: {told}\n" in run.said
    assert "training with Transformer, characters: no other trial came to its end\n" in run.said
    failed, other = run.manifest["trials"]
    assert failed["problem"] == told
    assert "nats_per_dev_pair" not in failed
    assert (failed["chosen"], other["chosen"]) == (False, True)


def test_where_all_fail_the_first_choice_is_trained(train, only_trials, monkeypatch):
    judge(monkeypatch, lambda tokenizer: no_memory())
    run = train()
    assert run.config.text.tokenizer == "bpe"
    assert run.said.count("the trial failed") == 2
    assert "all trials failed, and it was the first choice" in run.said
    assert [trial["chosen"] for trial in run.manifest["trials"]] == [True, False]


def test_different_dev_pairs_are_not_compared(train, only_trials, monkeypatch):
    """Of sixteen letters one tokenizer makes more than twelve tokens, the other does not."""
    judge(monkeypatch, lambda tokenizer: 1.0 if tokenizer == "characters" else 10.0**6)
    run = train(data={"max_length": 14})
    first, second = run.manifest["trials"]
    assert second["dev_pairs"] < first["dev_pairs"]
    assert run.config.text.tokenizer == "bpe"
    numbers = f"{second['dev_pairs']} and {first['dev_pairs']} dev pairs cannot be compared"
    assert numbers in run.said


# the figure


class Marked:
    """A dev corpus whose first target also has a token that is unknown, for whoever asks."""

    def __init__(self, corpus):
        self._corpus = corpus

    def __getattr__(self, name):
        return getattr(self._corpus, name)

    def __len__(self):
        return len(self._corpus)

    def row(self, number):
        source, target, *more = self._corpus.row(number)
        if number == 0:
            target = target.copy()
            target[1] = UNK
        return source, target, *more


def test_the_figure_is_the_likelihood_of_the_targets_as_they_are_scored(run):
    """Not smoothed, though the training was; the same as `regard score` gives."""
    assert run.config.train.smoothing > 0
    dev = Corpus.open(run.path / "data" / "dev")
    translator = regard.load(run, device="cpu")
    expected = 0.0
    for number in range(len(dev)):
        source, target = dev.row(number)
        scored = translator.score(run.source.decode(source), run.target.decode(target))
        expected -= scored.total
    nats = total_nats(run.model(), dev, 256, torch.device("cpu"))
    assert nats == pytest.approx(expected, rel=1e-4)


def test_a_token_that_no_model_can_write_has_its_price(run):
    dev = Corpus.open(run.path / "data" / "dev")
    cpu = torch.device("cpu")

    def unknown(number):
        return int((dev.row(number)[1] == UNK).sum())

    assert sum(map(unknown, range(len(dev)))) == 0
    model = run.model()
    marked = total_nats(model, Marked(dev), 256, cpu)
    plain_loss = trials.mean_loss(model, Marked(dev), 256, cpu)
    assert marked == pytest.approx(plain_loss["loss"] * plain_loss["tokens"] + UNKNOWN)
