"""A prepared run -> a trained one: the trainer between checkpoints, log, dev data, bar and
signals.
"""

import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from regard.data.corpus import Corpus
from regard.data.pairs import Pair
from regard.data.splits import grouped
from regard.errors import Failed, Interrupted, UserError
from regard.inference.translator import Translator, load
from regard.models import Seq2Seq
from regard.nn.devices import on_device, pick_device, state_kept
from regard.pictures.curves import curves
from regard.recipes.reporter import Reporter
from regard.runs import storage
from regard.runs.card import write_card
from regard.runs.run import Parts, Run
from regard.runs.weights import get_weights, set_weights
from regard.scoring import bleu, exact_match
from regard.training.checkpoint import (
    average_checkpoints,
    load_checkpoint,
    save_average,
    save_checkpoint,
)
from regard.training.forecast import forecast
from regard.training.loss import mean_loss
from regard.training.parallel import World
from regard.training.start import initial_model, make_trainer
from regard.training.trainer import Progress, Trainer, Trouble


def fit(
    run: Run,
    *,
    parts: Parts = None,
    reporter: Reporter | None = None,
    longer: bool = False,
    world: World | None = None,
) -> Run:
    """Train a prepared run to its end, from wherever it stands. longer: even if it had come to an
    end before.
    """
    reporter, world = (
        reporter or Reporter(),
        world or World(device=pick_device(run.config.train.device)),
    )
    lock = run.locked() if world.rank == 0 else nullcontext()
    with on_device(world.device), state_kept(world.device), lock:
        torch.set_num_threads(run.config.train.threads)
        if world.rank == 0:
            with storage.disk_faults_told(run.path):
                run.sweep()
        world.wait()
        trainer = make_trainer(run, parts, world)
        p = trainer.progress
        with storage.disk_faults_told(run.path):
            resumed = load_checkpoint(run, trainer, reporter.warn)
        if resumed:
            if longer:
                p.finished, p.waited = False, 0
            reporter.say(f"going on from step {p.step:,} of {trainer.steps:,}")
        forecast(trainer, reporter.say)
        validate = _validator(run, world.device)
        with _asked_to_stop() as asked:
            _train(run, trainer, parts, validate, reporter, asked)
        if world.any(bool(asked)) and not p.finished:
            how = (
                f"stopped and saved; go on with: regard train {run.config.data.path} --out "
                f"{run.path} --resume"
            )
            raise Interrupted(how, asked[0] if asked else signal.SIGTERM)
        if world.rank == 0:
            _average(run, trainer, validate, reporter, parts)
            _finish(run, world.device, parts)
        world.wait()
    return run


def _train(
    run: Run, trainer: Trainer, parts: Parts, validate: Any, reporter: Reporter, asked: list[int]
) -> None:
    """The trainer's loop, and the way back to the last healthy checkpoint when too many steps had
    to be left out.
    """
    board: Any = _tensorboard(run) if trainer.world.rank == 0 else None
    notes, p = {"train": "", "dev": ""}, trainer.progress
    saved, lost = (p.best, p.best_name), False

    def log(kind: str, **values: Any) -> None:
        nonlocal lost
        speed = f"  {values['tokens_per_second']:,.0f} tokens/s" if kind == "train" else ""
        notes[kind] = f"{kind} loss {values['loss']:.3f} accuracy {values['accuracy']:.3f}{speed}"
        try:
            if trainer.world.rank == 0:
                run.log(kind, **values)
            for name, value in values.items() if board is not None else ():
                board.add_scalar(f"{kind}/{name}", value, values["step"])
        except OSError as error:
            if not lost:
                reporter.warn(
                    f"{error.filename or run.path}: {error.strerror}: the log has gaps; training "
                    f"goes on"
                )
            lost = True

    def tick(
        progress: Progress,
    ) -> None:  # also the clock, where time and not steps ends the training
        clock = (
            f"  {progress.seconds / 60:.1f} of {trainer.c.minutes:g} minutes"
            if trainer.c.minutes
            else ""
        )
        bar(progress.step, "  ".join(filter(None, notes.values())) + clock)

    def save() -> None:
        nonlocal saved
        failed = None
        try:
            save_checkpoint(run, trainer)
        except OSError as error:
            failed = error
        if trainer.world.any(failed is not None):
            p.best, p.best_name = saved  # what is not on disk cannot be the best
        saved = p.best, p.best_name
        if failed is not None:
            problem = f"{failed.filename or run.path}: {failed.strerror}"
            if p.finished or asked:
                raise Failed(
                    f"{problem}: the last checkpoint could not be saved; the one before it is whole"
                ) from failed
            reporter.warn(
                f"{problem}: no checkpoint at step {p.step:,}; training goes on, the one before "
                f"it is whole"
            )

    def draw() -> str:
        _draw(run)
        return run._repr_html_()

    with reporter.bar(trainer.steps, p.step, draw) as bar:
        while True:
            try:
                trainer.fit(
                    validate=validate, save=save, log=log, tick=tick, stop=lambda: bool(asked)
                )
                break
            except Trouble:
                _go_back(run, trainer, parts, reporter)
    if board is not None:
        board.close()
    if trainer.world.rank == 0:
        _draw(run)


def _draw(run: Run) -> None:
    with storage.disk_faults_told(run.path):
        records = run.records()
        if any(record["kind"] in ("train", "dev") for record in records):
            curves({run.path.name: records}, run.path / "curves.png")


def _go_back(run: Run, trainer: Trainer, parts: Parts, reporter: Reporter) -> None:
    """To the last healthy checkpoint, or to the very beginning, with half the rate; three times at
    most.
    """
    progress = trainer.progress
    factor = progress.factor / 2
    step = progress.step
    if factor < 1 / 8:
        rate = trainer.c.rate * progress.factor
        kept = " (the last checkpoint is good)" if run.checkpoints() else ""
        raise Failed(
            f"step {step:,}: again and again the loss or its gradient is not finite or far out, "
            f"though the rate was lowered to {rate:.2g}; look at the data, or use a lower "
            f"train.rate{kept}"
        )

    with storage.disk_faults_told(run.path):
        loaded = load_checkpoint(run, trainer, reporter.warn)
    if not loaded:
        trainer.restart(get_weights(initial_model(run, parts)))
    trainer.totals.zero_()
    progress.finished = False
    progress.factor = factor
    progress.skipped = []
    progress.source_tokens = 0
    reporter.warn(
        f"step {step:,}: too many steps were not finite or far out; back to step "
        f"{progress.step:,} with a rate of {factor:g} ×"
    )


def _validator(run: Run, device: torch.device) -> Callable[[Seq2Seq], Mapping[str, float]] | None:
    """A look at the dev data: loss and accuracy of every token, and for train.metric=exact_match or
    bleu decoded answers.
    """
    if not (run.path / "data" / "dev").exists():
        return None
    corpus, pairs = Corpus.open(run.path / "data" / "dev"), _texts(run, 500)

    def validate(model: Seq2Seq) -> Mapping[str, float]:
        found = mean_loss(model, corpus, run.config.data.batch_tokens, device)
        if run.config.train.metric in ("exact_match", "bleu"):
            translator = Translator(
                model, run.source, run.target, dataclasses.replace(run.config.search, width=1)
            )
            answers = [result.text for result in translator.translate(p.source for p in pairs)]
            references = [p.targets for p in pairs]
            found["exact_match"] = exact_match(answers, references)
            found["bleu"] = bleu(answers, references, run.config.data.bleu_tokenize).score
        return found

    return validate


def _texts(run: Run, count: int) -> list[Pair]:
    """The first dev pairs, as text again."""
    corpus = Corpus.open(run.path / "data" / "dev")
    rows = (corpus[i] for i in range(min(count, len(corpus))))
    return grouped(
        Pair(run.source.decode(s), (run.target.decode(t),), i) for i, (s, t) in enumerate(rows, 1)
    )


def _average(run: Run, trainer: Trainer, validate: Any, reporter: Reporter, parts: Parts) -> None:
    """Weights averaged over the last checkpoints become the best, if dev agrees."""
    count = trainer.c.average
    if not count or validate is None:
        return

    with storage.disk_faults_told(run.path):
        weights = average_checkpoints(run, trainer)
    model = run.new_model(parts)
    set_weights(model, weights, "average")
    scores = validate(model.to(trainer.device).eval())

    with storage.disk_faults_told(run.path):
        run.log("average", step=trainer.progress.step, **scores)
        if not trainer.better(scores):
            return
        save_average(run, weights)
    loss = scores["loss"]
    reporter.say(f"the average of the last {count} checkpoints is better: dev loss {loss:.4f}")


def _finish(run: Run, device: torch.device, parts: Parts) -> None:
    """The last two files: samples.txt and the card."""
    if (run.path / "data" / "dev").exists():
        samples = _samples(run, device, parts)
        with storage.disk_faults_told(run.path):
            storage.write_text(run.path / "samples.txt", samples)
    with storage.disk_faults_told(run.path):
        write_card(run)


def _samples(run: Run, device: torch.device, parts: Parts) -> str:
    """Some dev sentences, their references and the model's answers, one under the other."""
    pairs = _texts(run, 20)
    translator = load(run, device=str(device), parts=parts)
    results = translator.translate(pair.source for pair in pairs)

    blocks = []
    for pair, result in zip(pairs, results, strict=True):
        lines = [f"source     {pair.source}"]
        lines += [f"reference  {target}" for target in pair.targets]
        lines += [f"answer     {result.text}"]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM, so that a step is never torn; a second Ctrl-C stops at once."""
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        if (
            asked and number == signal.SIGINT
        ):  # SIGTERM may come twice: from the cluster, and from torchrun
            raise KeyboardInterrupt
        asked.append(number)

    ours = (
        (signal.SIGINT, signal.SIGTERM)
        if threading.current_thread() is threading.main_thread()
        else ()
    )
    before = {number: signal.signal(number, note) for number in ours}
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
            raise UserError(
                "train.tensorboard=on needs TensorBoard: pip install 'regard[tensorboard]'"
            ) from None
        return None
    return SummaryWriter(str(run.path / "tensorboard"))
