"""A run with tags: trained, saved, loaded, continued, evaluated."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.config import build
from regard.data.corpus import Corpus
from regard.recipes.inspecting import inspect_data
from regard.recipes.outcome import dev_pairs
from regard.recipes.preparing import learn_tokenizers, open_splits
from regard.recipes.reporter import Reporter

TAGS = {"N", "NOM", "DAT", "SG", "PL"}
QUIET = Reporter(quiet=True)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("tokenizer", ["characters", "bytes", "words", "bpe", "unigram"])
def test_a_run_trains_is_saved_loaded_and_answers(
    tokenizer: str, share: bool, tiny: Any, inflections: Path, tmp_path: Path
) -> None:
    text = {"tokenizer": tokenizer, "size": 400, "share": share}
    settings = tiny | {"data": {"features": "3"}, "text": text}
    settings["train"] = tiny["train"] | {"steps": 2}
    trained = regard.train(inflections, out=tmp_path / "run", reporter=QUIET, **settings)
    run = regard.Run.open(trained.path)
    assert set(run.source.tags) == TAGS
    assert run.source.to_json() == trained.source.to_json()
    assert (run.target is run.source.target_side) == share
    assert (run.target.size == run.source.size) or not share

    corpus = Corpus.open(run.path / "data" / "train")
    rows = [run.source.decode(corpus[i][0]) for i in range(len(corpus))]
    lines = inflections.read_text().splitlines()
    known = {f"{lemma}\t{tags}" for lemma, _, tags in (line.split("\t") for line in lines)}
    assert set(rows) < known
    assert all(row[-2] >= run.source.text_size for row, _ in map(corpus.__getitem__, range(9)))
    assert all(row.max() < run.target.text_size for _, row in map(corpus.__getitem__, range(9)))

    translator = regard.load(run, device="cpu")
    again = regard.load(run.path, device="cpu")
    sources = list(islice(known, 5))
    answers = [result.text for result in translator(sources)]
    assert [result.text for result in again(sources)] == answers
    assert all("<" not in answer for answer in answers)


def test_tags_change_what_the_model_expects(tagged_run: regard.Run) -> None:
    translator = regard.load(tagged_run, device="cpu")
    scores = {
        tags: translator.score(f"tab\t{tags}", "tablar").total
        for tags in ("N;NOM;PL", "N;DAT;SG", "N;DAT;PL")
    }
    assert len(set(scores.values())) == 3


def test_letters_of_tags_are_no_letters_of_the_text(tagged_run: regard.Run) -> None:
    assert not set("NOMDATSGPL;\t") & set(tagged_run.manifest["characters"])
    letters = {tagged_run.source.decode([id]) for id in range(tagged_run.source.text_size)}
    assert not set("NOMDATSGPL;\t") & letters


def test_dev_pairs_have_their_tags(tagged_run: regard.Run) -> None:
    pairs = dev_pairs(tagged_run, 5)
    assert len(pairs) == 5
    assert all(pair.source.split("\t")[1].startswith("N;") for pair in pairs)
    assert "\\tN;" in (tagged_run.path / "samples.txt").read_text()


def test_evaluate_reads_the_same_column(tagged_run: regard.Run, inflections: Path) -> None:
    own = regard.evaluate(tagged_run, device="cpu")
    assert all("\tN;" in pair.source for pair in own.pairs)
    evaluation = regard.evaluate(tagged_run, inflections, device="cpu")
    assert len(evaluation.pairs) == 4 * 36  # each word four times, with other tags
    assert evaluation.seen_in_training == tagged_run.manifest["pairs"]
    dicts = [{"source": "tab", "target": "taba", "3": "N;DAT;SG"}]
    assert regard.evaluate(tagged_run, dicts, device="cpu").pairs[0].source == "tab\tN;DAT;SG"


def test_evaluate_against_a_run_without_tags(
    tagged_run: regard.Run, tiny: Any, inflections: Path, tmp_path: Path
) -> None:
    plain = regard.train(
        inflections,
        out=tmp_path / "plain",
        reporter=QUIET,
        **tiny | {"text": {"tokenizer": "characters"}},
    )
    evaluation = regard.evaluate(tagged_run, against=plain, device="cpu")
    texts = [pair.source.split("\t")[0] for pair in evaluation.pairs]
    answers = [result.text for result in regard.load(plain, device="cpu")(texts)]
    assert evaluation.other_answers == answers
    with pytest.raises(regard.UserError, match=r"data\.features=3: .*trained without tags; leave"):
        regard.evaluate(plain, inflections, reading={"features": "3"})
    with pytest.raises(regard.UserError, match=r"data\.features cannot be used when fine-tuning"):
        regard.train(
            inflections,
            out=tmp_path / "more",
            start_from=plain.path,
            reporter=QUIET,
            data={"features": "3"},
        )


def test_fine_tuning_knows_the_tags(
    tagged_run: regard.Run, tiny: Any, inflections: Path, tmp_path: Path
) -> None:
    settings = {"data": {"features": "3"}, "train": tiny["train"] | {"steps": 2}}
    more = regard.train(
        inflections, out=tmp_path / "more", start_from=tagged_run.path, reporter=QUIET, **settings
    )
    assert more.source.to_json() == tagged_run.source.to_json()


def test_pairs_from_python_are_kept_with_their_tags(tiny: Any, tmp_path: Path) -> None:
    pairs = [
        {"source": f"w{n}", "target": f"f{n}", "features": ["N", "SG" if n % 2 else "PL"]}
        for n in range(60)
    ]
    run = regard.train(
        pairs, out=tmp_path / "run", reporter=QUIET, **tiny, data={"features": "features"}
    )
    kept = [
        json.loads(line) for line in (run.path / "data" / "test.jsonl").read_text().splitlines()
    ]
    assert all(item["features"] in ("N;SG", "N;PL") for item in kept)
    sources = [f"{item['source']}\t{item['features']}" for item in kept]
    assert [pair.source for pair in regard.evaluate(run, device="cpu").pairs] == sources
    again = regard.evaluate(run, run.path / "data" / "test.jsonl", device="cpu")
    assert [pair.source for pair in again.pairs] == sources


@pytest.mark.usefixtures("quick_pace")
def test_the_plan_looks_at_the_text_alone(inflections: Path) -> None:
    given = {"data": {"path": str(inflections), "features": "3"}}
    inspection = inspect_data(given, QUIET)
    assert inspection.settings["text"]["tokenizer"] == "characters"
    assert inspection.splits[0].source.mean_words == 1
    assert inspection.reading == []
    assert inspection.plan[-1] == (
        "(it would first try this and also Transformer, characters, and train the one that is "
        "better on dev)"
    )
    tokens = inspection.samples[0].source_tokens
    assert next(token for token in tokens if token.startswith("<")) == "<N>"


def test_training_offers_tags(
    tiny: Any, inflections: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    regard.train(inflections, out=tmp_path / "run", **tiny)
    said = "".join(capfd.readouterr())
    assert said.count("column 3") == 1
    assert "forms.tsv: column 3 looks like tags (N;NOM;SG): add data.features=3" in said


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["", " ;"], r"data\.features=3: all cells of this column are empty"),
        ([f"T{n}" for n in range(10_001)], r"more than 10,000 different tags \(T0, T1, T2, …\)"),
    ],
)
def test_columns_without_tags_are_refused(cells: list[str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"a{n}\tb\t{cell}\n" for n, cell in enumerate(cells)))
    config = build({"data": {"path": str(path), "features": "3", "limit": 0}})
    splits = open_splits(config.data)
    splits.train = type(splits.train)(splits.train.read)  # all pairs
    with pytest.raises(regard.UserError, match=said):
        learn_tokenizers(config, splits)


def test_tags_have_no_positions() -> None:
    with pytest.raises(regard.UserError, match=r"data\.features=3 does not work with data\.posit"):
        build({"data": {"features": "3", "positions": "4"}})
    assert build({"data": {"features": 3}}).data.features == "3"
