"""A denoising language model: a text with gaps -> the text."""

from collections.abc import Iterable, Iterator
from typing import Any

from regard.data.objectives import Denoise
from regard.inference.decoding import check_texts
from regard.inference.likelihoods import read_texts
from regard.inference.translator import Translator
from regard.records.likelihood import Likelihood


class DenoisingModel(Translator):
    """A trained encoder-decoder that restores texts with gaps (train.objective=denoise).

    A Translator from "the <mask> is cold" to "the weather is cold", which can also score texts.
    Use `regard.load` to make one from a run.
    """

    def __init__(self, *arguments: Any, objective: Denoise, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.objective = objective
        """How training made gaps in its texts."""

    def text_scores(self, texts: Iterable[str]) -> Iterator[Likelihood]:
        """How likely each text is, given itself with gaps.

        The gaps are those that `regard.evaluate_texts` makes in the same texts. A text with more
        than data.max_length tokens is read in rows, as there; each row ends with `<eos>`.
        """
        check_texts(texts, "text_scores")
        read = read_texts(
            self.model,
            self.target,  # for which <mask> is text, as in training
            texts,
            self.search.batch_tokens,
            max_length=self.max_length,
            is_causal=False,
            objective=self.objective,
        )
        return (reading.likelihood(self.target) for reading in read)
