"""The model card of a run: its README.md."""

from pathlib import Path

from regard.display import markdown, shell_word
from regard.errors import counted
from regard.files import write_text
from regard.runs.run import SHORTER, Run

KINDS = {
    "causal": "A language model that writes texts",
    "masked": "A language model that fills gaps in texts and gives them vectors",
    "denoise": "A model that restores texts, to start a translator from",
}
"""What a run is, by train.objective."""


def examples(run: Run) -> list[str]:
    """How to use a run, as command lines without `regard`."""
    folder = shell_word(run.path)
    text = '"a word" --features "TAGS"' if run.source.tags else '"a text"'
    uses = {
        "translate": [f"translate {folder} {text}"],
        "causal": [f'generate {folder} "the beginning of a text" --sample'],
        "masked": [f'fill {folder} "a <mask> text"', f"embed {folder} < texts > vectors.npy"],
        "denoise": [f"train pairs.tsv --from {folder}", f"embed {folder} < texts > vectors.npy"],
    }
    return [*uses[run.config.train.objective], f"evaluate {folder}"]


def write_card(run: Run, note: str = "") -> None:
    """Write README.md: data, settings, scores, how to use it. note: what else there is to say."""
    config = run.config
    facts = run.manifest
    data = Path(config.data.path).name or "pairs from Python"
    model = ", ".join(
        f"{name} {markdown(getattr(config.model, name))}"
        for name in ("kind", "width", "encoder_layers", "decoder_layers")
        if hasattr(config.model, name)
    )
    is_translator = config.train.objective == "translate"
    kind = "A text-to-text model" if is_translator else KINDS[config.train.objective]
    holds = "pair" if is_translator else "text"
    commands = "\n".join(f"regard {command}" for command in examples(run))
    unseen = "sources" if is_translator else "texts"
    lines = [
        f"# {markdown(run.path.name)}\n",
        f"{kind} trained with Regard {markdown(facts.get('regard', '?'))} "
        f"(torch {markdown(facts.get('torch', '?'))}).\n",
        "| | |\n|---|---|",
        f"| data | {markdown(data)}: {counted(facts.get('pairs', 0), holds)}, "
        f"{counted(facts.get('duplicates', 0), 'duplicate')}, "
        f"{counted(facts.get('leaks', 0), 'dev source' if is_translator else 'dev text')} also in "
        f"the training data |",
        f"| tokens | {_tokens(run)} |",
        f"| model | {model}; {facts.get('parameters', 0):,} parameters |",
        f"| best on dev | {_best_scores(run) or 'not evaluated'} (checkpoint "
        f"{markdown(run.best)}, chosen by {markdown(config.train.metric)}) |",
        f"| search | beam {config.search.width}, length penalty {config.search.length_penalty} |\n",
        f"To use it, run this where it was trained (or give the path of this folder):\n\n"
        f"```\n{commands}\n```\n",
        f"It has learned only from its training data; `samples.txt` shows what it makes of "
        f"{unseen} it has not seen.",
    ]
    if note:
        lines.append(f"\n{note}")
    write_text(run.path / "README.md", "\n".join(lines) + "\n")


def _tokens(run: Run) -> str:
    """What texts are split into, how many different tokens there are, and what comes before."""
    text = run.config.text
    parts = [markdown(text.tokenizer), f"{run.source.size:,} source", f"{run.target.size:,} target"]
    if text.lowercase:
        parts.append("lower-cased")
    if text.spaced_punctuation:
        parts.append("punctuation separated by spaces")
    if text.jamo:
        parts.append("Hangul syllables of the source split into letters")
    return ", ".join(parts)


def _best_scores(run: Run) -> str:
    """The scores on dev of the best checkpoint; empty if it was not evaluated."""
    scores = {}
    for record in run.looks():
        if "tokens" in record:
            is_average = record["kind"] == "average"
            checkpoint = "averaged" if is_average else f"step-{record['step']:08d}"
            scores[checkpoint] = record  # the last one, if it was judged several times

    best = scores.get(run.best, {})
    if run.best == SHORTER:
        best = run.best_look() or {}
    metrics = ("loss", "accuracy", "exact_match", "bleu", run.config.train.metric)
    names = [name for name in dict.fromkeys(metrics) if name in best]
    return ", ".join(f"{markdown(name)} {best[name]:.4g}" for name in names)
