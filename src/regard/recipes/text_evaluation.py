"""A language model -> scores on texts."""

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from regard.data.corpus import Corpus
from regard.data.documents import encode_documents
from regard.data.items import Items
from regard.data.objectives import objective_of
from regard.data.pairs import Pair
from regard.errors import UserError
from regard.models.parts import Parts
from regard.nn.devices import pick_device
from regard.recipes.evaluation import judged_pairs
from regard.runs.run import Run
from regard.scoring import TextReport, text_report
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import UNK
from regard.training.loss import RowLoss, mean_loss, row_losses


class _Counted:
    """Texts that are counted while they go by."""

    def __init__(self, pairs: Iterable[Pair], tokenizer: Tokenizer) -> None:
        self._pairs = pairs
        self._tokenizer = tokenizer
        self.texts = 0
        self.characters = 0

    def __iter__(self) -> Iterator[Pair]:
        for pair in self._pairs:
            self.texts += 1
            self.characters += len(self._tokenizer.normalise(pair.source)) + 1
            yield pair


def evaluate_texts(
    run: str | Path | Run,
    data: str | Path | Items | None = None,
    *,
    reading: Mapping[str, str] | None = None,
    split: str = "test",
    device: str = "auto",
    parts: Parts = None,
) -> TextReport:
    """Judge a language model on a split of its own data, or on `data`: a file, or texts.

    A causal model predicts every token from those before it. A masked one predicts masked tokens, a
    denoising one the text without noise; both get the same masks in every call.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    config = run.config
    if config.train.objective == "translate":
        raise UserError(
            f"{run.path}: trained with train.objective=translate: use regard.evaluate for it"
        )
    counted = _Counted(judged_pairs(run, data, reading or {}, split), run.source)
    place = pick_device(device, "device")
    model = run.model(parts=parts).to(place)
    is_causal = config.train.objective == "causal"
    with _encoded(run, counted) as corpus:
        began = time.monotonic()
        objective = objective_of(config.train, run.source)
        means = mean_loss(model, corpus, config.data.batch_tokens, place, objective)
        seconds = time.monotonic() - began
        unknown = sum(int((corpus.row(row)[1] == UNK).sum()) for row in range(len(corpus)))

    return text_report(
        loss=means["loss"],
        accuracy=means["accuracy"],
        texts=counted.texts,
        tokens=int(means["tokens"]),
        characters=counted.characters,
        unknown=unknown,
        seconds=seconds,
        predicts_all=is_causal,
    )


@contextmanager
def _encoded(run: Run, pairs: Iterable[Pair]) -> Iterator[Corpus]:
    """The texts in the tokens of a run, as long as this is open; long ones in several rows."""
    with tempfile.TemporaryDirectory() as folder:
        yield encode_documents(
            pairs,
            run.source,
            Path(folder) / "texts",
            max_length=run.config.data.max_length,
            is_causal=run.config.train.objective == "causal",
        )


def text_losses(
    run: Run, pairs: Iterable[Pair], *, device: str = "auto", parts: Parts = None
) -> list[RowLoss]:
    """The loss on each text, and on each row of a long one."""
    place = pick_device(device, "device")
    model = run.model(parts=parts).to(place)
    with _encoded(run, pairs) as corpus:
        return row_losses(model, corpus, place, objective_of(run.config.train, run.source))
