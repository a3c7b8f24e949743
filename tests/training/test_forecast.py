"""A forecast says what is to come and leaves no trace in what is learned."""

import hashlib
import re

import pytest
import torch

import regard
from regard.nn.devices import linux_bytes
from regard.recipes import fitting
from regard.recipes.reporter import Reporter
from regard.runs.weights import get_weights
from regard.training import forecast as module
from regard.training.forecast import forecast
from regard.training.parallel import World
from regard.training.start import make_trainer

DATA = {
    "limit": 80,
    "dev": 4,
    "test": 4,
    "batch_sentences": 16,
    "options": {"length": 6, "symbols": 5},
}
LINE = r"about [\d.,]+ [MG]B of memory; [\d,]+ tokens/s; 40 steps, about \d+ seconds? \(done around \d\d:\d\d\)"


class Listener(Reporter):
    """Keeps what is said."""

    def __init__(self):
        super().__init__(quiet=True)
        self.said = []

    def say(self, text):
        self.said.append(text)


@pytest.fixture
def train(tiny, tmp_path):
    def call(name="run", reporter=None, **changes):
        model = tiny["model"] | {"dropout": 0.2}
        settings = tiny["train"] | {
            "steps": 40,
            "warmup": 5,
            "save_every": 20,
            "evaluate_every": 20,
        }
        settings |= {"device": "cpu"} | changes
        reporter = reporter or Listener()
        return regard.train(
            "copy", out=tmp_path / name, model=model, data=DATA, train=settings, reporter=reporter
        )

    return call


@pytest.fixture
def trainer(train):
    """Of a run that has come to its tenth step, with 1000 to go."""
    run = train(steps=10, save_every=10)
    c = run.config
    run.config = regard.config.build(
        regard.config.merge(regard.config.to_settings(c), {"train": {"steps": 1010}})
    )
    made = make_trainer(run, None, World())
    assert fitting.load_checkpoint(run, made, pytest.fail)
    made.progress.finished = False
    return made


def learned(run):
    files = sorted(run.path.glob("checkpoints/*/*.safetensors"))
    clock = ("seconds", "tokens_per_second", "examples_per_second")
    log = [{k: v for k, v in record.items() if k not in clock} for record in run.records()]
    return [(p.name, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files], log


@pytest.mark.parametrize(
    "changes",
    [{}, {"optimizer": "sgd", "accumulate": 2}, {"ema": 0.9, "optimizer": "muon"}],
    ids=str,
)
def test_training_after_it_is_the_same_bit_for_bit(train, monkeypatch, changes):
    said = Listener()
    probed = train("probed", said, **changes)
    assert sum(bool(re.fullmatch(LINE, line)) for line in said.said) == 1
    monkeypatch.setattr(fitting, "forecast", lambda trainer, say: None)
    assert learned(train("plain", **changes)) == learned(probed)


def test_it_leaves_everything_as_it_was(trainer):
    before = {name: w.clone() for name, w in get_weights(trainer.model).items()}
    facts, random = trainer.to_json(), torch.get_rng_state()
    said = []
    forecast(trainer, said.append)
    assert len(said) == 1
    assert trainer.to_json() == facts
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in trainer.model.parameters())
    assert all(torch.equal(w, before[name]) for name, w in get_weights(trainer.model).items())
    assert (trainer.largest_fitting, trainer.shortages, trainer.captured) == (0, [], None)
    trainer.model.eval()
    forecast(trainer, said.append)
    assert not trainer.model.training


def test_the_longest_batch_comes_first(trainer, monkeypatch):
    seen, gradient = [], trainer._gradient
    monkeypatch.setattr(
        trainer, "_gradient", lambda parts, tokens: seen.append(parts[0]) or gradient(parts, tokens)
    )
    forecast(trainer, lambda text: None)
    corpus = trainer.batches.corpus
    longest = max(max(corpus.source_lengths), max(corpus.target_lengths))
    eighth, quarter, whole, *ordinary = seen
    assert (eighth.size, quarter.size, whole.size) == (2, 4, 16)
    assert max(whole.source.shape[1], whole.target.shape[1] - 1) == longest
    assert [batch.source.tolist() for batch in ordinary] == [
        trainer.batches(10 + i).source.tolist() for i in range(3)
    ]


def test_a_short_rest_is_not_worth_it(trainer):
    trainer.progress.step = 1000
    forecast(trainer, pytest.fail)
    trainer.progress.step, trainer.progress.finished = 10, True
    forecast(trainer, pytest.fail)


def test_several_processes_try_nothing(trainer, monkeypatch):
    """They would have to wait for one another."""
    monkeypatch.setattr(trainer, "_gradient", pytest.fail)
    trainer.world, said = World(0, 2), []
    forecast(trainer, said.append)
    assert re.fullmatch("1,000 steps", said[0])


def test_too_little_memory_splits_batches(trainer, monkeypatch):
    """On a CPU the estimate decides, before anything large is tried."""
    peaks = {2: 3e9, 4: 4e9, 16: 0}  # 2 GB and half a GB for each sentence: 10 GB in all
    monkeypatch.setattr(module, "_peak", lambda trainer, batch: int(peaks[batch.size]))
    monkeypatch.setattr(module, "_room", lambda device: int(7e9))
    said = []
    forecast(trainer, said.append)
    longest = module._longest(trainer)
    assert 0.5 * longest.padded_tokens <= trainer.largest_fitting < 5 / 8 * longest.padded_tokens
    assert "each batch is split into 2 parts to fit in memory; " in said[0]


def test_running_out_of_memory_splits_batches(trainer, monkeypatch):
    """On a GPU the longest batch itself tells; what was tried does not count as a step that ran
    out.
    """
    loss, sizes = trainer.model.loss, []

    def small(batch, smoothing):
        if batch.size > 8:
            raise torch.OutOfMemoryError
        sizes.append(batch.size)
        return loss(batch, smoothing)

    monkeypatch.setattr(trainer.model, "loss", small)
    said = []
    forecast(trainer, said.append)
    assert "split into 2 parts" in said[0]
    assert trainer.shortages == []
    sizes.clear()
    trainer.update([module._longest(trainer)])
    assert sizes == [8, 8]


def test_the_time_given_ends_it(trainer):
    object.__setattr__(trainer.config, "minutes", trainer.progress.seconds / 60 + 1e-3)
    said = []
    forecast(trainer, said.append)
    assert re.search(r"about \d+ of 1,000 steps in the 1 second allowed \(done around ", said[0])


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 second"),
        (119, "119 seconds"),
        (600, "10 minutes"),
        (9000, "2.5 hours"),
        (2e5, "2.3 days"),
    ],
)
def test_spans(seconds, words):
    assert module.duration(seconds) == words


def test_memory_is_about_what_the_process_takes(trainer):
    taken = linux_bytes("self/status", "VmRSS", 0)
    assert taken < module._memory(trainer, module._longest(trainer)) < taken + 2**28
    assert linux_bytes("self/nothing", "VmRSS", 7) == linux_bytes("self/status", "Nothing", 7) == 7


@pytest.mark.filterwarnings(
    "default"
)  # torch warns of its own compiler, in other words in each version
@pytest.mark.gpu
@pytest.mark.parametrize("path", ["plain", "captured", "compiled"])
def test_on_a_gpu_nothing_is_captured_or_compiled(train, path):
    run = train(device="cuda", path=path)
    made = make_trainer(run, None, World(device=torch.device("cuda")))
    before, said = get_weights(made.model), []
    torch._dynamo.utils.counters.clear()
    forecast(made, said.append)
    assert ("tokens/s" in said[0]) == (path == "plain")
    assert made.captured is None or (made.captured.graphs, made.captured.warm) == ({}, 0)
    assert not torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert all(torch.equal(w, before[name]) for name, w in get_weights(made.model).items())


def test_batches_are_brought_to_the_device(trainer, monkeypatch):
    """Those that are timed too: not every feed does it (MPS, or without the fast paths)."""
    brought = []
    monkeypatch.setattr(trainer, "ready", lambda batch: brought.append(batch) or batch)
    forecast(trainer, lambda text: None)
    assert len(brought) == 3
