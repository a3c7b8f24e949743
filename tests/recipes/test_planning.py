"""The plan: what fits the data and the time, on machines of several speeds."""

import random
from dataclasses import replace

import pytest

from regard.config import build, merge
from regard.data.splits import from_iterable
from regard.recipes import pace, planning
from regard.recipes.budget import MINUTES
from regard.recipes.pace import Load, pairs_per_second
from regard.recipes.planning import choose
from regard.recipes.survey import survey


def sentences(count, words=8):
    rng = random.Random(count)
    letters = "abcdefghijklmnop"

    def sentence():
        return " ".join("".join(rng.choices(letters, k=rng.randint(1, 6))) for _ in range(words))

    return [(sentence(), sentence()) for _ in range(count)]


def machine(speed):
    """A machine that trains a model of width 128 on so many pairs a second."""

    def measure(model, load):
        layers = model["encoder_layers"] + model["decoder_layers"]
        return speed * (128 / model["width"]) ** 2 * 4 / layers

    return measure


def plan(pairs, speed, **given):
    splits = from_iterable(pairs)
    chosen, choices = choose(splits, given, machine(speed))
    config = build(merge(chosen, given))
    return config, {choice.what: choice for choice in choices}


@pytest.mark.parametrize(("speed", "width"), [(1, 128), (3000, 256), (10**6, 256)])
def test_a_faster_machine_trains_a_larger_model(speed, width):
    config, choices = plan(sentences(4000), speed)
    assert config.model.width == width
    assert f"of width {width}" in choices["model"].value


def test_more_time_trains_a_larger_model():
    short, _ = plan(sentences(4000), 500, train={"minutes": 2})
    long, _ = plan(sentences(4000), 500, train={"minutes": 60})
    assert (short.model.width, long.model.width) == (128, 256)
    assert (short.train.minutes, long.train.minutes) == (2, 60)


def test_the_time_is_told_first():
    config, choices = plan(sentences(400), 1000)
    assert config.train.minutes == MINUTES
    assert config.train.schedule == "wsd"
    assert (config.train.decay_start, config.train.decay_end) == (0, 0)
    assert "20 minutes" in choices["time"].value
    assert "train.minutes" in choices["time"].reason


@pytest.mark.parametrize("given", [{"steps": 50}, {"epochs": 3}, {"schedule": "cosine"}])
def test_who_counts_steps_or_epochs_has_no_time_limit(given):
    def never(model, load):
        raise AssertionError("measured")

    chosen, choices = choose(from_iterable(sentences(400)), {"train": given}, never)
    config = build(merge(chosen, {"train": given}))
    assert config.train.minutes == 0
    assert config.train.schedule == given.get("schedule", "linear")
    assert "time" not in {choice.what for choice in choices}


@pytest.mark.parametrize("count", [1, 50, 3000])
def test_dev_is_looked_at_often_enough_to_see_it_stop(count):
    """And training ends some day even if the clock does not end it."""
    config, _ = plan(sentences(count), 2000)
    train = config.train
    assert 1000 <= train.steps < 10**6
    assert train.warmup < train.steps / 4
    assert train.evaluate_every * train.patience < train.steps


def test_without_dev_it_ends_without_being_told():
    splits = from_iterable(sentences(500))
    chosen, choices = choose(replace(splits, dev=None), {}, machine(1000))
    with_dev, _ = choose(splits, {}, machine(1000))
    assert chosen["train"]["steps"] < with_dev["train"]["steps"]
    assert "dev" not in " ".join(map(str, choices))


def test_a_real_model_is_measured():
    model = {"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    load = Load(
        vocabulary=30,
        batch_tokens=64,
        batch_sentences=0,
        source_length=4,
        target_length=6,
        device="cpu",
    )
    assert load.pairs == 11
    assert pairs_per_second(model, load) > 0


def test_no_time_limit():
    config, choices = plan(sentences(400), 1000, train={"minutes": "0"})
    usual, _ = plan(sentences(400), 1000)
    assert config.train.minutes == 0
    assert config.train.schedule == "wsd"
    assert config.model == usual.model
    assert choices["time"].value.startswith("no limit")


def test_what_is_set_is_what_is_measured():
    measured = []

    def measure(model, load):
        measured.append((model, load))
        return 1000.0

    given = {
        "model": {"width": 48, "encoder_layers": 1, "decoder_layers": 1, "ffn": 64, "heads": 2},
        "data": {"batch_sentences": 8},
        "train": {"accumulate": 2},
    }
    chosen, _ = choose(from_iterable(sentences(4000)), given, measure)
    [(model, load)] = measured
    assert model["width"] == 48
    assert load.pairs == 8
    epochs = chosen["train"]["steps"] * 16 / 4000
    assert 200 < epochs < 400


def test_an_rnn_is_measured_as_such():
    measured = []

    def measure(model, load):
        measured.append(model)
        return 1000.0

    given = {"model": {"kind": "rnn", "cell": "gru"}}
    chosen, _ = choose(from_iterable(sentences(4000)), given, measure)
    assert measured == [given["model"]]
    assert chosen["train"]["rate"] == 1e-3


def test_a_model_of_ones_own_is_not_measured():
    def never(model, load):
        raise AssertionError("measured")

    chosen, _ = choose(from_iterable(sentences(400)), {"model": {"kind": "custom:Mine"}}, never)
    assert chosen["train"]["schedule"] == "wsd"


def test_long_texts_are_not_left_out():
    config, _ = plan(sentences(60, words=1500), 1000)
    assert config.data.max_length > 1000
    one_long = [*sentences(200), *sentences(1, words=50_000)]
    config, _ = plan(one_long, 1000)
    assert config.data.max_length == 256


def test_wsd_and_minutes_are_a_budget():
    config, choices = plan(sentences(400), 1000, train={"schedule": "wsd", "minutes": 30})
    assert config.train.metric == "accuracy"
    assert "30 minutes" in choices["time"].value


@pytest.mark.parametrize(
    ("has_dev", "speed", "dropout"), [(True, 1e4, 0.3), (True, 800, 0.2), (False, 1e4, 0.2)]
)
def test_dropout_is_for_epochs_that_are_trained(monkeypatch, has_dev, speed, dropout):
    """A fast machine has time for many epochs, but without dev it does not use it."""

    def of_many(*given, **more):
        return replace(survey(*given, **more), pairs=60_000)

    monkeypatch.setattr(planning, "survey", of_many)
    splits = from_iterable(sentences(100))
    splits = replace(splits, dev=splits.dev if has_dev else None)
    chosen, _ = choose(splits, {}, lambda model, load: speed)
    assert chosen["model"]["dropout"] == dropout


def test_texts_of_thousands_of_tokens_are_planned_for():
    """540 texts of 1,400 words: as much text as 12,000 long sentences, a few of them in a batch."""
    long_ones = [(source, "two words") for source, _ in sentences(540, words=1_400)]
    config, _ = plan(long_ones, 1)
    assert config.text.size == 4000
    assert config.data.max_length == 4096

    characters = sum(len(source) for source, _ in long_ones) / 540
    assert config.data.batch_tokens >= 4 * 0.25 * characters


@pytest.mark.parametrize("words", [8, 25])
def test_sentences_of_any_usual_length_have_the_vocabulary_of_their_number(words):
    config, _ = plan(sentences(2_000, words), 1)
    assert config.text.size == 1000
    assert config.data.max_length == 256


def test_no_text_is_longer_than_learned_positions():
    long_ones = [(source, "two words") for source, _ in sentences(540, words=1_400)]
    learned, _ = plan(long_ones, 1, model={"position": "learned"})
    assert learned.data.max_length == learned.model.max_positions == 1024


def test_no_text_is_longer_than_linformer_reads():
    long_ones = [(source, "two words") for source, _ in sentences(540, words=1_400)]
    mixing, _ = plan(long_ones, 1, model={"pattern": "linformer"})
    assert mixing.data.max_length == mixing.model.max_positions == 1024


@pytest.mark.parametrize("pattern", ["performer", "linformer", "lsh"])
def test_an_approximation_is_not_given_relative_positions(pattern):
    """Which it would refuse, though nobody has set them."""
    words = ["jump", "walk", "run", "look", "left", "right", "twice", "and"]
    rng = random.Random(1)
    texts = [" ".join(rng.choices(words, k=6)) for _ in range(400)]
    commands = [(text, text.upper()) for text in texts]
    usual, _ = plan(commands, 1)
    assert usual.model.position == "relative"
    approximate, _ = plan(commands, 1, model={"pattern": pattern})
    assert approximate.model.position == "sinusoidal"


def test_a_few_words_are_not_called_rare():
    """Twenty sentences are too few to call a vocabulary closed, but none of its words is rare."""
    rng = random.Random(1)
    words = ["the", "old", "cat", "sees", "a", "green", "tree", "today"]
    texts = [" ".join(rng.choices(words, k=7)) for _ in range(20)]
    evidence = survey(from_iterable(zip(texts, texts)).train).kind().evidence
    assert evidence == "8 different words, seen 16 times on average"


def test_a_model_that_does_not_fit_into_memory_is_not_chosen():
    def small_machine(model, load):
        return 0.0 if model["width"] > 256 else 1e6

    splits = from_iterable(sentences(60_000, words=3))
    chosen, _ = choose(splits, {}, small_machine)
    assert chosen["model"]["width"] == 256


def test_where_nothing_fits_the_smallest_model_is_tried():
    """Training splits its batches; planning only does not know its speed."""
    chosen, choices = choose(from_iterable(sentences(4_000)), {}, lambda model, load: 0.0)
    assert chosen["model"]["width"] == 128
    assert "epochs" not in str(next(choice for choice in choices if choice.what == "model"))


def test_a_batch_without_room_has_no_pace(monkeypatch):
    def no_room(*args):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate …")

    monkeypatch.setattr(pace, "_step", no_room)
    load = Load(50, 100, 0, 5.0, 5.0)
    model = {"width": 8, "ffn": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    assert pairs_per_second(model, load) == 0


def test_other_errors_of_measuring_are_not_hidden(monkeypatch):
    def broken(*args):
        raise RuntimeError("another error")

    monkeypatch.setattr(pace, "_step", broken)
    model = {"width": 8, "ffn": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    with pytest.raises(RuntimeError, match="another error"):
        pairs_per_second(model, Load(50, 100, 0, 5.0, 5.0))
