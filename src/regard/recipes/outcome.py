"""What came of a training: why it ended, the dev score, sample answers, the card."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard.data.corpus import Corpus
from regard.data.objectives import objective_of
from regard.data.pairs import Pair
from regard.data.splits import group_references
from regard.display import plain
from regard.errors import UserError, counted
from regard.files import disk_faults_told, write_text
from regard.files.reading import parse_json
from regard.inference.language import LanguageModel
from regard.inference.loading import load, load_translator
from regard.inference.masked import MaskedLanguageModel
from regard.models.parts import Parts
from regard.recipes.reporter import Reporter
from regard.runs.card import write_card
from regard.runs.run import SHORTER, Run
from regard.text.missing import BLANK
from regard.text.positions import word_positions
from regard.text.vocabulary import BOS, EOS, MASK
from regard.training.forecast import duration
from regard.training.trainer import DECAY, Trainer

SAMPLES = 20
"""Dev sentences whose answers are written to samples.txt."""
MOST_WRITTEN = 50
"""Tokens that a language model writes for a sample."""
PROMPT = 50
"""Characters that a sample gives a language model to begin with, about."""
LINE = 80
"""Characters of a text that a sample has filled in, or restored, at most."""
LONGEST = 100
"""Characters of a text that the terminal shows."""
WORTH = 0.003
"""What a third of the time has to add to the dev score, as a share of it, for more time to pay."""


LABELS = {
    "translate": ("source", "reference", "answer"),
    "causal": ("prompt", "text", "model"),
    "masked": ("masked", "text", "filled"),
    "denoise": ("noisy", "text", "restored"),
}
"""What the lines of a sample are called, by train.objective."""


@dataclass(frozen=True)
class Sample:
    """A dev sentence, its references and the model's answer."""

    source: str
    targets: tuple[str, ...]
    answer: str
    labels: tuple[str, str, str] = LABELS["translate"]

    @property
    def is_right(self) -> bool:
        """Whether the answer is one of the references."""
        return self.answer in self.targets

    def lines(self) -> list[str]:
        """Source, references and answer, one under the other."""
        source, reference, answer = (f"{label:9}" for label in self.labels)
        references = [f"{reference}  {plain(target)}" for target in self.targets]
        return [f"{source}  {plain(self.source)}", *references, f"{answer}  {plain(self.answer)}"]


def dev_pairs(run: Run, count: int) -> list[Pair]:
    """The first dev pairs, as text again."""
    corpus = Corpus.open(run.path / "data" / "dev")
    return group_references(pair_of(run, corpus, row) for row in range(min(count, len(corpus))))


def dev_texts(run: Run, count: int) -> list[str]:
    """The first dev texts of a language model; of longer ones, the first part."""
    corpus = Corpus.open(run.path / "data" / "dev")
    texts: list[str] = []
    for row in range(len(corpus)):
        ids = corpus.row(row)[1]
        if ids[0] == BOS and len(texts) < count:
            texts.append(run.source.decode(ids))
    return texts


def pair_of(run: Run, corpus: Corpus, row: int) -> Pair:
    """A pair of an encoded corpus, as text again."""
    source, target, *positions = corpus.row(row)
    words: list[int] = []
    if positions:
        words = word_positions(run.source, source[:-1].tolist(), positions[0].tolist())
    targets = (run.target.decode(target),)
    return Pair(run.source.decode(source), targets, row + 1, tuple(words))


def finish(
    run: Run, trainer: Trainer, parts: Parts, reporter: Reporter, *, had_ended: bool
) -> None:
    """Write the last two files, samples.txt and the card, and say what came of the training.

    had_ended: whether there was nothing left to train.
    """
    samples = _samples(run, trainer.device, parts)
    with disk_faults_told(run.path):
        if samples:
            blocks = ["\n".join(sample.lines()) for sample in samples]
            write_text(run.path / "samples.txt", "\n\n".join(blocks) + "\n")
        write_card(run)

    if not had_ended:
        reporter.say(end_of_training(run, trainer))
    reporter.say(_dev_score(run))
    advice = advice_about_time(run, trainer)
    if advice and not had_ended:
        reporter.say(advice)
    for line in _sample_words(run, samples):
        reporter.say(line)


def _samples(run: Run, device: torch.device, parts: Parts) -> list[Sample]:
    """Answers to some dev sentences; none if there is no dev data."""
    if not (run.path / "data" / "dev").exists():
        return []
    if run.config.train.objective != "translate":
        return _text_samples(run, device, parts)
    pairs = dev_pairs(run, SAMPLES)
    translator = load_translator(run, device=str(device), parts=parts)
    results = translator.translate(pair.located for pair in pairs)
    return [
        Sample(pair.source, tuple(pair.targets), result.text)
        for pair, result in zip(pairs, results, strict=True)
    ]


def _text_samples(run: Run, device: torch.device, parts: Parts) -> list[Sample]:
    """What a language model makes of some dev texts: it goes on, fills in, or restores."""
    texts = dev_texts(run, SAMPLES)
    model: Any = load(run, device=str(device), parts=parts)
    if isinstance(model, LanguageModel):
        prompts = [_half(text) for text in texts]
        answers = [made.text for made in model.generate(prompts, tokens=MOST_WRITTEN)]
    elif isinstance(model, MaskedLanguageModel):
        texts = [_beginning(text) for text in texts]
        prompts = [_masked(text, run.source.kind) for text in texts]
        answers = [model.fill(prompt).text for prompt in prompts]
    else:
        texts = [_beginning(text) for text in texts]
        prompts = [noisy(run, text, seed) for seed, text in enumerate(texts)]
        answers = [result.text for result in model.translate(prompts)]
    labels = LABELS[run.config.train.objective]
    rows = zip(prompts, texts, answers, strict=True)
    return [Sample(prompt, (text,), answer, labels) for prompt, text, answer in rows]


def _half(text: str) -> str:
    """The first half of a text, or of a long one the beginning, up to the end of a word."""
    place = min(len(text) // 2, PROMPT)
    end = text.find(" ", place)
    return text[:end] if 0 < end <= place + PROMPT else text[: max(1, place)]


def _beginning(text: str) -> str:
    """A text, or of a long one the first words: as much as the terminal shows."""
    if len(text) <= LINE:
        return text
    end = text.rfind(" ", 1, LINE)
    return text[:end] if end > 0 else text[:LINE]


def _masked(text: str, kind: str) -> str:
    """A text with <mask> in the place of a word in its middle, or of one character."""
    if kind in ("characters", "bytes") or " " not in text:
        place = len(text) // 2
        return f"{text[:place]}{BLANK}{text[place + 1 :]}"
    words = text.split(" ")
    words[len(words) // 2] = BLANK
    return " ".join(words)


def noisy(run: Run, text: str, seed: int) -> str:
    """A text as a denoising model reads it: <mask> in the place of each span that is missing."""
    ids = np.array([BOS, *run.source.encode(text), EOS])
    row, *_ = objective_of(run.config.train, run.source).row((ids[:0], ids), seed)
    pieces = np.split(row, np.flatnonzero(row == MASK))  # of which decoding drops the mask
    texts = map(run.source.decode, pieces)
    if run.source.kind in ("characters", "bytes"):
        return BLANK.join(texts)
    gap = f" {BLANK} " if run.source.kind == "words" else f" {BLANK}"
    return gap.join(texts).strip(" ")


def end_of_training(run: Run, trainer: Trainer) -> str:
    """Why the training ended, in one line."""
    progress = trainer.progress
    config = trainer.config
    if progress.step >= trainer.steps:
        return _amount(run, trainer)

    stopped = f"Stopped at step {progress.step:,} of {trainer.steps:,}"
    if 0 < config.patience <= progress.waited:
        evaluations = counted(progress.waited, "evaluation")
        return f"{stopped}: the dev {config.metric} did not improve in {evaluations}."

    words = f"{stopped}: the time limit is reached (train.minutes={config.minutes:g})"
    if progress.step < config.warmup:
        words += f", still in the warm-up (train.warmup={config.warmup})"
    return f"{words}. Add --resume train.minutes={2 * config.minutes:g} to continue."


def advice_about_time(run: Run, trainer: Trainer) -> str:
    """Whether more time would have paid, by the dev curve before the learning rate fell.

    Empty for other schedules than wsd, and where dev was hardly looked at.
    """
    config = trainer.config
    if config.schedule != "wsd" or config.metric == "step":
        return ""
    sign = -1 if config.metric == "loss" else 1
    values = [
        sign * look[config.metric]
        for look in run.looks()
        if look["kind"] == "dev" and look["step"] <= config.decay_start and config.metric in look
    ]
    count = len(values) // 3
    if count == 0:
        return ""

    name = config.metric.removeprefix("custom:").replace("_", " ")
    before = max(values[:-count])
    after = max(values[-count:])
    if after - before <= WORTH * abs(before) or trainer.progress.given_up:
        return f"More time would hardly help: dev {name} had almost stopped improving."
    longer = f"train.steps={2 * trainer.steps}"
    if _seconds_at_decay(run) >= (1 - DECAY) * 60 * config.minutes > 0:
        longer = f"train.minutes={2 * config.minutes:g}"
    return (
        f"More time would probably help: dev {name} still went from {sign * before:.3f} to "
        f"{sign * after:.3f} before the learning rate fell. To continue, add --resume {longer}."
    )


def _seconds_at_decay(run: Run) -> float:
    """How long training had taken when the learning rate began to fall; 0: nobody knows."""
    try:
        files = run.checkpoint(f"step-{run.config.train.decay_start:08d}")
        progress = parse_json(files["progress.json"])
    except (OSError, UserError, KeyError, ValueError):
        return 0.0
    seconds = progress.get("seconds") if isinstance(progress, dict) else None
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def _amount(run: Run, trainer: Trainer) -> str:
    """How much was trained, in one line."""
    progress = trainer.progress
    steps = counted(progress.step, "step")
    time = duration(progress.seconds)
    epochs = trainer.epoch().get("epoch")
    if epochs is None or "pairs" not in run.manifest:
        return f"Trained for {steps} in {time}."

    speed = epochs * run.manifest["pairs"] / max(1e-9, progress.seconds)
    passes = f"{round(epochs, 2):,g} epoch{'' if epochs == 1 else 's'}"
    if progress.given_up:
        beyond = counted(progress.given_up, "step")
        return f"Trained for {steps} ({passes}), and {beyond} beyond the best, in {time}."
    return f"Trained for {steps} ({passes}) in {time}: {speed:,.0f} examples/s."


def _dev_score(run: Run) -> str:
    """The dev score of the best checkpoint, in one line."""
    best = run.best_look()
    if best is None:
        return "There is no dev data, so the model was not scored."

    if run.best == SHORTER:
        return (
            f"The longer training was not better: the best weights are those of step "
            f"{best['step']:,} of the shorter one, {_scores_text(best)}."
        )
    return f"Best dev score: {_scores_text(best)} (step {best['step']:,})."


def _scores_text(best: Mapping[str, Any]) -> str:
    """The dev scores of a log entry."""
    perplexity = math.exp(min(best["loss"], 100.0))
    scores = [
        f"loss {best['loss']:.3f}",
        f"perplexity {perplexity:.4g}",
    ]
    if "accuracy" in best:
        scores.append(f"token accuracy {best['accuracy']:.1%}")
    if "exact_match" in best:
        scores.append(f"exact match {best['exact_match']:.1%}")
    if "bleu" in best:
        scores.append(f"BLEU {best['bleu']:.1f}")
    return ", ".join(scores)


def _sample_words(run: Run, samples: list[Sample]) -> list[str]:
    """One sample, and how many answers in samples.txt are right."""
    if not samples:
        return []
    short = [sample for sample in samples if len(sample.source) <= LONGEST]
    sample = (short or samples)[0]
    place = run.path / "samples.txt"
    example = ["A dev example:", *(f"  {_cut(line)}" for line in sample.lines())]
    if run.config.train.objective != "translate":
        return [*example, f"More are in {place}."]
    right = sum(sample.is_right for sample in samples)
    count = counted(len(samples), "sample answer")
    match = "matches" if len(samples) == 1 else "match"
    return [
        *example,
        f"{right} of {count} {match} the reference; see {place}",
    ]


def _cut(line: str) -> str:
    """The line, not too long."""
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
