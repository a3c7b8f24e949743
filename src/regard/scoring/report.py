"""Everything `regard evaluate` has to say about one run on one test set."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from regard.errors import UserError
from regard.scoring import metrics


@dataclass(frozen=True)
class Report:
    """The fields of `evaluate --json`, in its order. Rates go from 0 to 1, BLEU, chrF and TER from 0 to 100."""

    loss: float
    perplexity: float
    token_accuracy: float
    exact_match: float
    bleu: float
    bleu_signature: str
    chrf: float
    ter: float
    wer: float
    per: float
    examples: int
    seconds: float
    tokens_per_second: float

    def as_dict(self) -> dict[str, float | int | str | None]:
        """Ready for JSON: numbers that it cannot write (NaN, infinity) become None."""
        fields = asdict(self)
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()}

    def rows(self) -> list[tuple[str, str, str]]:
        """For a table: name, value, and what it means in one line."""
        return [
            ("loss", f"{self.loss:.4f}", "mean negative log-likelihood of a reference token, in nats; lower is better"),
            ("perplexity", f"{self.perplexity:.4g}", "how many tokens the model hesitates between; exp(loss)"),
            ("token accuracy", f"{self.token_accuracy:.2%}", "next token right, given the reference so far"),
            ("exact match", f"{self.exact_match:.2%}", "whole output equals a reference"),
            ("BLEU", f"{self.bleu:.2f}", self.bleu_signature),
            ("chrF", f"{self.chrf:.2f}", "overlap of character n-grams, 0 to 100"),
            ("TER", f"{self.ter:.2f}", "edits per 100 reference words; lower is better"),
            ("WER", f"{self.wer:.2%}", "whole output wrong; lower is better"),
            ("PER", f"{self.per:.2%}", "edits per token of the nearest reference; lower is better"),
            ("examples", f"{self.examples:,}", "scored"),
            ("seconds", f"{self.seconds:.1f}", "spent generating"),
            ("tokens/s", f"{self.tokens_per_second:,.0f}", "generated"),
        ]


def report(
    hypotheses: Sequence[str],
    references: metrics.References,
    sources: Sequence[str],
    *,
    loss: float,
    tokens: int,
    correct: int,
    seconds: float,
    generated_tokens: int,
    tokenize: str = "13a",
) -> Report:
    """Score outputs by every metric and add what the model measured itself.

    `loss` is the mean over the `tokens` reference tokens, of which `correct` were predicted right;
    `seconds` were spent generating `generated_tokens`.
    """
    metrics.check(hypotheses, references)
    if len(sources) != len(hypotheses):
        raise UserError(f"{len(hypotheses)} outputs but {len(sources)} sources; they must pair up")
    bleu = metrics.bleu(hypotheses, references, tokenize)
    return Report(
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)) if loss == loss else math.nan,  # exp(710) overflows
        token_accuracy=correct / tokens if tokens else 0.0,
        exact_match=metrics.exact_match(hypotheses, references),
        bleu=bleu.score,
        bleu_signature=bleu.signature,
        chrf=metrics.chrf(hypotheses, references).score,
        ter=metrics.ter(hypotheses, references).score,
        wer=metrics.wer(hypotheses, references),
        per=metrics.per(hypotheses, references),
        examples=len(hypotheses),
        seconds=seconds,
        tokens_per_second=generated_tokens / seconds if seconds > 0 else 0.0,
    )
