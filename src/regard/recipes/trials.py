"""Plans that are close: each is trained for a short time, and the best one on dev is chosen."""

import gc
import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.config import Config, ModelConfig, Settings, build, merge
from regard.data.corpus import Corpus
from regard.data.splits import Splits
from regard.errors import Failed, Interrupted, UserError, counted
from regard.files import remove
from regard.inference.translator import Translator
from regard.models import Learner, Seq2Seq
from regard.models.parts import Parts
from regard.nn.devices import on_device, pick_device, state_kept
from regard.recipes.budget import MINUTES, has_budget
from regard.recipes.outcome import dev_pairs
from regard.recipes.plan import Plan
from regard.recipes.reporter import Reporter
from regard.runs.run import Run
from regard.scoring import exact_match
from regard.text.vocabulary import UNK
from regard.training.forecast import duration, forecast
from regard.training.loss import mean_loss
from regard.training.parallel import World
from regard.training.start import make_trainer
from regard.training.trainer import Progress, Trainer, Trouble

SHARE = 0.05
"""How much of train.minutes each trial takes."""
LEAST_SECONDS = 20.0
"""How long it takes at least."""
LEAST_MINUTES = 3.0
"""Nothing is tried for a training that is shorter: the plan that starts faster would win."""
MARGIN = 0.03
"""How many fewer nats, as a share, another plan than the first choice must have on dev."""
ANSWERS = 500
"""Dev answers that are looked at, where answers are right or wrong as a whole."""
MORE_RIGHT = 0.01
"""How many more of them, as a share, must be right by one plan to be clearly better …"""
FEW_ANSWERS = 3
"""… and how many more at least."""
LEAST_STEPS = 1000
"""Steps of a trial, if there is time for so many: a plan that learns fast need not be better."""
UNKNOWN = 15.0
"""Nats of a token <unk> of a dev target, which no model can write.

About a word of five letters, each of which might as well be any of twenty.
"""
FAILURES = (UserError, Trouble, MemoryError, RuntimeError)
"""What ends one trial and not all of them; memory of a GPU that runs out is a RuntimeError."""

Make = Callable[[Config, Path], Run]
"""Learns tokenizers and encodes the pairs for these settings, in a folder: a run to train."""


@dataclass(frozen=True)
class Trial:
    """What came of training one plan for a short time."""

    name: str
    tokens: str
    model: str
    seconds: float = 0.0
    steps: int = 0
    pairs: int = 0  # of dev
    nats: float = math.nan  # per dev pair: minus the logarithm of its likelihood; nan: it failed
    right: float = math.nan  # share of the dev answers; nan: they were not looked at
    answers: int = 0  # that were looked at
    problem: str = ""  # why it failed
    chosen: bool = False

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name}: the trial failed: {self.problem}"
        right = "" if math.isnan(self.right) else f"{self.right:.1%} of dev answers right, "
        return (
            f"{self.name}: {right}{self.nats:.2f} nats per dev pair after "
            f"{duration(self.seconds)} ({counted(self.steps, 'step')})"
        )

    def facts(self) -> dict[str, Any]:
        """For the manifest of the run."""
        facts: dict[str, Any] = {
            "tokenizer": self.tokens,
            "model": self.model,
            "seconds": round(self.seconds, 3),
            "steps": self.steps,
            "dev_pairs": self.pairs,
            "chosen": self.chosen,
        }
        if self.problem:
            return {**facts, "problem": self.problem}
        if not math.isnan(self.right):
            facts["right"] = self.right
        return {**facts, "nats_per_dev_pair": self.nats}


def most_trials(given: Settings, splits: Splits) -> int:
    """How many plans may be tried; 1: none, the first choice is taken."""
    train = given.get("train", {})
    is_open = has_budget(train) and not train.get("start_from")
    has_dev = splits.dev is not None and next(iter(splits.dev), None) is not None
    config = build({"train": train}).train
    minutes = config.minutes if "minutes" in train else MINUTES
    if not is_open or not has_dev or minutes < LEAST_MINUTES:
        return 1
    return max(1, config.trials)


def trial_seconds(minutes: float) -> float:
    """How long each plan is tried for a training of so many minutes."""
    return max(LEAST_SECONDS, SHARE * 60 * minutes)


def try_out(
    plans: Sequence[Plan],
    given: Settings,
    make: Make,
    folder: Path,
    parts: Parts,
    reporter: Reporter,
) -> tuple[Plan, list[Trial]]:
    """Train each plan for a short time; the best one on dev, and what came of each.

    folder: where that is done. It is removed at the end.
    """
    configs = [build(merge(plan.settings, given)) for plan in plans]
    seconds = trial_seconds(configs[0].train.minutes)
    names = "; ".join(plan.name for plan in plans)
    is_about_kind = plans[0].kind != plans[1].kind
    why = plans[1].kind.evidence if is_about_kind else "either may suit the data better"
    reporter.say(
        f"trying {counted(len(plans), 'plan')} for {duration(seconds)} each before training "
        f"({why}): {names}"
    )

    trials = []
    by_answers = all(plan.kind.is_spelling for plan in plans)  # each is right or wrong as a whole
    with _interruption_told():
        try:
            for number, (plan, config) in enumerate(zip(plans, configs, strict=True), 1):
                place = folder / str(number)
                tried = small(config, seconds)
                trial = _try(plan, tried, make, place, parts, reporter, by_answers=by_answers)
                reporter.say(str(trial))
                trials.append(trial)
        finally:
            remove(folder)

    best, why = _best(trials)
    reporter.say(f"training with {plans[best].name}: {why}")
    trials[best] = replace(trials[best], chosen=True)
    return plans[best], trials


def small(config: Config, seconds: float) -> Config:
    """The settings of a trial: the same training in so many seconds, warm-up and decay included."""
    train = config.train
    share = seconds / (60 * train.minutes)
    return replace(
        config,
        train=replace(
            train,
            minutes=seconds / 60,
            steps=max(min(LEAST_STEPS, train.steps), round(share * train.steps)),
            warmup=max(1, round(share * train.warmup)) if train.warmup else 0,
            ema=max(0.0, 1 - (1 - train.ema) / share),
            decay_start=0,
            decay_end=0,
            path="plain" if train.path == "compiled" else train.path,  # it would only compile
        ),
    )


def _try(
    plan: Plan,
    config: Config,
    make: Make,
    folder: Path,
    parts: Parts,
    reporter: Reporter,
    *,
    by_answers: bool,
) -> Trial:
    """One trial. Afterwards random numbers and threads are as they were before.

    by_answers: whether dev answers are looked at.
    """
    device = pick_device(config.train.device)
    trial = Trial(plan.name, plan.tokens, _model_text(config.model))
    try:
        with on_device(device), state_kept(device):
            trained = _trained(make(config, folder), device, parts, reporter)
            trial = _judged(trial, trained)
            if by_answers:
                right, answers = _right(trained)
                trial = replace(trial, right=right, answers=answers)
    except FAILURES as error:
        reason = "the loss is NaN or infinite" if isinstance(error, Trouble) else str(error)
        lines = reason.strip().splitlines()
        trial = replace(trial, problem=lines[0] if lines else type(error).__name__)
    finally:
        gc.collect()  # a trainer is part of a cycle, and holds its memory until then
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return trial


@dataclass(frozen=True)
class _Trained:
    """A run whose trainer has come to its end."""

    run: Run
    trainer: Trainer


def _trained(run: Run, device: torch.device, parts: Parts, reporter: Reporter) -> _Trained:
    """Train a run to its end. Nothing is saved, and dev is not looked at."""
    config = run.config.train
    if config.threads:
        torch.set_num_threads(config.threads)
    trainer = make_trainer(run, parts, World(device=device))
    forecast(trainer, _say_nothing)  # batches that do not fit into memory are split
    with reporter.progress("% of this trial") as tell:

        def tick(progress: Progress) -> None:
            in_steps = progress.step / trainer.steps
            in_time = progress.seconds / (60 * config.minutes) if config.minutes else 0.0
            tell(max(in_steps, in_time))

        trainer.fit(
            validate=None,
            save=lambda: None,
            log=lambda kind, **values: None,
            tick=tick,
            stop=lambda: False,
        )
    return _Trained(run, trainer)


def _say_nothing(text: str) -> None:
    pass


def _judged(trial: Trial, trained: _Trained) -> Trial:
    """The trial with what the trained model makes of dev."""
    run = trained.run
    trainer = trained.trainer
    dev = Corpus.open(run.path / "data" / "dev")
    nats: float = trainer.averaged(
        lambda: total_nats(trainer.model, dev, run.config.data.batch_tokens, trainer.device)
    )
    if not math.isfinite(nats):
        raise Failed("the loss on dev is NaN or infinite")
    return replace(
        trial,
        seconds=trainer.progress.seconds,
        steps=trainer.progress.step,
        pairs=len(dev),
        nats=nats / len(dev),
    )


def _right(trained: _Trained) -> tuple[float, int]:
    """The share of the first dev answers, by greedy search, that are right; and how many."""
    run = trained.run
    pairs = dev_pairs(run, ANSWERS)
    greedy = replace(run.config.search, width=1)

    def answers() -> list[str]:
        model = trained.trainer.model
        assert isinstance(model, Seq2Seq)
        translator = Translator(model, run.source, run.target, greedy)
        return [result.text for result in translator.translate(pair.located for pair in pairs)]

    texts = trained.trainer.averaged(answers)
    return exact_match(texts, [pair.targets for pair in pairs]), len(pairs)


def total_nats(model: Learner, dev: Corpus, batch_tokens: int, device: torch.device) -> float:
    """The negative log-likelihood of all dev targets, without label smoothing.

    Unlike a mean per token it can be compared between tokenizers, once <unk> has a price: else the
    one that knows fewer words would win.
    """
    scores = mean_loss(model, dev, batch_tokens, device)
    unknown = sum(int((dev.row(row)[1] == UNK).sum()) for row in range(len(dev)))
    return scores["loss"] * scores["tokens"] + UNKNOWN * unknown


def _best(trials: Sequence[Trial]) -> tuple[int, str]:
    """The number of the best trial, counted from 0, and why it is the best."""
    judged = [number for number, trial in enumerate(trials) if not trial.problem]
    if not judged:
        return 0, "all trials failed, and it was the first choice"
    if len(judged) == 1:
        return judged[0], "no other trial came to its end"
    counts = {trials[number].pairs for number in judged}
    if len(counts) > 1:
        numbers = " and ".join(f"{count:,}" for count in sorted(counts))
        return judged[0], (
            f"{numbers} dev pairs cannot be compared (data.max_length leaves out different ones), "
            f"so the first plan is taken"
        )
    first = judged[0]
    rest = [number for number in judged if not _is_more_right(trials[first], trials[number])]
    most_right = max(rest, key=lambda number: trials[number].right)
    if _is_more_right(trials[most_right], trials[first]):
        return most_right, "more of its dev answers are right"

    best = min(rest, key=lambda number: trials[number].nats)
    if trials[best].nats < (1 - MARGIN) * trials[first].nats:
        return best, "it is better on dev"
    return first, "no other plan is clearly better on dev"


def _is_more_right(one: Trial, other: Trial) -> bool:
    """Whether clearly more answers of one trial are right; never if they were not looked at."""
    if not one.answers or not other.answers:
        return False
    margin = max(MORE_RIGHT, FEW_ANSWERS / min(one.answers, other.answers))
    return one.right > other.right + margin


def _model_text(model: ModelConfig) -> str:
    """The model of a trial, for a person."""
    names = ("kind", "width", "encoder_layers", "decoder_layers")
    return ", ".join(f"{name} {getattr(model, name)}" for name in names if hasattr(model, name))


@contextmanager
def _interruption_told() -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM end everything at once, with what to do next."""
    came = signal.SIGINT

    def end(number: int, frame: object) -> None:
        nonlocal came
        came = signal.SIGTERM
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()  # others handle no signals
    before = signal.signal(signal.SIGTERM, end) if is_main else None
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            "stopped while plans were being tried; nothing is lost: the same command starts again",
            came,
        ) from None
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
