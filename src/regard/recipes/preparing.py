"""Data -> a run that is ready to train: settings decided, tokenizers learned, pairs encoded."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from regard import config as settings
from regard.config import Config, DataConfig, Settings, TransformerConfig
from regard.data.corpus import Corpus, encode
from regard.data.documents import encode_documents
from regard.data.doubts import LOOKED_AT, find_doubts
from regard.data.held_out import write_held_out
from regard.data.items import Items
from regard.data.kept import Kept
from regard.data.pairs import Pair, Skipped
from regard.data.readers.pipes import is_open_pipe
from regard.data.splits import (
    Keep,
    Leaks,
    Overlap,
    Splits,
    Stream,
    from_iterable,
    open_data,
    open_split,
)
from regard.data.tasks import TASKS
from regard.errors import UserError, counted
from regard.models import build_model
from regard.models.parts import Parts
from regard.nn.devices import cpu_has_bf16, pick_device
from regard.recipes import planning
from regard.recipes.reporter import Reporter
from regard.recipes.trials import Trial, most_trials, try_out
from regard.runs.claim import Claim
from regard.runs.run import Run
from regard.text.normaliser import Normaliser
from regard.text.sentences import pieces
from regard.text.tags import split_tags
from regard.text.tokenizer import Tokenizer, train_tokenizer, with_tags
from regard.training.paths import choose_path

FILES = ("path", "target_file", "dev_file", "test_file")
"""The settings of `data` that name files."""
TOKENIZER_SAMPLE = 200_000
"""Pairs that BPE and Unigram are learned from, at most, drawn evenly over the training data.

docs/log.md, 2026-11-16: held-out text needs 0.17 % more tokens than with a tokenizer learned from
all of a million pairs, which takes four times as long.
"""
SENTENCES_SAMPLE = 10_000
"""Pairs that are looked at for how many sentences their sources have."""
MOST_TAGS = 10_000
"""Different tags that a column may have; more of them are no tags but texts."""


def open_splits(data: DataConfig, keep: Keep | None = None) -> Splits:
    """Open the data that a config names."""
    return open_data(data.path, options=data.options, keep=keep, **_files(data), **_deal(data))


def open_split_of(data: DataConfig, split: str) -> Stream:
    """Open one split of the data that a config names."""
    return open_split(data.path, split, options=data.options, **_files(data), **_deal(data))


def seen_in_training(
    data: DataConfig, pairs: Iterable[Pair], splits: Splits | None = None
) -> int | None:
    """Count the sources of these pairs that are in the training data of a config.

    None: the training data cannot be read (any more). `splits`: that data, if it is open already.
    """
    if splits is None and data.path:  # no path: trained on pairs given from Python
        try:
            splits = open_splits(data)
        except UserError:
            return None
    if splits is None:
        return None
    return splits.seen_in_training(pair.source for pair in pairs)


def _files(data: DataConfig) -> dict[str, str]:
    """What a config says about the files of its data."""
    return {
        "source": data.source,
        "target": data.target,
        "header": data.header,
        "encoding": data.encoding,
        "positions": data.positions,
        "features": data.features,
        "documents": data.documents,
        "target_file": data.target_file,
        "dev_file": data.dev_file,
        "test_file": data.test_file,
    }


def _deal(data: DataConfig) -> dict[str, Any]:
    """How pairs are dealt out: 0 in the config is None for open_data."""
    return {
        "limit": data.limit or None,
        "order": data.order,
        "group": data.group,
        "dev": data.dev or None,
        "test": data.test or None,
        "seed": data.seed,
    }


def prepare(
    claim: Claim,
    given: Settings,
    pairs: Items | None,
    parts: Parts,
    *,
    plan_settings: bool,
    try_plans: bool = False,
    reporter: Reporter,
) -> Run:
    """Make a run that is ready to train.

    Reads the data, chooses the settings that were left open, learns tokenizers and encodes the
    pairs, all beside the run's place; then the run appears in one rename. try_plans: where the data
    leaves it open which plan is better, it is found out by training.
    """
    start_from = given.get("train", {}).get("start_from")
    base = Run.open(start_from) if start_from else None
    if base is not None:
        given = _inherit(given, base)
        _check_tags(given, base)
        base.best_checkpoint()  # that there is none is told before anything is read

    data = settings.build({name: given.get(name, {}) for name in ("data", "train")}).data
    splits = _read_once(data, pairs, claim, reporter)
    for line in splits.reading:
        reporter.say(line)
    for line in questionable(data, splits):
        reporter.warn(line)
    given = _without_pipes(_with_columns(given, splits))
    given = _with_documents(given, splits)
    tried: list[Trial] = []
    if plan_settings:
        most = most_trials(given, splits) if try_plans else 1
        given, tried = _plan(given, splits, most, claim.aside / "trials", parts, reporter)

    made = _make(settings.build(given), splits, base, claim.aside, parts, reporter)
    if base is not None:
        _keep_start(base, made, claim.aside, parts, reporter)
    encoded = made.encoded
    for line in [*splits.skipped.lines(), *encoded.too_long.lines(), *splits.notes]:
        reporter.warn(line)
    leaks = encoded.observed.overlap.leaks()
    if splits.name not in TASKS:  # a task is made to have what it has
        _warn_of_leaks(leaks, splits.holds, reporter)
    tokens = _tokens_text(made.source, made.target)
    examples = _examples_text(splits, encoded.corpus)
    reporter.say(f"{examples}, {tokens}, {made.parameters:,} parameters")

    several = _share_of_several_sentences(splits.train, made.source, made.config.data.seed)
    facts = _facts(made.config, splits, encoded, leaks, several, base)
    facts["parameters"] = made.parameters
    if tried:
        facts["trials"] = [trial.facts() for trial in tried]
    return Run.create(claim, made.config, made.source, made.target, facts)


def _examples_text(splits: Splits, corpus: Corpus) -> str:
    """How much there is to train on, for a person."""
    rows = len(corpus)
    if splits.holds != "text":
        return counted(rows, "training pair")
    texts = splits.train.count()
    cut = f" in {counted(rows, 'row')}" if rows != texts else ""
    return f"{counted(texts, 'training text')}{cut}"


@dataclass(frozen=True)
class _Made:
    """What a training needs: settled settings, tokenizers and encoded pairs."""

    config: Config
    source: Tokenizer
    target: Tokenizer
    encoded: "_Encoded"
    parameters: int


def _make(
    config: Config,
    splits: Splits,
    base: Run | None,
    folder: Path,
    parts: Parts,
    reporter: Reporter,
) -> _Made:
    """Learn tokenizers, encode the pairs into folder/data, and settle what depends on them."""
    config = _decide_by_machine(config)
    if base is None:
        source, target = learn_tokenizers(config, splits)
    else:
        source = base.source
        target = base.target
    encoded = _encode(config, splits, source, target, folder / "data", reporter)

    model = build_model(config.model, source.size, target.size, parts, config.train.objective)
    parameters = sum(weight.numel() for weight in model.parameters())
    _check_learned(config, encoded.corpus)
    config = _decide_by_data(config, encoded.corpus, parameters)
    return _Made(config, source, target, encoded, parameters)


# settings


def _inherit(given: Settings, base: Run) -> Settings:
    """Take over the model and the tokens of the run that fine-tuning starts from.

    With others its weights would mean nothing. Only dropout may change.
    """
    inherited = settings.to_settings(base.config)
    for section in ("model", "text"):
        merged = settings.merge(inherited, {section: given.get(section, {})})
        wanted = settings.to_settings(settings.build(merged))[section]
        for name, value in wanted.items():
            if value != inherited[section].get(name) and not name.endswith("dropout"):
                raise UserError(
                    f"{section}.{name} cannot change when fine-tuning, since the weights of "
                    f"{base.path} would not fit; leave it out"
                )
    return settings.merge({"model": inherited["model"], "text": inherited["text"]}, given)


def _check_tags(given: Settings, base: Run) -> None:
    """Refuse tags that the run which fine-tuning starts from does not know."""
    if given["data"].get("features") and not base.source.tags:
        raise UserError(
            f"data.features cannot be used when fine-tuning {base.path}, which was trained without "
            f"it; leave it out, or train a new run"
        )


def _keep_start(base: Run, made: "_Made", folder: Path, parts: Parts, reporter: Reporter) -> None:
    """Write the weights that fine-tuning starts from into the folder of the new run.

    Where it learns something else than the old one, those that both models have.
    """
    config = made.config
    objective = config.train.objective
    if objective == base.config.train.objective:
        base.keep_start(folder)
        return

    with torch.random.fork_rng([]):
        torch.manual_seed(config.train.seed)
        sizes = (made.source.size, made.target.size)
        model = build_model(config.model, *sizes, parts, objective)
    share = base.hand_on(model, folder)
    reporter.say(
        f"starting from {base.path} (train.objective={base.config.train.objective}): {share:.0%} "
        f"of the parameters are its own, the others are random"
    )


def _with_columns(given: Settings, splits: Splits) -> Settings:
    """Note the columns that were found in pairs from Python, to find them in other pairs later."""
    source, target = splits.columns
    if not source:
        return given
    return settings.merge(given, {"data": {"source": source, "target": target}})


def _with_documents(given: Settings, splits: Splits) -> Settings:
    """Note what the texts of a language model are, to find the same ones later."""
    if settings.build({"train": given.get("train", {})}).train.objective == "translate":
        return given
    return settings.merge(given, {"data": {"documents": splits.documents}})


def _without_pipes(given: Settings) -> Settings:
    """Forget files of which one was a pipe: nobody can read it again, and the run has its pairs."""
    data = given["data"]
    if not any(is_open_pipe(Path(str(data.get(name, "")))) for name in FILES):
        return given
    return settings.merge(given, {"data": dict.fromkeys(FILES, "")})


def _plan(
    given: Settings,
    splits: Splits,
    most: int,
    folder: Path,
    parts: Parts,
    reporter: Reporter,
) -> tuple[Settings, list[Trial]]:
    """Choose what was not given by looking at the data, and say why; also what was tried for it.

    most: how many plans are tried at most. folder: where that is done; it disappears.
    """

    def make(config: Config, place: Path) -> Run:
        made = _make(config, splits, None, place, parts, reporter)
        return Run(place, made.config, made.source, made.target, {})

    plans = planning.plans(splits, given, most=most)
    tried: list[Trial] = []
    chosen = plans[0]
    if len(plans) > 1:
        chosen, tried = try_out(plans, given, make, folder, parts, reporter)
    for choice in chosen.choices:
        reporter.say(str(choice))
    return settings.merge(chosen.settings, given), tried


def _decide_by_machine(config: Config) -> Config:
    """Settle what depends on the machine, so that config.toml says what was done."""
    device = pick_device(config.train.device)
    precision = config.train.precision
    if precision == "bf16" and device.type == "cpu" and not cpu_has_bf16():
        raise UserError(
            "train.precision=bf16: this CPU does not support bfloat16 in torch; use fp32"
        )
    if precision == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        precision = "bf16" if has_bf16 else "fp32"

    threads = config.train.threads or torch.get_num_threads()
    return replace(config, train=replace(config.train, precision=precision, threads=threads))


def _check_learned(config: Config, corpus: Corpus) -> None:
    """Refuse positions of the user's own that a table of learned ones does not have."""
    model = config.model
    if not isinstance(model, TransformerConfig) or model.position != "learned":
        return
    if corpus.last_position >= model.max_positions:
        raise UserError(
            f"data.positions has {corpus.last_position:,} (with <eos>), but there are "
            f"{model.max_positions:,} learned positions: raise model.max_positions"
        )


def _decide_by_data(config: Config, corpus: Corpus, parameters: int) -> Config:
    """Settle what depends on the encoded data: its digest, and the path that computes a step."""
    pair_tokens = float(corpus.source_lengths.mean() + corpus.target_lengths.mean())
    batch_pairs = config.data.batch_sentences or config.data.batch_tokens / pair_tokens * 2
    pairs = config.train.epochs * len(corpus) or config.train.steps * batch_pairs
    device = pick_device(config.train.device)
    path = choose_path(config, device, parameters, pairs * pair_tokens)
    return replace(
        config,
        train=replace(config.train, path=path),
        data=replace(config.data, digest=corpus.digest),
    )


# data


def questionable(data: DataConfig, splits: Splits) -> list[str]:
    """What looks wrong with the training pairs, a line each. Built-in tasks are never asked."""
    if data.path in TASKS or splits.holds == "text":
        return []
    return find_doubts(splits.train.sample(LOOKED_AT, data.seed))


def _read_once(data: DataConfig, pairs: Items | None, claim: Claim, reporter: Reporter) -> Splits:
    """Read the data to its end, and keep a cleaned copy beside where the run will be.

    Everything after this reads the copy. Of pairs from Python or from a pipe, which nobody else can
    read again, the run keeps dev and test as text.
    """
    nearby = next(parent for parent in claim.folder.resolve().parents if parent.is_dir())
    with reporter.progress("% of the data read") as tell:
        keep = partial(Kept, folder=nearby, tell=tell)
        if pairs is None:
            splits = open_splits(data, keep)
        else:
            splits = from_iterable(
                pairs,
                source=data.source,
                target=data.target,
                positions=data.positions,
                features=data.features,
                documents=data.documents,
                keep=keep,
                **_deal(data),
            )

        for stream in (splits.train, splits.dev):
            if stream is not None and isinstance(stream.read, Kept):
                stream.read.fill()

        piped = any(is_open_pipe(Path(getattr(data, name))) for name in FILES)
        if pairs is not None or piped:
            for name, stream in (("dev", splits.dev), ("test", splits.test)):
                if stream is not None:
                    write_held_out(claim.aside / "data", name, stream, data.features)

    # Training has no use for the others, and they hold memory.
    return replace(splits, test=None, long=None, drawn=None)


class _Observed:
    """What is noted of the training pairs while they are encoded."""

    def __init__(
        self,
        overlap: Overlap,
        tokenizer: Tokenizer,
        total: int,
        tell: Callable[[float], None],
    ) -> None:
        self.overlap = overlap
        self._text_of = tokenizer.text_of if tokenizer.tags else None
        self._normalise = tokenizer.normalise
        self.characters: set[str] = set()  # of the sources, normalised and without tags
        self._total = total
        self._tell = tell
        self._done = 0

    def __call__(self, pairs: list[Pair]) -> None:
        self.overlap.add(pairs)
        sources = [pair.source for pair in pairs]
        if self._text_of is not None:
            sources = list(map(self._text_of, sources))
        if not self._normalise.is_plain:  # else they are as they should be: readers see to it
            sources = [self._normalise(source) for source in sources]
        self.characters.update("".join(sources))
        self._done += len(pairs)
        self._tell(self._done / self._total)


@dataclass(frozen=True)
class _Encoded:
    """The training pairs as ids, and what came up while they were encoded."""

    corpus: Corpus
    too_long: Skipped  # training and dev pairs that were left out
    observed: _Observed


def _encode(
    config: Config,
    splits: Splits,
    source: Tokenizer,
    target: Tokenizer,
    folder: Path,
    reporter: Reporter,
) -> _Encoded:
    """Write training and dev pairs as ids into folder/train and folder/dev."""
    too_long = Skipped()
    data = config.data
    write: Callable[..., Corpus]
    if config.train.objective == "translate":
        write = partial(
            encode,
            source=source,
            target=target,
            max_length=data.max_length,
            skipped=too_long,
            positions=bool(data.positions),
        )
    else:
        is_causal = config.train.objective == "causal"
        write = partial(
            _encode_texts, tokenizer=source, max_length=data.max_length, is_causal=is_causal
        )

    name = splits.name
    with reporter.progress("% of the data encoded") as tell:
        overlap = Overlap(splits.dev or (), ())
        observed = _Observed(overlap, source, splits.train.count(), tell)
        corpus = write(splits.train, path=folder / "train", watch=observed, name=name)
        if splits.dev is not None:
            write(splits.dev, path=folder / "dev", name=data.dev_file or name)
    return _Encoded(corpus, too_long, observed)


def _encode_texts(
    pairs: Iterable[Pair],
    *,
    name: str,
    watch: Callable[[list[Pair]], None] | None = None,
    **how: Any,
) -> Corpus:
    """`encode_documents`, whose texts are never left out, so that no error need name the data."""
    return encode_documents(pairs, watch=watch, **how)


def _warn_of_leaks(leaks: Leaks, holds: str, reporter: Reporter) -> None:
    """Say how many dev sources, or texts, training has seen too, or nearly so."""
    source = "text" if holds == "text" else "source"
    differ = "differs" if leaks.near_dev == 1 else "differ"
    if leaks.dev:
        occur = "occurs" if leaks.dev == 1 else "occur"
        near = ""
        if leaks.near_dev:
            near = f" ({leaks.near_dev:,} more {differ} only in case or punctuation)"
        reporter.warn(
            f"{leaks.dev:,} of the dev {source}s also {occur} in the training data{near}: dev "
            f"scores will be too high"
        )
    elif leaks.near_dev:
        reporter.warn(
            f"{leaks.near_dev:,} of the dev {source}s {differ} from a training {source} only in "
            f"case or punctuation: dev scores may be too high"
        )


def _facts(
    config: Config,
    splits: Splits,
    encoded: _Encoded,
    leaks: Leaks,
    several_sentences: float,
    base: Run | None,
) -> dict[str, Any]:
    """What the manifest of a run tells about its data."""
    return {
        "pairs": len(encoded.corpus),
        "longest_source": _longest(encoded.corpus, config),
        "characters": _known_characters(encoded.observed, base),
        "several_sentences": several_sentences,
        "duplicates": leaks.duplicates,
        "leaks": leaks.dev,
        "skipped": len(splits.skipped) + len(encoded.too_long),
        "languages": {"source": config.data.source, "target": config.data.target},
    }


def _longest(corpus: Corpus, config: Config) -> int:
    """Tokens of the longest source, or of the longest text of a language model."""
    has_sources = config.train.objective == "translate"
    lengths = corpus.source_lengths if has_sources else corpus.target_lengths
    return int(lengths.max())


def _known_characters(observed: _Observed, base: Run | None) -> str:
    """The characters that the model has seen in sources, sorted; empty: not all are known."""
    before: str | None = ""
    if base is not None:
        before = base.manifest.get("characters")
    if before is None:
        return ""
    return "".join(sorted(observed.characters.union(before)))


def _share_of_several_sentences(train: Stream, source: Tokenizer, seed: int) -> float:
    """How many of the sources are more than one sentence, as a share of a sample of them."""
    sample = train.sample(SENTENCES_SAMPLE, seed)
    texts = [source.text_of(pair.source) for pair in sample]
    several = [len(pieces(text)) > 1 for text in texts]
    return sum(several) / max(1, len(several))


# tokenizers


def learn_tokenizers(config: Config, splits: Splits) -> tuple[Tokenizer, Tokenizer]:
    """Learn the tokenizers of source and target; one and the same if they share it.

    With data.features, that of the source also has the tags, and so has a shared vocabulary. A
    language model has one tokenizer; with text.share, it knows the targets of pairs too, so that
    translating can start from it.
    """
    text = config.text
    normalise = Normaliser(text.lowercase, text.spaced_punctuation)
    kind = text.tokenizer
    target_kind = kind if text.target_tokenizer == "same" else text.target_tokenizer
    if text.jamo and text.share:
        raise UserError(
            "text.jamo splits the syllables of the source only, so source and target cannot share "
            "a vocabulary: set text.share=false"
        )
    if text.dropout and {kind, target_kind} != {"bpe"}:
        raise UserError(
            f"text.dropout={text.dropout} works with BPE only: set text.tokenizer=bpe for both "
            f"sides, or text.dropout=0"
        )

    learn = partial(
        train_tokenizer,
        size=text.size,
        normalise=normalise,
        min_count=text.min_count,
        reserved=text.reserved,
    )
    features = config.data.features
    tags = _tags(splits.train, features) if features else []
    text_of: Callable[[str], str] = _text_of if features else str

    source_pairs = _to_learn_from(splits.train, kind, config.data.seed)
    if config.train.objective != "translate":
        texts = chain.from_iterable(
            (pair.source, *pair.targets) if text.share else (pair.source,) for pair in source_pairs
        )
        alone = learn(kind, texts)
        return alone, alone.target_side
    if text.share and kind == target_kind:
        texts = chain.from_iterable((text_of(pair.source), *pair.targets) for pair in source_pairs)
        shared = learn(kind, texts)
        if features:
            shared = with_tags(shared, tags)
        return shared, shared.target_side

    target_pairs = _to_learn_from(splits.train, target_kind, config.data.seed)
    sources = (text_of(pair.source) for pair in source_pairs)
    targets = chain.from_iterable(pair.targets for pair in target_pairs)
    source = learn(kind, sources, normalise=replace(normalise, jamo=text.jamo))
    if features:
        source = with_tags(source, tags)
    return source, learn(target_kind, targets)


def _text_of(source: str) -> str:
    """The text of a source, without its tags."""
    text, _ = split_tags(source)
    return text


def _tags(train: Stream, features: str) -> Counter[str]:
    """How often each tag occurs in the training sources; that there are none is an error."""
    counts: Counter[str] = Counter()
    for pair in train:
        _, tags = split_tags(pair.source)
        counts.update(tags)
        if len(counts) > MOST_TAGS:
            some = ", ".join(f"{tag:.30}" for tag in islice(counts, 3))
            raise UserError(
                f"data.features={features}: more than {MOST_TAGS:,} different tags ({some}, …); "
                f"choose a column of tags"
            )
    if not counts:
        raise UserError(
            f"data.features={features}: all cells of this column are empty; choose another column"
        )
    return counts


def _to_learn_from(train: Stream, kind: str, seed: int) -> Iterable[Pair]:
    """The pairs that a tokenizer is learned from.

    A sample for subwords; all pairs for words and characters, where a rare token must not be
    missed; none for bytes.
    """
    if kind == "bytes":
        return ()
    if kind in ("bpe", "unigram"):
        return train.sample(TOKENIZER_SAMPLE, seed)
    return train


def _tokens_text(source: Tokenizer, target: Tokenizer) -> str:
    """The sizes of the vocabularies, for a person."""
    if source.target_side is target:
        return f"vocabulary of {source.size:,} tokens"
    return f"vocabularies of {source.size:,} + {target.size:,} tokens"
