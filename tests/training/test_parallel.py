"""Two processes do what one does: the same curve and weights, each pair once; and they stop, die
and go on together.

This file is also what torchrun runs: see `work`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import regard
from regard.data.batches import Batches, collate
from regard.errors import Interrupted, UserError
from regard.models import Sums
from regard.recipes.fitting import fit
from regard.recipes.preparing import prepare
from regard.recipes.reporter import Reporter
from regard.runs.claim import Claim
from regard.runs.run import Run
from regard.training.parallel import World
from regard.training.trainer import Trainer

# without biases: the gradient of a key's bias is zero but for rounding, and Adam makes steps of it
MODELS = {
    "transformer": {
        "width": 16,
        "ffn": 24,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "bias": False,
        "dropout": 0.0,
    },
    "rnn": {"kind": "rnn", "width": 16, "embedding": 16, "cell": "gru", "dropout": 0.0},
}
DATA = {
    "path": "copy",
    "limit": 60,
    "dev": 12,
    "test": 4,
    "batch_sentences": 9,
    "options": {"length": 4, "symbols": 5},
}
TRAIN = {
    "steps": 10,
    "epochs": 0,
    "warmup": 4,
    "save_every": 5,
    "evaluate_every": 5,
    "log_every": 4,
    "threads": 1,
}
TRAIN |= {"tensorboard": "off", "device": "cpu", "precision": "fp32"}
CASES = {
    "transformer": ("transformer", {}, {}),
    "rnn": ("rnn", {}, {}),
    "rnn-accumulate": ("rnn", {"accumulate": 2, "optimizer": "sgd"}, {}),
    "rdrop-average": ("transformer", {"rdrop": 1.0, "average": 2}, {}),
    "one-sentence": ("transformer", {}, {"batch_sentences": 1}),
    "fsdp-transformer": ("transformer", {"strategy": "fsdp"}, {}),
    "fsdp-rnn-accumulate": ("rnn", {"strategy": "fsdp", "accumulate": 2}, {}),
    "fsdp-ema-bleu": ("transformer", {"strategy": "fsdp", "ema": 0.8, "metric": "bleu"}, {}),
    "fsdp-one-sentence": ("transformer", {"strategy": "fsdp"}, {"batch_sentences": 1}),
}
CLOCK = {"seconds", "tokens_per_second", "examples_per_second"}
FOREVER = 10**6


# in each of the two processes


def work(job):
    """say: texts that rank 0 tells. fit: runs to fit, one after the other.

    out: a run to go on with, and perhaps to stop or fail at a step, as rank 1.
    """
    rank, last, update = int(os.environ["RANK"]), [0], Trainer.update

    def updated(trainer, parts):
        update(trainer, parts)
        last[0] = trainer.progress.step
        for _ in range(
            2 if rank == 1 and last[0] == job.get("stop") else 0
        ):  # a cluster and torchrun may both say it
            signal.raise_signal(signal.SIGTERM)
        if rank == 1 and last[0] == job.get("raise"):
            raise ValueError("rank 1 has had enough")

    Trainer.update = updated
    if "say" in job:
        with World.join(torch.device("cpu")) as world:
            heard = [world.tell(text if rank == 0 else "") for text in job["say"]]
        Path(f"{job['heard']}.{rank}").write_text(json.dumps(heard))
        return
    if "seen" in job:
        watch(f"{job['seen']}.{rank}", setattr)
    if "fit" in job:
        with World.join(torch.device("cpu")) as world:
            for folder in job["fit"]:
                fit(Run.open(folder), reporter=Reporter(quiet=True), world=world)
        return
    try:
        regard.train(
            "copy",
            out=job["out"],
            resume=True,
            reporter=Reporter(quiet=True),
            train=job.get("train", {}),
        )
    except Interrupted as stopped:
        Path(f"{job['out']}.stopped.{rank}").write_text(json.dumps([last[0], stopped.code]))
        sys.exit(stopped.code)


def watch(path, put):
    """Write the numbers of all pairs that are loaded, by step."""
    load = Batches.load

    def loaded(batches, indices, step=None):
        if step is not None:
            with open(path, "a") as file:
                print(json.dumps([step, indices.tolist()]), file=file)
        return load(batches, indices, step)

    put(Batches, "load", loaded)


# in the test


@pytest.fixture(scope="module", autouse=True)
def _gloo(tmp_path_factory):
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{tmp_path_factory.mktemp('gloo')}/store",
            rank=0,
            world_size=1,
        )
    except RuntimeError as error:
        pytest.skip(f"gloo does not start here: {error}")
    dist.destroy_process_group()


def start(*words):
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "COLUMNS": "120",
    }
    environment["GLOO_SOCKET_IFNAME"] = (
        "lo"  # whatever this machine is called, and whoever knows that name
    )
    return subprocess.Popen(
        [*torchrun, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def ended(process, within=180):
    """Exit code and all that was said."""
    try:
        said, _ = process.communicate(timeout=within)
    finally:
        process.terminate()  # torchrun ends the others, too
    return process.returncode, said


def worker(**job):
    return start(__file__, json.dumps(job))


def prepared(folder, model="transformer", train=(), data=()):
    given = {
        "model": MODELS[model],
        "data": DATA | dict(data),
        "train": TRAIN | dict(train),
        "search": {"width": 2},
    }
    with Claim.take(folder) as claim:
        return prepare(claim, given, None, None, plan_settings=False, reporter=Reporter(quiet=True))


def test_a_text_of_any_length_is_told(tmp_path):
    texts = [
        "",
        "a",
        "ü" * 3000,
        "x" * 4096,
        "y" * 4097,
        json.dumps({"path": "/é" * 5000}),
        "ends in \0",
    ]
    code, said = ended(worker(say=texts, heard=str(tmp_path / "heard")))
    assert code == 0, said
    for rank in range(2):
        assert json.loads((tmp_path / f"heard.{rank}").read_text()) == texts


def resume(out, **train):
    return regard.train("copy", out=out, resume=True, reporter=Reporter(quiet=True), train=train)


def newest(run):
    """Weights and optimiser of the newest checkpoint, which must be whole."""
    name = run.checkpoints()[-1]
    run.checkpoint(name)
    files = ("model", "optimizer")
    return {
        f"{file}/{key}": w
        for file in files
        for key, w in load_file(run.path / f"checkpoints/{name}/{file}.safetensors").items()
    }


def same(one, two):
    """Logs, checkpoints and weights of two runs, but for rounding."""
    assert one.checkpoints() == two.checkpoints()
    assert one.best == two.best
    one_log, two_log = (
        [{k: v for k, v in r.items() if k not in CLOCK} for r in run.records()]
        for run in (one, two)
    )
    for a, b in zip(one_log, two_log, strict=True):
        assert a.pop("kind") == b.pop("kind")
        assert a == pytest.approx(b, abs=2e-5, rel=2e-5)
    torch.testing.assert_close(newest(one), newest(two), atol=2e-6, rtol=1e-4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every case, by one process and by two."""
    folder = tmp_path_factory.mktemp("runs")
    for name, (model, train, data) in CASES.items():
        prepared(folder / f"{name}.1", model, train, data)
        shutil.copytree(folder / f"{name}.1", folder / f"{name}.2")
        fit(Run.open(folder / f"{name}.1"), reporter=Reporter(quiet=True))
    code, said = ended(worker(fit=[str(folder / f"{name}.2") for name in CASES]), 120)
    assert code == 0, said
    assert "Warning" not in said
    return lambda name: (Run.open(folder / f"{name}.1"), Run.open(folder / f"{name}.2"))


@pytest.mark.parametrize("name", CASES)
def test_two_are_as_one(runs, name):
    one, two = runs(name)
    same(one, two)
    torch.testing.assert_close(
        dict(two.model().named_parameters()),
        dict(one.model().named_parameters()),
        atol=2e-6,
        rtol=1e-4,
    )


@pytest.mark.parametrize(
    "name", ["transformer", "rnn-accumulate", "fsdp-transformer", "one-sentence"]
)
def test_rates_of_the_log_are_everyones(runs, name):
    """Tokens per example do not depend on anybody's clock; nine sentences are five and four, one is
    one and none.
    """
    one, two = ([r for r in run.records() if r["kind"] == "train"] for run in runs(name))
    assert len(one) == 3
    for a, b in zip(one, two, strict=True):
        rounding = 0.1 / min(
            a["examples_per_second"], b["examples_per_second"]
        )  # the log has one decimal, which counts if slow
        assert a["tokens_per_second"] / a["examples_per_second"] == pytest.approx(
            b["tokens_per_second"] / b["examples_per_second"], rel=5e-3 + rounding
        )


def test_one_then_two_then_one(tmp_path, monkeypatch):
    """Whoever goes on, each pair comes once an epoch, and the end is the same."""
    straight = fit(
        prepared(tmp_path / "straight", train={"epochs": 2}), reporter=Reporter(quiet=True)
    )
    run = prepared(tmp_path / "run", train={"epochs": 2})
    update = Trainer.update

    def updated(trainer, parts):
        update(trainer, parts)
        if trainer.progress.step == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        watch(tmp_path / "seen.first", patch.setattr)
        patch.setattr(Trainer, "update", updated)
        with pytest.raises(Interrupted):
            fit(run, reporter=Reporter(quiet=True))
    code, said = ended(worker(out=str(run.path), seen=str(tmp_path / "seen"), stop=9))
    assert code != 0, said
    stopped = [json.loads(Path(f"{run.path}.stopped.{rank}").read_text()) for rank in (0, 1)]
    assert stopped == [[9, 143], [9, 143]]
    with monkeypatch.context() as patch:
        watch(tmp_path / "seen.last", patch.setattr)
        resume(run.path)
    same(straight, run)
    seen = {
        name: list(map(json.loads, (tmp_path / f"seen.{name}").read_text().splitlines()))
        for name in ("first", "0", "1", "last")
    }
    steps = {name: [step for step, _ in lines] for name, lines in seen.items()}
    assert steps == {
        "first": [0, 1, 2],
        "0": [*range(3, 9)],
        "1": [*range(3, 9)],
        "last": [*range(9, 14)],
    }
    for epoch in (range(7), range(7, 14)):
        assert sorted(
            i for lines in seen.values() for step, pairs in lines if step in epoch for i in pairs
        ) == [*range(60)]


@pytest.fixture
def training(tmp_path):
    """Two processes that train without end; given when the second checkpoint is there."""
    made = []

    def begin(**job):
        run = prepared(tmp_path / "run", train={"steps": FOREVER})
        process = worker(out=str(run.path), **job)
        made.append(process)
        deadline = time.monotonic() + 180
        while len(run.checkpoints()) < 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return run, process

    yield begin
    for process in made:
        process.terminate()
        process.wait(60)


def goes_on(run):
    """The newest checkpoint is whole, and one process trains on from it to the end."""
    step = int(run.checkpoints()[-1].removeprefix("step-"))
    newest(run)
    assert resume(run.path, steps=step + 3).checkpoints()[-1] == f"step-{step + 3:08d}"
    steps = [r["step"] for r in run.records() if r["kind"] == "train"]
    assert steps == sorted(set(steps))


def of_rank(process, rank):
    """The id of the process of that rank."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if f"\0RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text():
            return int(child)
    raise AssertionError(f"no rank {rank}")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_one_is_killed(training, rank):
    run, process = training()
    with pytest.raises(UserError, match="another process is training"):
        resume(run.path)
    os.kill(of_rank(process, rank), signal.SIGKILL)
    code, said = ended(process, within=120)
    assert code != 0
    assert "SIGKILL" in said
    goes_on(run)


@pytest.mark.slow
def test_one_has_a_mistake(training):
    run, process = training(**{"raise": 12})
    code, said = ended(process, within=120)
    assert code != 0
    assert "ValueError: rank 1 has had enough" in said
    goes_on(run)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_torchrun_is_asked_to_stop(training, number):
    run, process = training()
    process.send_signal(number)
    code, said = ended(process, within=120)
    assert code != 0
    stopped = [json.loads(Path(f"{run.path}.stopped.{rank}").read_text()) for rank in (0, 1)]
    assert stopped[0] == stopped[1], said
    assert stopped[0] == [int(run.checkpoints()[-1].removeprefix("step-")), 128 + number]
    goes_on(run)


def test_a_mistake_of_the_callers(tmp_path):
    """Told once, by the one who prepares; the other does not wait, and shows no traceback of its
    own.
    """
    (tmp_path / "empty.tsv").touch()
    began = time.monotonic()
    words = (
        "train",
        str(tmp_path / "empty.tsv"),
        "--out",
        str(tmp_path / "run"),
        "train.device=cpu",
    )
    code, said = ended(start("-m", "regard", *words))
    assert code != 0
    assert time.monotonic() - began < 120
    assert said.count("empty.tsv: the file is empty") == 1
    assert said.count("Traceback") == 1  # torchrun's own
    assert not (tmp_path / "run").exists()


# without processes


@pytest.mark.parametrize("at_random", [False, True])
def test_shares_are_the_batch(tmp_path, at_random):
    """Together every sentence once, with the counts of the whole; one sentence: the others get one
    that counts nothing.
    """
    from regard.data.corpus import Corpus

    run = prepared(tmp_path / "run")
    corpus = Corpus.open(run.path / "data" / "train")
    batches = Batches(corpus, sentences=2, seed=1, at_random=at_random)
    model = run.new_model()
    for size in (2, 3):
        whole, shares = batches(0), [batches.shard(rank, size)(0) for rank in range(size)]
        assert [s.tokens for s in shares] == [whole.tokens] * size
        assert [s.source_tokens for s in shares] == [whole.source_tokens] * size
        rows = [row for share in shares[:2] for row in share.rows()]
        for mine, theirs in zip(rows, whole.rows(), strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))
        losses = [model.loss(share, 0.1) for share in shares]
        torch.testing.assert_close(sum(s.loss for s in losses), model.loss(whole, 0.1).loss)
        assert all(s.loss.item() == s.correct.item() == 0 for s in losses[2:])


def test_alone(monkeypatch):
    """Nothing is started, nothing is changed."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with World.join(torch.device("cpu")) as world:
        assert not dist.is_initialized()
        assert world == World()
        x = torch.tensor([1.0, 2.0])
        assert world.sum(x).tolist() == [1.0, 2.0]
        assert [world.any(True), world.any(False)] == [True, False]
        assert world.tell("word") == "word"
        world.wait()
        model, batch = torch.nn.Linear(1, 1), collate([([2], [1, 2])])
        loss = world.wrap(model, "fsdp", lambda m, b: Sums(m.weight.sum(), b.tokens, 0, 0))
        assert loss(batch) == Sums(model.weight.sum(), 1, 0, 0)
        assert type(model.weight) is torch.nn.Parameter


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
