"""The story end to end: train, evaluate, translate. The command line does nothing but call these."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import config as settings
from regard import planning, storage
from regard.card import write_card, write_samples
from regard.config import Config, DataConfig, Settings
from regard.data.batches import Batches
from regard.data.corpus import Corpus, encode
from regard.data.pairs import Pair, Skipped
from regard.data.splits import Splits, from_iterable, grouped, leaks, open_data
from regard.errors import UserError
from regard.models import Seq2Seq, build_model
from regard.pictures.curves import curves
from regard.presets import preset as read_preset
from regard.reporter import Reporter
from regard.run import Run, set_weights
from regard.scoring import Report, exact_match, report
from regard.scoring.metrics import bleu
from regard.text.tokenizer import Tokenizer, train_tokenizer
from regard.training.checkpoint import average_checkpoints, load_checkpoint, point_best, save_checkpoint, save_weights
from regard.training.trainer import Progress, Trainer
from regard.translator import Translator, load

Parts = Mapping[str, type[nn.Module]] | None

CHANGEABLE = {"steps", "epochs", "minutes", "patience", "log_every", "keep", "average", "tensorboard"}
"""Settings of `train` that a resumed run may change; others would make it another run."""


class Interrupted(Exception):
    """Training was asked to stop (Ctrl-C, SIGTERM), and everything is saved."""

    def __init__(self, run: Run, signal_number: int) -> None:
        super().__init__(f"stopped and saved; go on with: regard train {run.config.data.path} --out {run.path} --resume")
        self.code = 128 + signal_number


def train(
    data: str | Path | Iterable[tuple[str, str | Sequence[str]]] | Config,
    /,
    *,
    preset: str | None = None,
    config: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    start_from: str | Path | None = None,
    parts: Parts = None,
    reporter: Reporter | None = None,
    **overrides: Mapping[str, Any],
) -> Run:
    """Train a model on `data` (a task, corpus, file, folder, or any iterable of pairs) and return its run.

    Settings come from the preset, over it the TOML file `config`, over that keyword sections: train={"steps": 100}.
    """
    reporter = reporter or Reporter()
    given: Settings = settings.to_settings(data) if isinstance(data, Config) else {}
    name = str(given["data"]["path"]) if isinstance(data, Config) else str(data) if isinstance(data, str | Path) else "pairs"
    folder = Path(out) if out else _default_out(name, resume)
    if resume and folder.exists():
        return _resume(folder, overrides, parts, reporter)
    if folder.exists():
        raise UserError(f"{folder} exists: --resume goes on with it, --out names another folder")
    start = {"train": {"start_from": str(start_from)}} if start_from else {}
    layers = [read_preset(preset)] if preset else []
    layers += [settings.read_toml(Path(config))] if config else []
    given = settings.merge(given, *layers, {"data": {"path": name}}, start, overrides)
    settings.build(given)  # a misspelt setting is told before anything is read
    pairs = None if isinstance(data, str | Path | Config) else data
    run = _prepare(folder, given, pairs, parts, planned=not (preset or config or isinstance(data, Config)), reporter=reporter)
    return fit(run, parts=parts, reporter=reporter)


def _default_out(name: str, resume: bool) -> Path:
    stem = Path(name).name.split(".")[0] or "pairs"
    folder, number = Path("runs") / stem, 1
    newest = folder
    while folder.exists():
        newest, number = folder, number + 1
        folder = Path("runs") / f"{stem}-{number}"
    return newest if resume else folder


def _resume(folder: Path, overrides: Settings | Mapping[str, Any], parts: Any, reporter: Reporter) -> Run:
    run = Run.open(folder)
    fixed = [f"{s}.{n}" for s, values in overrides.items() for n in values if s != "train" or n not in CHANGEABLE]
    if fixed:
        raise UserError(f"{folder}: a resumed run keeps its settings, so {fixed[0]} cannot change; start a new run instead")
    if overrides:
        run.config = settings.build(settings.merge(settings.to_settings(run.config), overrides))
        run.log("settings", **overrides)
    return fit(run, parts=parts, reporter=reporter)


def open_splits(c: DataConfig) -> Splits:
    """The data a config speaks of."""
    return open_data(
        c.path,
        source=c.source or None,
        target=c.target or None,
        limit=c.limit or None,
        group=c.group,
        dev=c.dev or None,
        test=c.test or None,
        seed=c.seed,
        options=c.options,
    )


def _prepare(
    folder: Path, given: Settings, pairs: Iterable[Any] | None, parts: Parts, *, planned: bool, reporter: Reporter
) -> Run:
    """Read the data, choose what is open, learn tokenizers, encode; then the run appears in one rename."""
    data = settings.build({"data": given["data"]}).data
    splits = open_splits(data) if pairs is None else from_iterable(pairs, dev=data.dev or None, test=data.test or None, seed=data.seed)
    start_from = given.get("train", {}).get("start_from")
    old = Run.open(start_from) if start_from else None
    if old is not None:  # the old run's model and tokens, or its weights would mean nothing
        own = settings.to_settings(old.config)
        given = settings.merge(given, {"model": own["model"], "text": own["text"]})
    if planned:
        chosen, reasons = planning.choose(splits, given)
        given = settings.merge(chosen, given)
        for reason in reasons:
            reporter.say(reason)
    c = _decide(settings.build(given))
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        source, target = (old.source, old.target) if old is not None else _tokenizers(c, splits)
        long = Skipped()
        corpus = encode(splits.train, source, target, aside / "data" / "train", max_length=c.data.max_length, skipped=long)
        if splits.dev is not None:
            encode(splits.dev, source, target, aside / "data" / "dev", max_length=c.data.max_length, skipped=long)
        for line in [*splits.skipped.lines(), *long.lines(), *splits.notes]:
            reporter.warn(line)
        found = leaks(splits)
        facts = {
            "pairs": len(corpus),
            "longest_source": int(corpus.source_lengths.max()),
            "duplicates": found.duplicates,
            "leaks": found.dev,
            "skipped": len(splits.skipped) + len(long),
            "languages": {"source": c.data.source, "target": c.data.target},
        }
        if found.dev:
            reporter.warn(f"{found.dev:,} of the dev sources also stand in the training data: dev scores flatter")
        facts["parameters"] = sum(p.numel() for p in build_model(c.model, source.size, target.size, parts).parameters())
        c = dataclasses.replace(c, data=dataclasses.replace(c.data, digest=corpus.digest))
        tokens = f"{source.size:,} tokens" if source is target else f"{source.size:,} + {target.size:,} tokens"
        reporter.say(f"{len(corpus):,} training pairs, {tokens}, {facts['parameters']:,} parameters")
        folder.parent.mkdir(parents=True, exist_ok=True)
        return Run.create(folder, c, source, target, facts, aside)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _decide(c: Config) -> Config:
    """Settle what depends on the machine, so that config.toml says what was done."""
    device = pick_device(c.train.device)
    precision = c.train.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    threads = c.train.threads or torch.get_num_threads()
    return dataclasses.replace(c, train=dataclasses.replace(c.train, precision=precision, threads=threads))


def pick_device(name: str) -> torch.device:
    """auto: the GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("train.device=cuda, but torch sees no GPU here; use train.device=cpu")
    return torch.device("cuda" if name == "auto" and torch.cuda.is_available() else "cpu" if name == "auto" else name)


def _tokenizers(c: Config, splits: Splits) -> tuple[Tokenizer, Tokenizer]:
    kind = c.text.tokenizer
    target_kind = kind if c.text.target_tokenizer == "same" else c.text.target_tokenizer
    sources = (pair.source for pair in splits.train)
    targets = (text for pair in splits.train for text in pair.targets)
    if c.text.share and kind == target_kind:
        one = train_tokenizer(kind, (t for pair in splits.train for t in (pair.source, *pair.targets)), size=c.text.size)
        return one, one
    return train_tokenizer(kind, sources, size=c.text.size), train_tokenizer(target_kind, targets, size=c.text.size)


def fit(run: Run, *, parts: Parts = None, reporter: Reporter | None = None) -> Run:
    """Train a prepared run to its end, from wherever it stands."""
    c, reporter = run.config.train, reporter or Reporter()
    device = pick_device(c.device)
    torch.set_num_threads(c.threads)
    with run.locked():
        run.sweep()
        trainer = _trainer(run, parts, device)
        if load_checkpoint(run, trainer, reporter.warn):
            trainer.progress.finished = trainer.progress.step >= trainer.steps
            reporter.say(f"going on from step {trainer.progress.step:,} of {trainer.steps:,}")
        validate = _validator(run, trainer, device)
        board = _tensorboard(run)

        def log(kind: str, **values: Any) -> None:
            run.log(kind, **values)
            for name, value in values.items():
                if board is not None and name != "step":
                    board.add_scalar(f"{kind}/{name}", value, values["step"])

        with reporter.bar(trainer.steps, trainer.progress.step) as bar, _asked_to_stop() as asked:
            note = _Note(trainer.c.log_every)
            trainer.fit(
                validate=validate,
                save=lambda: save_checkpoint(run, trainer),
                log=lambda kind, **values: log(kind, **note.keep(kind, values)),
                tick=lambda progress: bar.to(progress.step, note.text(progress)),
                stop=lambda: bool(asked),
            )
        curves({run.path.name: run.records()}, run.path / "curves.png")
        if asked and not trainer.progress.finished:
            raise Interrupted(run, asked[0])
        _average(run, trainer, validate, reporter)
        _finish(run, trainer, device)
    return run


class _Note:
    """The figures beside the bar: loss, accuracy, speed, and the last look at dev."""

    def __init__(self, every: int) -> None:
        self.train, self.dev = "", ""

    def keep(self, kind: str, values: dict[str, Any]) -> dict[str, Any]:
        if kind == "train":
            self.train = f"loss {values['loss']:.3f}  accuracy {values['accuracy']:.3f}  {values['tokens_per_second']:,.0f} tokens/s"
        elif kind == "dev":
            self.dev = f"  dev loss {values['loss']:.3f} accuracy {values['accuracy']:.3f}"
        return values

    def text(self, progress: Progress) -> str:
        return self.train + self.dev


def _trainer(run: Run, parts: Parts, device: torch.device) -> Trainer:
    c = run.config
    corpus = Corpus.open(run.path / "data" / "train")
    if corpus.digest != c.data.digest:
        raise UserError(f"{corpus.path}: not the data this run was made with (its digest differs from config.toml)")
    by_sentences = {"sentences": c.data.batch_sentences} if c.data.batch_sentences else {"tokens": c.data.batch_tokens}
    batches = Batches(corpus, seed=c.train.seed, **by_sentences)
    steps = c.train.steps
    if c.train.epochs:
        steps = max(1, math.ceil(c.train.epochs * batches.per_epoch / c.train.accumulate))
    torch.manual_seed(c.train.seed)
    model = run.new_model(parts)
    if c.train.start_from:
        old = Run.open(c.train.start_from)
        set_weights(model, dict(old.model(parts=parts).named_parameters()), c.train.start_from)
    return Trainer(model.to(device), batches, c.train, steps=steps, device=device)


def _validator(run: Run, trainer: Trainer, device: torch.device) -> Callable[[Seq2Seq], Mapping[str, float]] | None:
    """A look at the dev data: loss and accuracy of every token, and for train.metric=exact_match or bleu decoded answers."""
    if not (run.path / "data" / "dev").exists():
        return None
    corpus = Corpus.open(run.path / "data" / "dev")
    pairs = _texts(run, corpus, 500)

    def validate(model: Seq2Seq) -> Mapping[str, float]:
        found = mean_loss(model, corpus, run.config.data.batch_tokens, device)
        if run.config.train.metric in ("exact_match", "bleu"):
            translator = Translator(model, run.source, run.target, dataclasses.replace(run.config.search, width=1))
            answers = [result.text for result in translator.translate(p.source for p in pairs)]
            references = [p.targets for p in pairs]
            found |= {"exact_match": exact_match(answers, references), "bleu": bleu(answers, references).score}
        return found

    return validate


def _texts(run: Run, corpus: Corpus, count: int) -> list[Pair]:
    """The first pairs of an encoded corpus, as text again."""
    rows = (corpus[i] for i in range(min(count, len(corpus))))
    return grouped(Pair(run.source.decode(s), (run.target.decode(t),), i) for i, (s, t) in enumerate(rows, 1))


@torch.no_grad()
def mean_loss(model: Seq2Seq, corpus: Corpus, budget: int, device: torch.device) -> dict[str, float]:
    """Loss and accuracy per reference token, over the whole corpus."""
    nll = correct = tokens = 0.0
    for batch in Batches(corpus, tokens=budget, seed=0).in_order():
        sums = model.loss(batch.to(device))
        nll, correct, tokens = nll + float(sums.nll), correct + float(sums.correct), tokens + sums.tokens
    return {"loss": nll / tokens, "accuracy": correct / tokens, "tokens": tokens}


def _average(run: Run, trainer: Trainer, validate: Any, reporter: Reporter) -> None:
    """Weights averaged over the last checkpoints become the best, if dev agrees."""
    if not trainer.c.average or validate is None:
        return
    weights = average_checkpoints(run, trainer)
    set_weights(trainer.model, weights, "average")
    found = validate(trainer.model.eval())
    run.log("average", step=trainer.progress.step, **found)
    if trainer.better(found):
        save_weights(run, "averaged", weights)
        point_best(run, "averaged")
        reporter.say(f"the average of the last {trainer.c.average} checkpoints is better: dev loss {found['loss']:.4f}")


def _finish(run: Run, trainer: Trainer, device: torch.device) -> None:
    """Samples and card."""
    if (run.path / "data" / "dev").exists():
        pairs = _texts(run, Corpus.open(run.path / "data" / "dev"), 20)
        translator = load(run, device=str(device))
        write_samples(run, pairs, list(translator.translate(p.source for p in pairs)))
    write_card(run)


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM, so that a step is never torn; a second Ctrl-C stops at once."""
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tensorboard(run: Run) -> Any:
    if run.config.train.tensorboard == "off":
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        if run.config.train.tensorboard == "on":
            raise UserError("train.tensorboard=on needs TensorBoard: pip install 'regard[tensorboard]'") from None
        return None
    return SummaryWriter(str(run.path / "tensorboard"))
