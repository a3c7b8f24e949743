"""Texts with tags are answered, without tags warned of once; no tag is ever written."""

import warnings
from typing import Any

import pytest
import torch

import regard


@pytest.fixture
def translator(tagged_run: Any) -> regard.Translator:
    return regard.load(tagged_run, device="cpu")


class WantsTags(torch.nn.Module):
    """An output layer that finds every tag far more likely than anything else."""

    def __init__(self, output: torch.nn.Module, first: int) -> None:
        super().__init__()
        self.output = output
        self.first = first

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        logits = self.output(states).clone()
        logits[..., self.first :] += 1000
        return logits


@pytest.mark.parametrize("beam", [1, 4])
def test_decoding_never_writes_a_tag(tagged_run: Any, beam: int) -> None:
    translator = regard.load(tagged_run, device="cpu", beam=beam)
    first = translator.target.text_size
    assert first < translator.target.size
    assert translator.suppress[first:].all()
    decoder: Any = translator.model.decoder
    decoder.output = WantsTags(decoder.output, first)

    result = translator("tab\tN;DAT;SG", n_best=min(beam, 2))
    assert result.ids
    assert max(result.ids) < first
    drawn = translator(["tab\tN;DAT;SG", "kan\tN;DAT;SG"] * 5, sampling=regard.Sampling(seed=1))
    ids = [id for one in drawn for id in one.ids]
    assert ids
    assert max(ids) < first
    options = translator.options(result, 0, n=1000)
    assert not {option.token for option in options} & {f"<{tag}>" for tag in translator.source.tags}


def test_a_text_without_tags_is_answered_and_warned_of_once(translator: regard.Translator) -> None:
    with pytest.warns(
        UserWarning, match=r"'tab' has no tags, but this run.*data\.features"
    ) as told:
        results = translator(["tab", "", "kan", "tab\tN;DAT;SG"])
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
    assert results[0].ids
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        translator("tab")
        translator.score("tab", "tablar")


def test_a_run_without_tags_does_not_ask_for_any(run: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regard.load(run, device="cpu")("1+2")


def test_attention_has_tags_on_its_axis(translator: regard.Translator) -> None:
    record = translator("tab\tN;DAT;SG").attention
    assert record.source == ["t", "a", "b", "<N>", "<DAT>", "<SG>", "<eos>"]
    assert record.text_in == "tab\tN;DAT;SG"
    assert record.blocks["cross"].shape[-1] == 7
    parts = [record.text_in[start:end] for start, end in record.source_spans[3:6]]
    assert parts == ["N", "DAT", "SG"]
    assert "DAT" in translator("tab\tN;DAT;SG").page().html


def test_letters_of_tags_are_not_strange(translator: regard.Translator) -> None:
    assert not [line for line in translator("tab\tN;DAT;SG").warnings if "seen" in line]
    [unknown] = [line for line in translator("tab\tN;NEW").warnings if "vocabulary" in line]
    assert unknown == "not in the vocabulary: <NEW>"


def test_every_part_of_a_long_text_has_the_tags(translator: regard.Translator) -> None:
    seen = translator.seen
    sentence = "tab kan. "
    with pytest.warns(UserWarning, match="has no tags"):
        translator("tab")
    result = translator(f"{sentence * seen}\tN;DAT;SG")
    assert len(result.parts) > 1
    texts = [part.source for part in result.parts]
    assert all(text.endswith("\tN;DAT;SG") for text in texts)
    assert " ".join(text.split("\t")[0] for text in texts) == (sentence * seen).strip()


def test_a_text_that_is_still_being_written_has_no_tags(translator: regard.Translator) -> None:
    with pytest.raises(regard.UserError, match=r"trained with data\.features.*as a whole"):
        translator.online()
