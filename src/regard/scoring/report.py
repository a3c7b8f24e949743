"""Everything `regard evaluate` has to say about one run on one test set."""

import math
from dataclasses import asdict, dataclass
from typing import Annotated, get_type_hints

from regard.display import html_table
from regard.scoring import metrics


@dataclass(frozen=True)
class Scores:
    """Fields that are each annotated with their name, format and meaning in a table."""

    def as_dict(self) -> dict[str, float | int | str | None]:
        """Ready for JSON: numbers that it cannot write (NaN, infinity) become None."""
        values = asdict(self)
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                values[name] = None
        return values

    def rows(self) -> list[tuple[str, str, str]]:
        """For a table: name, value, and what it means in one line; without what is None."""
        rows = []
        for field, hint in get_type_hints(type(self), include_extras=True).items():
            name, form, meaning = hint.__metadata__
            value = getattr(self, field)
            if value is not None:
                rows.append((name, format(value, form), meaning))
        return rows

    def _repr_html_(self) -> str:
        """For a notebook: the rows as a table."""
        return html_table(("score", "value", "meaning"), self.rows())


@dataclass(frozen=True)
class Report(Scores):
    """The fields of `evaluate --json`, in its order.

    BLEU is None where it says nothing: for answers of one word.
    """

    loss: Annotated[
        float,
        "loss",
        ".4f",
        "mean negative log-likelihood of a reference token, in nats; lower is better",
    ]
    perplexity: Annotated[
        float,
        "perplexity",
        ".4g",
        "exp(loss): as if choosing among this many equally likely tokens",
    ]
    token_accuracy: Annotated[
        float, "token accuracy", ".2%", "next token correct, given the reference so far"
    ]
    exact_match: Annotated[float, "exact match", ".2%", "whole output equals a reference"]
    bleu: Annotated[float | None, "BLEU", ".2f", "overlap of word n-grams (1 to 4), 0 to 100"]
    bleu_signature: Annotated[str | None, "signature", "", "how sacreBLEU computed it"]
    chrf: Annotated[float, "chrF", ".2f", "overlap of character n-grams, 0 to 100"]
    ter: Annotated[float, "TER", ".2f", "edits per 100 reference words; lower is better"]
    sequence_error: Annotated[
        float,
        "sequence error",
        ".2%",
        "whole output wrong: 1 - exact match; papers on pronunciation call it WER",
    ]
    wer: Annotated[float, "WER", ".2%", "word edits per reference word; lower is better"]
    cer: Annotated[float, "CER", ".2%", "character edits per reference character; lower is better"]
    examples: Annotated[int, "examples", ",", "scored"]
    seconds: Annotated[float, "seconds", ".1f", "spent generating"]
    tokens_per_second: Annotated[float, "tokens/s", ",.0f", "generated"]


def report(
    hypotheses: metrics.Texts,
    references: metrics.References,
    sources: metrics.Texts,
    *,
    loss: float,
    tokens: int,
    correct: int,
    seconds: float,
    generated_tokens: int,
    tokenize: str = "13a",
) -> Report:
    """Score outputs by every metric, and add what was measured.

    `loss` is the mean over `tokens`, `correct` of them right; `tokenize` is sacreBLEU's tokenizer
    for BLEU.
    """
    metrics.check(hypotheses, references, sources)
    bleu = None
    if metrics.bleu_applies(references, tokenize):
        bleu = metrics.bleu(hypotheses, references, tokenize)
    return Report(
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)),  # exp(710) is too large for a float
        token_accuracy=correct / max(tokens, 1),
        exact_match=metrics.exact_match(hypotheses, references),
        bleu=bleu.score if bleu else None,
        bleu_signature=bleu.signature if bleu else None,
        chrf=metrics.chrf(hypotheses, references).score,
        ter=metrics.ter(hypotheses, references).score,
        sequence_error=metrics.sequence_error(hypotheses, references),
        wer=metrics.wer(hypotheses, references),
        cer=metrics.cer(hypotheses, references),
        examples=len(hypotheses),
        seconds=seconds,
        tokens_per_second=generated_tokens / seconds if seconds > 0 else 0.0,
    )


@dataclass(frozen=True)
class TextReport(Scores):
    """The fields of `evaluate --json` for a language model, in its order.

    Bits per character is None where only some of the tokens are predicted, and where there are
    unknown ones: <unk> takes fewer bits than the characters that it replaces.
    """

    loss: Annotated[
        float,
        "loss",
        ".4f",
        "mean negative log-likelihood of a predicted token, in nats; lower is better",
    ]
    perplexity: Annotated[
        float,
        "perplexity",
        ".4g",
        "exp(loss): as if choosing among this many equally likely tokens",
    ]
    bits_per_character: Annotated[
        float | None,
        "bits per character",
        ".4f",
        "what a character costs; the end of a text counts as one; comparable between tokenizers",
    ]
    token_accuracy: Annotated[float, "token accuracy", ".2%", "predicted token correct"]
    texts: Annotated[int, "texts", ",", "scored"]
    tokens: Annotated[int, "tokens", ",", "predicted"]
    characters: Annotated[int, "characters", ",", "of the texts, with their ends"]
    unknown: Annotated[
        int,
        "unknown tokens",
        ",",
        "not in the vocabulary: the scores do not say which they are; with any, there are no bits "
        "per character",
    ]
    seconds: Annotated[float, "seconds", ".1f", "spent predicting"]


def text_report(
    *,
    loss: float,
    accuracy: float,
    texts: int,
    tokens: int,
    characters: int,
    unknown: int,
    seconds: float,
    predicts_all: bool,
) -> TextReport:
    """Scores of a language model, from the mean loss over the tokens that it predicted.

    predicts_all: whether these are all tokens of the texts.
    """
    bits = loss * tokens / math.log(2) / max(1, characters)
    return TextReport(
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)),  # exp(710) is too large for a float
        bits_per_character=bits if predicts_all and not unknown else None,
        token_accuracy=accuracy,
        texts=texts,
        tokens=tokens,
        characters=characters,
        unknown=unknown,
        seconds=seconds,
    )
