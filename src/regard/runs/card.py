"""The model card of a run: its README.md."""

from pathlib import Path

from regard.runs import storage
from regard.runs.run import Run


def write_card(run: Run) -> None:
    """Write README.md: data, settings, scores, how to use it."""
    config = run.config
    facts = run.manifest
    data = Path(config.data.path).name or "pairs from Python"
    model = ", ".join(
        f"{name} {getattr(config.model, name)}"
        for name in ("kind", "width", "encoder_layers", "decoder_layers")
    )
    lines = [
        f"# {run.path.name}\n",
        f"A text-to-text model trained with Regard {facts['regard']} (torch {facts['torch']}).\n",
        "| | |\n|---|---|",
        f"| data | {data}: {facts['pairs']:,} pairs, {facts['duplicates']:,} repeated, "
        f"{facts['leaks']:,} dev sources in training |",
        f"| tokens | {config.text.tokenizer}, {run.source.size:,} source, {run.target.size:,} "
        f"target |",
        f"| model | {model}; {facts['parameters']:,} parameters |",
        f"| best on dev | {_best_scores(run) or 'not evaluated'} (checkpoint {run.best}, chosen by "
        f"{config.train.metric}) |",
        f"| search | beam {config.search.width}, length penalty {config.search.length_penalty} |\n",
        f'Use it:\n\n```\nregard translate {run.path.name} "a text"\nregard evaluate '
        f"{run.path.name}\n```\n",
        "It knows what its training data knew and nothing else; `samples.txt` shows answers to "
        "unseen sources.",
    ]
    storage.write_text(run.path / "README.md", "\n".join(lines) + "\n")


def _best_scores(run: Run) -> str:
    """The scores on dev of the best checkpoint; empty if it was not evaluated."""
    scores = {}
    for record in run.records():
        if "tokens" in record:
            is_average = record["kind"] == "average"
            checkpoint = "averaged" if is_average else f"step-{record['step']:08d}"
            scores[checkpoint] = record  # the last one, if it was judged several times

    best = scores.get(run.best, {})
    names = [name for name in ("loss", "accuracy", "exact_match", "bleu") if name in best]
    return ", ".join(f"{name} {best[name]:.4g}" for name in names)
