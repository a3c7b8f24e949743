"""Law 8: train k, stop, resume, train n-k is train n, bit for bit: weights, optimiser, log. Even
when killed anywhere.
"""

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time

import pytest

import regard
from regard.errors import Interrupted
from regard.recipes.reporter import Reporter
from regard.runs.storage import write_directory
from regard.training.trainer import Trainer

pytestmark = pytest.mark.once  # whole runs, trained with one seed, whatever --law-seed says

SIZES = {
    "transformer": {
        "width": 16,
        "ffn": 24,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "dropout": 0.2,
    },
    "rnn": {"kind": "rnn", "width": 16, "embedding": 16, "cell": "gru", "dropout": 0.2},
}
DATA = {
    "limit": 60,
    "dev": 12,
    "test": 4,
    "batch_sentences": 8,
    "options": {"length": 4, "symbols": 5},
}
STEPS = 24
TRAIN = {
    "steps": STEPS,
    "epochs": 0,
    "warmup": 5,
    "save_every": 5,
    "evaluate_every": 6,
    "log_every": 4,
    "threads": 1,
}
TRAIN |= {
    "average": 2,
    "keep": 2,
    "tensorboard": "off",
    "device": "cpu",
    "precision": "fp32",
    "smoothing": 0.1,
}
CLOCK = {"seconds", "tokens_per_second", "examples_per_second"}
AT_RANDOM = {"batching": "random", "batch_sentences": 0, "batch_tokens": 50}
CASES = {
    "transformer": ("transformer", {}, {}),
    "rnn-accumulate": ("rnn", {"accumulate": 2, "optimizer": "sgd"}, AT_RANDOM),
    "wsd": ("transformer", {"schedule": "wsd", "average": 0, "ema": 0.9}, {}),
}
TEXTS = {"documents": "source"}
LANGUAGE = {
    "causal": ("transformer", {"objective": "causal", "accumulate": 2}, TEXTS | AT_RANDOM),
    "causal-rnn": ("rnn", {"objective": "causal"}, TEXTS),
    "masked": ("transformer", {"objective": "masked", "mask_rate": 0.4}, TEXTS),
    "denoise": ("transformer", {"objective": "denoise", "mask_rate": 0.4}, TEXTS),
}


def train(out, case, **changes):
    model, more, data = (CASES | LANGUAGE)[case]
    return regard.train(
        "copy",
        out=out,
        model=SIZES[model],
        data=DATA | data,
        train=TRAIN | more | changes,
        search={"width": 2},
        reporter=Silent(),
    )


class Silent(Reporter):
    def __init__(self):
        super().__init__(quiet=True)


@pytest.fixture
def stop_after(monkeypatch):
    """stop_after(step): asks this process to stop, as Ctrl-C would, in the middle of that step."""
    steps, update = [], Trainer.update

    def updated(trainer, parts):
        update(trainer, parts)
        if trainer.progress.step in steps:
            steps.clear()
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "update", updated)
    return steps.append


def log(run):
    records = [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k not in CLOCK} for record in records]


def digests(run):
    """Of everything that says what was learned."""
    files = [
        p
        for p in run.path.glob("checkpoints/*/*")
        if p.name in ("model.safetensors", "optimizer.safetensors")
    ]
    files += [run.path / name for name in ("best", "samples.txt", "config.toml")]
    return {
        str(p.relative_to(run.path)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(files)
    }


@pytest.fixture(scope="module", params=CASES)
def straight(request, tmp_path_factory):
    """A run that nobody interrupted."""
    return request.param, train(tmp_path_factory.mktemp("straight") / "run", request.param)


def test_straight_twice(straight, tmp_path):
    case, expected = straight
    run = train(tmp_path / "run", case)
    assert log(run) == log(expected)
    assert digests(run) == digests(expected)


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(),
    reason="signals come to the main thread",
)
@pytest.mark.parametrize("stops", [[1], [6], [10, 11], [13, 23]], ids=str)
def test_stopped_and_resumed(straight, tmp_path, stop_after, stops):
    case, expected = straight
    model, more, data = CASES[case]
    settings = {
        "model": SIZES[model],
        "data": DATA | data,
        "train": TRAIN | more,
        "search": {"width": 2},
    }
    for stop in stops:
        stop_after(stop)
        with pytest.raises(Interrupted) as caught:
            regard.train("copy", out=tmp_path / "run", resume=True, reporter=Silent(), **settings)
        assert caught.value.code == 128 + signal.SIGINT
        settings = {}  # a resumed run keeps its own
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    run = regard.train("copy", out=tmp_path / "run", resume=True, reporter=Silent())
    assert log(run) == log(expected)
    assert digests(run) == digests(expected)


@pytest.mark.parametrize("case", LANGUAGE)
def test_a_language_model_stopped_and_resumed(case, tmp_path, stop_after):
    """Also the masks of each text are those of its epoch, wherever training was stopped."""
    expected = train(tmp_path / "straight", case)
    stop_after(6)
    with pytest.raises(Interrupted):
        train(tmp_path / "run", case)
    stop_after(13)
    with pytest.raises(Interrupted):
        regard.train("copy", out=tmp_path / "run", resume=True, reporter=Silent())
    run = regard.train("copy", out=tmp_path / "run", resume=True, reporter=Silent())
    assert log(run) == log(expected)
    assert digests(run) == digests(expected)


def test_resuming_what_is_finished_changes_nothing(straight, tmp_path):
    _, run = straight
    records, bits = log(run), digests(run)
    shutil.copytree(run.path, tmp_path / "run")
    again = regard.train("copy", out=tmp_path / "run", resume=True, reporter=Silent())
    assert digests(again) == bits
    assert log(again) == records


def test_resuming_what_patience_ended_changes_nothing(tmp_path):
    """Early stopping is an end, too: a kill after the last checkpoint must not let training
    run on.
    """
    run = train(tmp_path / "run", "transformer", patience=1, rate=1e-30, average=0)
    assert log(run)[-1]["step"] < STEPS
    records, bits = log(run), digests(run)
    again = regard.train("copy", out=run.path, resume=True, reporter=Silent())
    assert log(again) == records
    assert digests(again) == bits


def learned(run, step):
    """Weights, average and optimiser of a checkpoint."""
    folder = run.path / "checkpoints" / f"step-{step:08d}"
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) == 3
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_the_decay_is_decided_once_and_noted(tmp_path):
    """At four fifths of the steps; the checkpoint of that step stays."""
    run = train(tmp_path / "run", "wsd", save_every=100)
    settings = run.config.train
    assert (settings.decay_start, settings.decay_end) == (20, 24)
    assert "step-00000020" in run.checkpoints()
    rates = [record["rate"] for record in log(run) if record["kind"] == "train"]
    assert rates == pytest.approx([1e-3 * share for share in (0.8, 1, 1, 1, 1, 0.25)])


def test_a_training_made_longer_is_one_that_was_told_the_same_steps(tmp_path):
    short = train(tmp_path / "run", "wsd")
    assert short.config.train.decay_end == STEPS
    longer = regard.train(
        "copy", out=short.path, resume=True, reporter=Silent(), train={"steps": 45}
    )
    assert (longer.config.train.decay_start, longer.config.train.decay_end) == (36, 45)

    told = train(tmp_path / "told", "wsd", steps=45, decay_start=36, decay_end=45)
    assert learned(longer, 45) == learned(told, 45)
    assert learned(longer, 36) == learned(told, 36)
    assert log(longer) == log(told)


def test_what_a_short_training_reached_stays_until_a_longer_one_is_better(tmp_path, stop_after):
    short = train(tmp_path / "run", "wsd", evaluate_every=4)
    best = short.best
    assert best == "step-00000024"
    weights = short.checkpoint(best)["model.safetensors"]

    stop_after(22)  # before it was evaluated again
    with pytest.raises(Interrupted):
        regard.train("copy", out=short.path, resume=True, reporter=Silent(), train={"steps": 90})
    going_on = regard.Run.open(short.path)
    assert going_on.best == "shorter"
    assert going_on.best_checkpoint()["model.safetensors"] == weights
    assert going_on.checkpoints()[-1] == "step-00000022"

    done = regard.train("copy", out=short.path, resume=True, reporter=Silent())
    assert done.best == "step-00000090"
    assert not (done.path / "checkpoints" / "shorter").exists()


def test_best_before_the_first_evaluation_is_the_newest(tmp_path, stop_after):
    stop_after(5)
    with pytest.raises(Interrupted):
        train(tmp_path / "run", "transformer")
    run = regard.Run.open(tmp_path / "run")
    assert run.best == "step-00000005"
    assert run.best_checkpoint()


def test_a_longer_training_that_is_killed_at_once_is_as_long(tmp_path, monkeypatch):
    """Patience ended the shorter one; it must not end the longer one again."""
    settings = {"patience": 1, "rate": 1e-30, "evaluate_every": 3, "steps": 100}
    short = train(tmp_path / "run", "wsd", **settings)
    assert short.config.train.decay_start == 6
    shutil.copytree(short.path, tmp_path / "killed")
    longer = regard.train(
        "copy", out=short.path, resume=True, reporter=Silent(), train={"minutes": 60}
    )
    assert longer.config.train.decay_start == 9

    def killed(trainer, parts):
        raise SystemExit

    monkeypatch.setattr(Trainer, "update", killed)
    more = {"out": tmp_path / "killed", "resume": True, "reporter": Silent()}
    with pytest.raises(SystemExit):
        regard.train("copy", **more, train={"minutes": 60})
    monkeypatch.undo()
    again = regard.train("copy", out=tmp_path / "killed", resume=True, reporter=Silent())
    assert again.config.train == longer.config.train
    assert log(again) == log(longer)


@pytest.fixture
def judged(monkeypatch):
    """judged[step] = accuracy: what dev says of a step, instead of what it is."""
    scores = {}

    def look(run, device, parts):
        trainers = []
        monkeypatch.setattr(Trainer, "_look", seen(Trainer._look, trainers))
        return lambda model: {
            "loss": 1.0,
            "accuracy": scores.get(trainers[-1].progress.step, 0.1),
            "tokens": 1.0,
        }

    def seen(real, trainers):
        def looked(trainer, *args):
            trainers.append(trainer)
            return real(trainer, *args)

        return looked

    monkeypatch.setattr("regard.recipes.fitting._validator", look)
    return scores


def test_the_best_of_all_shorter_trainings_stays(tmp_path, judged):
    """However often training is made longer; and it is said which weights are the best."""
    judged |= {24: 0.9, 45: 0.5}
    run = train(tmp_path / "run", "wsd", metric="accuracy")
    weights = run.checkpoint("step-00000024")["model.safetensors"]
    judged[24] = 0.1  # on the way to a longer training it is not as good
    for steps in (45, 90):
        run = regard.train(
            "copy", out=run.path, resume=True, reporter=Silent(), train={"steps": steps}
        )
        assert run.best == "shorter"
        assert run.best_checkpoint()["model.safetensors"] == weights
        assert run.best_look()["accuracy"] == 0.9
    assert "accuracy 0.9" in (run.path / "README.md").read_text()


@pytest.mark.parametrize(
    "notes", [b"{}", b"[1]", b"[" * 10**5, b'{"best": 0, "look": {"step": "x"}}']
)
def test_notes_of_a_shorter_training_that_make_no_sense_are_left_alone(tmp_path, notes):
    run = train(tmp_path / "run", "transformer")
    files = {"model.safetensors": run.best_checkpoint()["model.safetensors"]}
    write_directory(run.path / "checkpoints" / "shorter", files | {"progress.json": notes})
    run.best = "shorter"
    assert run.best_look() is None
    assert run._repr_html_()
    assert regard.load(run)("a b").text is not None


def test_a_training_is_not_made_longer_from_a_damaged_checkpoint(tmp_path):
    """Then nothing is deleted."""
    run = train(tmp_path / "run", "wsd", save_every=1000)
    assert run.checkpoints() == ["step-00000020", "step-00000024"]
    file = run.path / "checkpoints" / "step-00000020" / "raw.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(regard.UserError, match="cannot be made longer"):
        regard.train("copy", out=run.path, resume=True, reporter=Silent(), train={"steps": 45})
    assert run.checkpoints() == ["step-00000020", "step-00000024"]
    assert regard.Run.open(run.path).config.train.decay_end == 24


def test_milestones_do_not_depend_on_a_resume(tmp_path, stop_after):
    more = {"milestones": 4, "patience": 1, "rate": 1e-30, "evaluate_every": 3, "steps": 80}
    more["save_every"] = 1000
    straight = train(tmp_path / "straight", "wsd", **more)
    stop_after(7)
    with pytest.raises(Interrupted):
        train(tmp_path / "run", "wsd", **more)
    resumed = regard.train("copy", out=tmp_path / "run", resume=True, reporter=Silent())
    assert resumed.checkpoints() == straight.checkpoints()


def test_a_decay_that_a_full_disk_refused_is_noted_with_the_next_save(tmp_path, monkeypatch):
    change = regard.Run.change
    faults = [OSError(28, "No space left on device", "config.toml")]

    def refused(run, config):
        if faults:
            raise faults.pop()
        change(run, config)

    monkeypatch.setattr(regard.Run, "change", refused)
    run = train(tmp_path / "run", "wsd", save_every=1)
    assert not faults
    assert regard.Run.open(run.path).config.train.decay_end == 24


@pytest.mark.parametrize("moment", ["before", "after"])
def test_stopped_while_the_decay_is_decided(tmp_path, monkeypatch, moment):
    """Whether or not the decision was noted, the training that goes on is the same."""
    expected = train(tmp_path / "expected", "wsd")
    change = regard.Run.change

    def cut_short(run, config):
        if moment == "after":
            change(run, config)
        raise SystemExit("killed")

    monkeypatch.setattr(regard.Run, "change", cut_short)
    with pytest.raises(SystemExit):
        train(tmp_path / "run", "wsd")
    monkeypatch.undo()
    noted = regard.Run.open(tmp_path / "run").config.train.decay_end
    assert noted == (STEPS if moment == "after" else 0)

    run = regard.train("copy", out=tmp_path / "run", resume=True, reporter=Silent())
    assert digests(run) == digests(expected)
    assert log(run) == log(expected)


def test_a_training_that_time_ended_can_be_repeated(tmp_path):
    """What the clock decided is in the config, in steps."""
    timed = train(tmp_path / "timed", "wsd", steps=10**6, minutes=0.02, evaluate_every=1000)
    settings = timed.config.train
    assert 0 < settings.decay_start < settings.decay_end < 10**6

    told = train(
        tmp_path / "told",
        "wsd",
        steps=10**6,
        evaluate_every=1000,
        decay_start=settings.decay_start,
        decay_end=settings.decay_end,
    )
    assert learned(timed, settings.decay_end) == learned(told, settings.decay_end)


def test_patience_begins_the_decay(tmp_path):
    run = train(tmp_path / "run", "wsd", patience=1, rate=1e-30, evaluate_every=3)
    assert run.config.train.decay_start == 6  # the second look was no better than the first
    assert run.config.train.decay_end == 8
    assert run.checkpoints()[-1] == "step-00000008"


PAST_ITS_BEST = {9: 0.9, 12: 0.8, 15: 0.7, 18: 0.7}
OVERFITTING = {
    "metric": "accuracy",
    "steps": 100,
    "warmup": 2,
    "patience": 2,
    "evaluate_every": 3,
}


def test_a_training_past_its_best_decays_from_there(tmp_path, judged):
    """It equals one that was told the same steps, and nothing is left of the steps between."""
    judged |= PAST_ITS_BEST
    run = train(tmp_path / "run", "wsd", **OVERFITTING)
    assert (run.config.train.decay_start, run.config.train.decay_end) == (9, 11)
    assert run.checkpoints() == ["step-00000009", "step-00000010", "step-00000011"]

    told = train(tmp_path / "told", "wsd", **OVERFITTING, decay_start=9, decay_end=11)
    assert learned(run, 11) == learned(told, 11)
    assert log(run) == log(told)


def test_a_training_that_only_stands_still_decays_where_it_is(tmp_path, judged):
    judged |= {9: 0.9, 12: 0.899, 15: 0.899}
    run = train(tmp_path / "run", "wsd", **OVERFITTING)
    assert run.config.train.decay_start == 15


def test_what_was_best_within_the_warm_up_was_so_by_chance(tmp_path, judged):
    judged |= PAST_ITS_BEST
    run = train(tmp_path / "run", "wsd", **OVERFITTING | {"warmup": 5})
    assert run.config.train.decay_start == 15


class Killed(BaseException):
    """No handler of ours catches it."""


@pytest.fixture
def killed_at(monkeypatch):
    """killed_at(n): training ends at the n-th change of the disk by which it goes back."""
    left = []  # one entry for each change that it still makes

    def counted(real):
        def call(*args, **settings):
            if left:
                left.pop()
                if not left:
                    raise Killed
            return real(*args, **settings)

        return call

    def begin_at(number):
        begin = Trainer._begin_decay

        def going_back(trainer, *hooks):
            monkeypatch.setattr(Trainer, "_begin_decay", begin)  # it is killed only once
            left.extend([None] * number)
            begin(trainer, *hooks)
            left.clear()

        monkeypatch.setattr(Trainer, "_begin_decay", going_back)
        for name in ("rename", "replace", "unlink", "rmdir"):
            monkeypatch.setattr(os, name, counted(getattr(os, name)))

    return begin_at


@pytest.mark.parametrize("number", range(1, 15))
def test_killed_while_training_goes_back(tmp_path, judged, killed_at, number):
    """Whatever was done of it, the training that goes on is the same."""
    judged |= PAST_ITS_BEST
    expected = train(tmp_path / "expected", "wsd", **OVERFITTING)
    killed_at(number)
    with pytest.raises(Killed):
        train(tmp_path / "run", "wsd", **OVERFITTING)

    run = regard.train("copy", out=tmp_path / "run", resume=True, reporter=Silent())
    assert digests(run) == digests(expected)
    assert log(run) == log(expected)
    assert run.checkpoints() == expected.checkpoints()
    assert not list(run.path.glob("**/*.tmp"))


def damage(run, name):
    file = run / "checkpoints" / name / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_training_does_not_go_back_to_a_damaged_checkpoint(tmp_path, judged, monkeypatch):
    """Then nothing is lost: the decay begins where training stands."""
    judged |= PAST_ITS_BEST | {19: 0.95}
    begin = Trainer._begin_decay

    def damaged(trainer, *hooks):
        damage(tmp_path / "run", "step-00000009")
        begin(trainer, *hooks)

    monkeypatch.setattr(Trainer, "_begin_decay", damaged)
    run = train(tmp_path / "run", "wsd", **OVERFITTING)
    assert (run.config.train.decay_start, run.config.train.decay_end) == (15, 19)


def test_training_does_not_go_back_to_a_checkpoint_that_is_gone(tmp_path, judged):
    """The best of a shorter training: its decay was better, so that it was deleted."""
    judged |= {9: 0.9, 12: 0.899, 15: 0.899, 19: 0.95}
    short = train(tmp_path / "run", "wsd", **OVERFITTING)
    assert short.config.train.decay_start == 15
    assert "step-00000009" not in short.checkpoints()

    judged |= {18: 0.5, 21: 0.5}
    longer = regard.train(
        "copy", out=short.path, resume=True, reporter=Silent(), train={"steps": 200}
    )
    assert longer.config.train.decay_start == 21
    assert longer.checkpoints()[-1] == f"step-{longer.config.train.decay_end:08d}"


def test_a_full_disk_does_not_end_a_training_that_goes_back(tmp_path, judged, monkeypatch):
    judged |= PAST_ITS_BEST
    expected = train(tmp_path / "expected", "wsd", **OVERFITTING)
    rewind = regard.Run.rewind_log

    def refused(run, step):
        if step == 9:
            raise OSError(28, "No space left on device", "log.jsonl")
        rewind(run, step)

    monkeypatch.setattr(regard.Run, "rewind_log", refused)
    run = train(tmp_path / "run", "wsd", **OVERFITTING)
    assert learned(run, 11) == learned(expected, 11)


def steps_done(out):
    return max(
        (int(p.name.removeprefix("step-")) for p in out.glob("checkpoints/step-*")), default=0
    )


def test_killed_at_random_moments(tmp_path):
    """SIGKILL, at any moment: while a checkpoint is written, while an old one is removed, between
    the log and the weights.
    """
    settings = TRAIN | {
        "steps": 150,
        "save_every": 7,
        "evaluate_every": 20,
        "log_every": 2,
        "average": 3,
        "keep": 3,
    }
    given = {"model": SIZES["transformer"], "data": DATA, "train": settings}
    whole = regard.train("copy", out=tmp_path / "whole", reporter=Silent(), **given)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(
        ["regard.recipes.training", "torch._dynamo", "matplotlib.pyplot"]
    )
    out, moments = tmp_path / "killed", random.Random(8)
    for _ in range(6):
        before, deadline = steps_done(out), time.monotonic() + 120
        kept = {} if out.exists() else given
        process = processes.Process(
            target=regard.train, args=("copy",), kwargs={"out": out, "resume": True, **kept}
        )
        process.start()
        wanted = before + moments.randrange(1, 14)
        while steps_done(out) < wanted and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.08))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert 0 < steps_done(out) < settings["steps"]
    run = regard.train("copy", out=out, resume=True, reporter=Silent())
    assert digests(run) == digests(whole)
    assert log(run) == log(whole)
    assert not list(out.glob("**/*.tmp"))
