"""Language models are trained, loaded, judged, gone on with and fine-tuned like any other run."""

import json
import math
import random

import numpy as np
import pytest

import regard
from regard.data.objectives import objective_of
from regard.errors import UserError
from regard.recipes.outcome import dev_texts, noisy
from regard.recipes.reporter import Reporter
from regard.recipes.text_evaluation import evaluate_texts
from regard.text.missing import WithMasks
from regard.text.vocabulary import BOS, EOS

SIZES = {"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
TRAIN = {"steps": 8, "epochs": 0, "warmup": 2, "log_every": 2, "evaluate_every": 4}
TRAIN |= {
    "save_every": 4,
    "tensorboard": "off",
    "schedule": "constant",
    "threads": 1,
    "device": "cpu",
}
SUBJECTS, VERBS = ("the cat", "a dog", "my cow"), ("sat", "ran", "ate")


@pytest.fixture(scope="module")
def texts():
    words = random.Random(1)
    return [f"{words.choice(SUBJECTS)} {words.choice(VERBS)} {words.choice('abc')}"] + [
        " and ".join(
            f"{words.choice(SUBJECTS)} {words.choice(VERBS)}" for _ in range(count % 4 + 1)
        )
        for count in range(150)
    ]


@pytest.fixture(scope="module")
def file(texts, tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "notes.txt"
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def train(texts, out, objective, **changes):
    settings = {
        "model": SIZES | {"dropout": 0.0},
        "data": {"dev": 20, "test": 20, "batch_tokens": 400, "max_length": 30},
        "text": {"tokenizer": "characters"},
        "train": TRAIN | {"objective": objective},
    }
    for section, values in changes.items():
        settings[section] = settings.get(section, {}) | values
    return regard.train(texts, out=out, reporter=Reporter(quiet=True), **settings)


@pytest.fixture(scope="module")
def runs(file, tmp_path_factory):
    """A run of each objective, from the same file; nobody may change them."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        objective: train(file, folder / objective, objective)
        for objective in ("causal", "masked", "denoise")
    }


KINDS = {
    "causal": regard.LanguageModel,
    "masked": regard.MaskedLanguageModel,
    "denoise": regard.DenoisingModel,
}
objectives = pytest.mark.parametrize("objective", KINDS)


@objectives
def test_load_gives_what_suits_the_objective(runs, objective):
    run = runs[objective]
    assert type(regard.load(run)) is KINDS[objective]
    assert type(regard.load(run.path, kind=KINDS[objective])) is KINDS[objective]
    for kind in set(KINDS.values()) - {KINDS[objective]}:
        with pytest.raises(UserError, match=f"train.objective={objective}.*not a {kind.__name__}"):
            regard.load(run, kind=kind)


def test_each_does_what_it_is_for(runs):
    written = regard.load(runs["causal"])("the", tokens=5)
    assert written.text.startswith("the")
    filled = regard.load(runs["masked"])("the <mask>at")
    assert len(filled.text) == len("the cat")
    assert isinstance(regard.load(runs["denoise"])("the <mask> sat").text, str)
    with pytest.raises(UserError, match="ensemble"):
        regard.load(runs["causal"], runs["causal"])


@objectives
def test_the_dev_loss_of_the_log_is_that_of_the_evaluation(runs, objective, file):
    run = runs[objective]
    assert run.config.data.documents in ("line", "paragraph")
    report = evaluate_texts(run, split="dev", device="cpu")
    look = run.best_look()
    assert report.loss == pytest.approx(look["loss"], rel=1e-5)
    assert report.token_accuracy == pytest.approx(look["accuracy"], abs=1e-9)


@objectives
def test_an_evaluation_can_be_repeated(runs, objective, file):
    first = evaluate_texts(runs[objective], file, device="cpu")
    again = evaluate_texts(runs[objective], file, device="cpu")
    assert first.loss == again.loss
    assert first.texts == 151
    assert 0 < evaluate_texts(runs[objective], device="cpu").texts <= 20


@pytest.fixture(scope="module")
def python_run(texts, tmp_path_factory):
    return train(texts, tmp_path_factory.mktemp("runs") / "python", "causal")


def test_a_run_of_texts_from_python_is_judged_by_a_file(python_run, file):
    report = evaluate_texts(python_run, file, device="cpu")
    assert report.texts == 151


TABLES = {
    "p.tsv": "the cat\tle chat\na dog\tun chien\n",
    "p.csv": 'source,target\n"the cat",le chat\na dog,un chien\n',
    "p.jsonl": '{"source": "the cat", "target": "le chat"}\n{"text": "", "source": "a dog"}\n',
    "p.txt": "the cat\tle chat\na dog\tun chien\n",
    "text.jsonl": '{"text": "the cat"}\n{"text": "a dog"}\n',
    "texts.txt": "the cat\na dog\n",
    "texts.en": "the cat\na dog\n",
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_judged_by_their_texts(runs, python_run, tmp_path, name):
    path = tmp_path / name
    path.write_text(TABLES[name])
    for run in (runs["causal"], python_run):
        wanted = evaluate_texts(run, ["the cat", "a dog"], device="cpu")
        report = evaluate_texts(run, path, device="cpu")
        assert (report.texts, report.characters) == (2, wanted.characters)
        assert report.loss == pytest.approx(wanted.loss)


def test_texts_in_json_are_those_of_a_file(texts, runs, tmp_path):
    path = tmp_path / "notes.jsonl"
    path.write_text("".join(json.dumps({"text": text, "id": 1}) + "\n" for text in texts))
    run = train(path, tmp_path / "run", "causal", data={"source": "text", "dev": 20, "test": 20})
    assert run.config.data.digest == runs["causal"].config.data.digest


def test_a_table_that_was_read_as_lines_stays_so(tmp_path):
    path = tmp_path / "p.tsv"
    path.write_text("the cat\tle chat\na dog\tun chien\n" * 10)
    run = train(path, tmp_path / "run", "causal", data={"documents": "line", "dev": 2, "test": 2})
    report = evaluate_texts(run, path, device="cpu")
    assert report.characters == len(path.read_text())


def test_a_folder_of_another_kind_is_judged_too(runs, tmp_path):
    (tmp_path / "train.tsv").write_text("unused\tinutile\n")
    (tmp_path / "test.tsv").write_text(TABLES["p.tsv"])
    report = evaluate_texts(runs["causal"], tmp_path, device="cpu")
    assert (report.texts, report.characters) == (2, len("the cat a dog") + 1)


def test_samples_of_a_denoiser_are_noisy_texts(runs):
    run = runs["denoise"]
    model = regard.load(run, device="cpu")
    blocks = (run.path / "samples.txt").read_text().strip().split("\n\n")
    for block in blocks:
        lines = block.split("\n")
        assert [line.split()[0] for line in lines] == ["noisy", "text", "restored"]
        prompt, text, restored = (line[11:] for line in lines)
        missing = round(run.config.train.mask_rate * len(text))
        assert missing > 0
        assert len(prompt.replace("<mask>", "")) == len(text) - missing
        assert model(prompt).text == restored


@pytest.mark.parametrize("kind", ["bpe", "words", "characters"])
def test_a_noisy_sample_is_the_row_that_training_has(file, tmp_path, kind):
    run = train(file, tmp_path / "run", "denoise", text={"tokenizer": kind, "size": 300})
    objective = objective_of(run.config.train, run.source)
    for seed, text in enumerate(dev_texts(run, 20)):
        ids = run.source.encode(text)
        row, _ = objective.row((np.array([]), np.array([BOS, *ids, EOS])), seed)
        assert [*WithMasks(run.source).encode(noisy(run, text, seed)), EOS] == row.tolist()


def test_the_loss_of_a_causal_model_is_that_of_its_scores(runs, texts):
    short = [text for text in texts if len(text) < 30]
    report = evaluate_texts(runs["causal"], short, device="cpu")
    model = regard.load(runs["causal"], device="cpu")
    total = sum(likelihood.total for likelihood in model.scores(short))
    tokens = sum(len(text) + 1 for text in short)
    assert report.tokens == tokens
    assert report.loss == pytest.approx(-total / tokens, rel=1e-5)
    bits = -total / math.log(2) / tokens  # a token is a character here
    assert report.bits_per_character == pytest.approx(bits, rel=1e-5)
    assert model.bits_per_character(short) == pytest.approx(bits, rel=1e-5)


def test_long_texts_are_scored_in_the_rows_of_the_evaluation(runs, texts):
    longest = runs["causal"].config.data.max_length
    assert sum(len(text) >= longest for text in texts) > 50
    report = evaluate_texts(runs["causal"], texts, device="cpu")
    model = regard.load(runs["causal"], device="cpu")
    likelihoods = list(model.scores(texts))
    assert [one.target for one in likelihoods] == texts
    assert sum(len(one.tokens) for one in likelihoods) == report.tokens
    total = sum(one.total for one in likelihoods)
    assert -total / report.tokens == pytest.approx(report.loss, abs=1e-4)
    assert model.bits_per_character(texts) == pytest.approx(report.bits_per_character, abs=1e-4)


def test_a_denoiser_scores_texts_as_the_evaluation_does(runs, texts):
    report = evaluate_texts(runs["denoise"], texts, device="cpu")
    model = regard.load(runs["denoise"], device="cpu")
    likelihoods = list(model.text_scores(texts))
    assert [one.target for one in likelihoods] == texts
    tokens = sum(len(one.tokens) for one in likelihoods)
    assert tokens == report.tokens
    total = sum(one.total for one in likelihoods)
    assert -total / tokens == pytest.approx(report.loss, abs=1e-4)
    correct = sum(sum(one.correct) for one in likelihoods)
    assert correct / tokens == pytest.approx(report.token_accuracy, abs=1e-4)
    with pytest.raises(UserError, match=r"text_scores\(\) takes a list"):
        model.text_scores("the cat")


def test_each_kind_has_the_methods_that_fit_it(run, runs):
    translator = regard.load(run, device="cpu")
    assert not hasattr(translator, "text_scores")

    denoiser = regard.load(runs["denoise"], device="cpu")
    assert isinstance(denoiser, regard.DenoisingModel)
    assert repr(denoiser).startswith("DenoisingModel(")
    assert isinstance(regard.load(runs["denoise"], kind=regard.Translator), regard.DenoisingModel)
    with pytest.raises(UserError, match="so it is a Translator, not a DenoisingModel"):
        regard.load(run, kind=regard.DenoisingModel)

    writer = regard.load(runs["causal"], device="cpu")
    for name in ("fill", "embed", "translate", "text_scores"):
        assert not hasattr(writer, name)
    reader = regard.load(runs["masked"], device="cpu")
    for name in ("generate", "options", "translate", "text_scores", "bits_per_character"):
        assert not hasattr(reader, name)


def test_the_vector_of_a_long_text_is_the_mean_over_its_rows(runs):
    model = regard.load(runs["denoise"], device="cpu")
    rows = ["the cat sat and a dog ran an", "d my cow ate and the cat ate"]
    assert model.max_length == 30
    [long, *vectors] = model.embed(["".join(rows), *rows])
    np.testing.assert_allclose(long, sum(vectors) / 2, atol=1e-5)


def test_unknown_tokens_have_no_bits_per_character(runs):
    report = evaluate_texts(runs["causal"], ["the cat sat", "the zebra"], device="cpu")
    assert report.unknown > 0
    assert report.as_dict()["bits_per_character"] is None
    rows = {name: meaning for name, _, meaning in report.rows()}
    assert "bits per character" not in rows
    assert "no bits per character" in rows["unknown tokens"]
    assert evaluate_texts(runs["causal"], ["the cat"], device="cpu").bits_per_character > 0


def test_the_mask_of_a_text_is_not_a_strange_character(runs):
    warnings = regard.load(runs["denoise"])("the <mask> sat").warnings
    assert not any("never seen" in warning for warning in warnings)
    warnings = regard.load(runs["denoise"])("the <mask> s<t").warnings
    assert any("vocabulary: <" in warning for warning in warnings)


def test_a_run_of_pairs_is_not_judged_by_texts(run):
    with pytest.raises(UserError, match=r"regard\.evaluate"):
        evaluate_texts(run)


@objectives
def test_training_goes_on(file, runs, objective, tmp_path):
    short = train(file, tmp_path / "run", objective, train={"steps": 4})
    longer = regard.train(
        file, out=short.path, resume=True, reporter=Reporter(quiet=True), train={"steps": 8}
    )
    weights = [
        run.checkpoint("step-00000008")["model.safetensors"] for run in (longer, runs[objective])
    ]
    assert weights[0] == weights[1]


def test_texts_from_python_are_those_of_a_file(texts, runs, tmp_path):
    run = train(texts, tmp_path / "run", "causal")
    assert run.config.data.digest == runs["causal"].config.data.digest


def test_it_learns(file, tmp_path):
    """Where there is something to learn: what follows a letter."""
    more = {"steps": 150, "evaluate_every": 150, "save_every": 150, "rate": 0.01, "warmup": 10}
    run = train(file, tmp_path / "run", "causal", train=more)
    records = run.records("dev")
    assert records[-1]["loss"] < 1.0
    model = regard.load(run)
    assert model.score("the cat sat").total > model.score("tac eht tas").total + 5
    assert model("the ca", tokens=1, n_best=1).text == "the cat"


# from one objective to another


@pytest.fixture(scope="module")
def pairs():
    return [(f"{s} {v}", f"{s.upper()} {v}") for s in SUBJECTS for v in VERBS] * 6


def test_a_denoiser_learns_to_translate(runs, pairs, tmp_path):
    base = runs["denoise"]
    run = regard.train(
        pairs,
        out=tmp_path / "run",
        start_from=base.path,
        reporter=Reporter(quiet=True),
        data={"dev": 5, "test": 5, "batch_tokens": 200},
        train=TRAIN | {"objective": "translate", "rate": 1e-30},
    )
    assert run.config.train.objective == "translate"
    translator = regard.load(run)
    assert isinstance(translator, regard.Translator)
    start = dict(base.model().named_parameters(remove_duplicate=False))
    for name, parameter in translator.model.named_parameters():
        assert (parameter - start[name]).abs().max() < 1e-6, name


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_a_part_alone_hands_on_what_it_has(runs, pairs, tmp_path, objective):
    base = runs[objective]
    run = regard.train(
        pairs,
        out=tmp_path / "run",
        start_from=base.path,
        reporter=Reporter(quiet=True),
        data={"dev": 5, "test": 5, "batch_tokens": 200},
        train=TRAIN | {"objective": "translate", "rate": 1e-30},
    )
    side = {"causal": "decoder.blocks", "masked": "encoder.blocks"}[objective]
    ours, theirs = (dict(one.model().named_parameters()) for one in (run, base))
    handed_on = [name for name in ours if name in theirs and name.startswith(side)]
    assert len(handed_on) > 5
    for name in handed_on:
        assert (ours[name] - theirs[name]).abs().max() < 1e-6, name


def test_the_masks_of_an_epoch_are_not_those_of_the_next(runs):
    from regard.data.batches import Batches
    from regard.data.corpus import Corpus

    run = runs["masked"]
    corpus = Corpus.open(run.path / "data" / "train")
    objective = objective_of(run.config.train, run.source)
    batches = Batches(corpus, sentences=len(corpus), seed=1, objective=objective)
    first, again, later = batches(0), batches(0), batches(batches.per_epoch)
    assert first.source.equal(again.source)
    assert first.tokens == again.tokens
    assert not first.source.equal(later.source)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"objective": "masked"}, "text": {"reserved": 0}}, r"text\.reserved=1"),
        ({"train": {"objective": "causal", "metric": "bleu"}}, r"train\.metric=loss"),
        ({"train": {"objective": "denoise", "metric": "bleu"}}, r"bleu needs: set train\.metric="),
        ({"train": {"objective": "denoise", "metric": "exact_match"}}, r"train\.metric=loss"),
        ({"train": {"objective": "causal", "metric": "custom:f"}}, r"custom:f needs"),
        ({"train": {"objective": "masked"}, "model": {"kind": "rnn"}}, "model.kind=transformer"),
        ({"train": {"objective": "translate"}, "data": {"documents": "line"}}, "train.objective="),
        ({"train": {"objective": "causal"}, "text": {"dropout": 0.1}}, r"text\.dropout"),
    ],
)
def test_what_does_not_go_together_is_refused(file, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        regard.train(file, out=tmp_path / "run", reporter=Reporter(quiet=True), **changes)
    assert not (tmp_path / "run").exists()
