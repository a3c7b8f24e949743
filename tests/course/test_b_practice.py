"""B. Learning to calculate, in practice: seeds, random batches, curves, a limit on answers."""

import hashlib
import io
import re

import pytest
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.data.tasks import TASKS
from regard.pictures.curves import curves
from regard.presets import preset
from regard.recipes.reporter import Reporter


@pytest.fixture(autouse=True)
def _in_double():
    """No: whole runs are trained here, in single precision."""


@pytest.fixture
def train(tmp_path, tiny):
    """Trains sums for a moment; returns the run and what was said."""

    def call(name="run", resume=False, **seeds):
        said = io.StringIO()
        sections = {
            "data": {"options": {"train": 40, "dev": 8, "test": 8}, "batch_sentences": 20},
            "text": {"tokenizer": "characters"},
            "train": {**tiny["train"], "steps": 2},
            "model": tiny["model"],
        }
        for section, seed in seeds.items():
            sections[section]["seed"] = seed
        run = regard.train(
            "arithmetic",
            out=tmp_path / name,
            resume=resume,
            reporter=Reporter(said),
            **sections,
        )
        return run, said.getvalue()

    return call


def command(*words):
    """A command that should succeed, called in this process."""
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def content(run):
    """A digest of the encoded data and of the weights."""
    files = [run.path / "data/train/ids.bin", *run.path.glob("checkpoints/*/model.safetensors")]
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)]


# B2


def test_b2_a_generator_that_is_not_seeded():
    task = TASKS["arithmetic"]
    one = list(task.pairs(20, seed=None))
    other = list(task.pairs(20, seed=None))
    assert one != other
    assert all(eval(source) == int(answer) for source, answer in one)
    assert list(task.pairs(20)) == list(task.pairs(20, seed=123456))


def test_b2_the_command_says_the_seed_it_drew():
    words = ["data", "generate", "arithmetic", "--count", "5"]
    one, other = (command(*words, "--seed", "none") for _ in range(2))
    assert one.stdout != other.stdout
    [seed] = re.findall(r"^drew --seed (\d+) \(pass it to repeat this\)$", one.stderr, re.M)
    again = command(*words, "--seed", seed)
    assert (again.stdout, again.stderr) == (one.stdout, "")


def test_b2_a_run_says_the_seeds_it_drew_and_can_be_repeated(train):
    run, said = train(train=None, data="none")
    seeds = {"train": run.config.train.seed, "data": run.config.data.seed}
    for section, seed in seeds.items():
        assert f"drew {section}.seed={seed} (pass it to repeat this run)\n" in said
    assert seeds["train"] != seeds["data"]

    again, said = train("again", **seeds)
    assert "drew" not in said
    assert content(again) == content(run)

    other, _ = train("other", train="none", data=None)
    assert all(a != b for a, b in zip(content(other), content(run), strict=True))

    resumed, said = train(resume=True, train=None, data="none")
    assert "already trained" in said
    assert resumed.config == run.config


def test_b2_sampling_with_a_seed_that_is_drawn(run):
    one, other = (regard.Sampling(seed=None, temperature=10.0) for _ in range(2))
    assert one.seed != other.seed
    translator = regard.load(run)
    answer = translator("1+1", sampling=one).text
    assert (
        translator("1+1", sampling=regard.Sampling(seed=one.seed, temperature=10.0)).text == answer
    )


# random batches


def test_b_the_books_shuffle():
    for name in ("course", "d2l"):
        assert preset(name)["data"]["batching"] == "random"
    assert preset("course")["data"]["batch_sentences"] == 125
    assert preset("d2l")["data"]["batch_sentences"] == 128
    assert regard.Config().data.batching == "length"


# B23


def test_b23_curves_by_epoch(run, tmp_path):
    records = run.records()
    figure = curves({"sums": records}, by="epoch")
    left, right = figure.axes
    assert left.get_xlabel() == right.get_xlabel() == "epoch"

    # 60 pairs in batches of 20, evaluated after three of six steps.
    dev_loss = next(line for line in left.get_lines() if line.get_linestyle() == "-")
    assert list(dev_loss.get_xdata()) == [1, 2]
    losses = [record["loss"] for record in records if record["kind"] == "dev"]
    assert list(dev_loss.get_ydata()) == losses

    best = 1 + losses.index(min(losses))
    assert figure.legends[0].get_texts()[0].get_text().endswith(f"at epoch {best}")
    assert re.search(r" · [\d,]+ examples/s$", figure.legends[0].get_title().get_text())

    command("show", "curves", run.path, "--by", "epoch", "--out", tmp_path / "epochs.svg")
    assert "epoch" in (tmp_path / "epochs.svg").read_text()


def test_b23_a_log_without_epochs(run):
    old = [{k: v for k, v in r.items() if k != "epoch"} for r in run.records()]
    by_step = [
        [list(line.get_xdata()) for line in curves({"sums": records}).axes[0].get_lines()]
        for records in (old, run.records())
    ]
    assert by_step[0] == by_step[1]
    with pytest.raises(regard.UserError, match=r"^sums: its log has no epochs, since an older"):
        curves({"sums": old}, by="epoch")

    # Begun by an older version, and resumed by this one.
    half = [*old[:2], *run.records()[2:]]
    drawn = [
        [*curves({"sums": records}, by="epoch").axes[0].get_lines()[0].get_xdata()]
        for records in (half, run.records())
    ]
    assert len(drawn[0]) == 3
    assert drawn[0] == pytest.approx(drawn[1], abs=1e-3)
    with pytest.raises(regard.UserError, match=r"^by='time': choose step or epoch$"):
        curves({"sums": old}, by="time")


# B28


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("sampling", [None, regard.Sampling(temperature=5.0)])
def test_b28_at_most_n_tokens(run, limit, beam, sampling):
    texts = ["1+1", "123+456", "-999-1"]
    # Without <eos> every answer is as long as it may be.
    long = regard.load(run, beam=beam, minimum=8, limit_extra=20)
    assert all(len(result.tokens) >= 8 for result in long(texts, sampling=sampling))

    short = regard.load(run, beam=beam, minimum=8, limit_extra=20, limit=limit)
    for result in short(texts, sampling=sampling, n_best=2):
        assert len(result.tokens) == limit
        assert all(len(other.text) <= limit for other in result.alternatives)
        tokens = "token" if limit == 1 else "tokens"
        assert f"stopped at the length limit of {limit} {tokens} (search.limit)" in result.warnings


def test_b28_a_limit_beyond_all_answers_changes_nothing(run):
    texts = ["1+1", "123+456", "-999-1"]
    plain = [result.text for result in regard.load(run)(texts)]
    assert [result.text for result in regard.load(run, limit=10**6)(texts)] == plain


def test_b28_a_prefix_that_fills_the_limit(run):
    translator = regard.load(run, limit=3)
    assert len(translator("1+1", prefix="12").tokens) == 3
    with pytest.raises(regard.UserError, match=r"no answer of at most 3 tokens .* has 3 tokens$"):
        translator("1+1", prefix="123")


def test_b28_by_command(run):
    done = command("translate", run.path, "123+456", "--limit", "2", "--set", "minimum=5")
    assert len(done.stdout.strip()) == 2
    assert "stopped at the length limit of 2 tokens (search.limit)" in done.stderr
