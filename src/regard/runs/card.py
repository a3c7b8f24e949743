"""What a run tells about itself: README.md (a model card)."""

from pathlib import Path

from regard.runs import storage
from regard.runs.run import Run


def write_card(run: Run) -> None:
    """README.md: data, settings, scores, how to use it."""
    c, m = run.config, run.manifest
    looks = {
        "averaged" if r["kind"] == "average" else f"step-{r['step']:08d}": r
        for r in run.records()
        if "tokens" in r
    }
    best = looks.get(run.best, {})
    scores = ", ".join(
        f"{k} {best[k]:.4g}" for k in ("loss", "accuracy", "exact_match", "bleu") if k in best
    )
    model = ", ".join(
        f"{k} {getattr(c.model, k)}" for k in ("kind", "width", "encoder_layers", "decoder_layers")
    )
    data = Path(c.data.path).name or "pairs from Python"
    lines = [
        f"# {run.path.name}\n",
        f"A text-to-text model, trained with Regard {m['regard']} (torch {m['torch']}).\n",
        "| | |\n|---|---|",
        f"| data | {data}: {m['pairs']:,} pairs, {m['duplicates']:,} repeated, {m['leaks']:,} dev "
        f"sources in training |",
        f"| tokens | {c.text.tokenizer}, {run.source.size:,} source, {run.target.size:,} target |",
        f"| model | {model}; {m['parameters']:,} parameters |",
        f"| best on dev | {scores or 'not judged'} (checkpoint {run.best}, chosen by "
        f"{c.train.metric}) |",
        f"| search | beam {c.search.width}, length penalty {c.search.length_penalty} |\n",
        f'Use it:\n\n```\nregard translate {run.path.name} "a text"\nregard evaluate '
        f"{run.path.name}\n```\n",
        "It knows what its training data knew and nothing else; `samples.txt` shows answers to "
        "unseen sources.",
    ]
    storage.write_text(run.path / "README.md", "\n".join(lines) + "\n")
