"""`regard doctor` on models: good ones of every kind pass; of a broken one exactly the right row
fails, and names the fault.
"""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load, save
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.config import RNNConfig, TransformerConfig
from regard.data.batches import collate
from regard.inspection.doctor import doctor, examine
from regard.inspection.doctor import model as proofs
from regard.inspection.doctor.files import Case, Remark, _spare, vocabulary
from regard.models import build_model
from regard.models.slots import TransformerState
from regard.nn import Attention, Mask, Position
from regard.nn.scores import ScaledDot
from regard.recipes.reporter import Reporter
from regard.runs import storage
from regard.runs.run import Run
from regard.text.vocabulary import BOS, EOS

NUMBERS, FUTURE, ONLINE, PADDING = (
    "no NaN, attention sums to 1",
    "no look-ahead",
    "no look-ahead in the source",
    "padding has no effect",
)
COMPANY, MODES, LOGGED, HEADS = (
    "batching has no effect",
    "train and eval mode agree",
    "dev loss matches the log",
    "all heads are used",
)
FINITE, WEIGHTS, VOCABULARY = "weights are finite", "best checkpoint loads", "vocabulary used"
SIZE = 30


def rnn(**changes):
    return RNNConfig(**({"width": 16, "embedding": 16, "dropout": 0.3} | changes))


def transformer(**changes):
    sizes = {
        "width": 16,
        "ffn": 24,
        "heads": 2,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "relative_clip": 3,
    }
    return TransformerConfig(**(sizes | {"dropout": 0.3, "attention_dropout": 0.1} | changes))


VARIANTS = {
    "rnn-before": rnn(attention="before"),
    "rnn-after-deep": rnn(attention="after", cell="gru", encoder_layers=2, decoder_layers=2),
    "rnn-none": rnn(attention="none", bidirectional=False),
    "rnn-additive": rnn(score="additive", fast=False),
    "pre": transformer(),
    "post": transformer(placement="post"),
    "rotary": transformer(position="rotary"),
    "alibi": transformer(position="alibi"),
    "relative": transformer(position="relative"),
    "learned-short": transformer(position="learned", max_positions=14),
    "additive": transformer(score="additive"),
    "causal": transformer(causal=True),
    "wait-1": transformer(causal=True, wait=1),
    "wait-3": transformer(causal=True, wait=3, position="alibi"),
    "masks": transformer(encoder_mask="custom:not_near", decoder_mask="custom:not_near"),
    "rnn-wait": rnn(cell="gru", bidirectional=False, wait=1, cross_mask="custom:not_near"),
}


def not_near(query, key):
    """A mask of the user's own, which leaves some tokens nothing to look at."""
    return (query - key).abs() > 1


PARTS = {"encoder_mask": not_near, "decoder_mask": not_near, "cross_mask": not_near}


def built(config):
    """With weights such that no bias is zero and no norm is one: a zero would hide mistakes."""
    torch.manual_seed(0)
    model = build_model(config, SIZE, SIZE, PARTS).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def pairs(*lengths):
    torch.manual_seed(1)
    words = lambda n: torch.randint(16, SIZE, (n,)).tolist()  # noqa: E731
    return collate(
        [
            ([*words(s), EOS], [BOS, *words(t), EOS])
            for s, t in lengths or ((4, 6), (9, 2), (1, 11), (7, 7), (12, 5))
        ]
    )


def rows_of(model, batch=None):
    return {row.name: row for row in examine(model, batch or pairs())}


def failed(rows):
    return [
        row.name
        for row in (rows.values() if isinstance(rows, dict) else rows)
        if row.passed is False
    ]


@pytest.mark.parametrize("name", VARIANTS)
def test_good_models_pass(name):
    model = built(VARIANTS[name]).train()
    rows = rows_of(model)
    waits = name.startswith(("wait", "causal")) or name in ("rnn-none", "rnn-wait")
    assert failed(rows) == []
    none = [] if any(isinstance(part, Attention) for part in model.modules()) else [HEADS]
    assert [name for name, row in rows.items() if row.passed is None] == (
        [] if waits else [ONLINE]
    ) + [LOGGED] + none
    assert model.training  # as it was
    assert model.encoder.dropout == 0.3
    assert rows[FUTURE].found.endswith("change by 0") or name.startswith("rnn")


# the causal mask removed


def test_without_a_causal_mask(monkeypatch):
    masks = TransformerState.masks
    monkeypatch.setattr(
        TransformerState, "masks", lambda self, *given: (Mask(), masks(self, *given)[1])
    )
    rows = rows_of(built(transformer()))
    assert failed(rows) == [FUTURE]
    found = rows[FUTURE]
    assert "decoder layer 1 attends there: head " in found.found
    assert "decoder layer 2 attends there: head " in found.found
    assert float(found.found.split("change by ")[1].split("\n")[0]) > 1e-3
    assert "mask the decoder" in found.advice
    assert rows[MODES].passed is None


def unmasked(attention, **changes):
    """This one attention forgets a part of its mask, on every way."""

    def forgetful(own, place):
        return lambda *given: own(
            *given[:place], replace(given[place], **changes, _made={}), *given[place + 1 :]
        )

    attention.look, attention.itself = forgetful(attention.look, 2), forgetful(attention.itself, 1)


def test_without_a_causal_mask_in_one_layer():
    model = built(transformer())
    unmasked(model.decoder.blocks[1].attention, causal=False)
    rows = rows_of(model)
    assert failed(rows) == [FUTURE]
    assert "decoder layer 2 attends there: head " in rows[FUTURE].found
    assert "layer 1 attends" not in rows[FUTURE].found


def test_a_causal_encoder_that_reads_ahead():
    model = built(transformer(causal=True))
    unmasked(model.encoder.blocks[0].attention, causal=False)
    rows = rows_of(model)
    assert failed(rows) == [ONLINE]
    assert "encoder layer 1 attends there" in rows[ONLINE].found


def test_a_model_that_does_not_wait(monkeypatch):
    model = built(transformer(causal=True, wait=2))
    monkeypatch.setattr(
        TransformerState,
        "reach",
        lambda self, places: torch.minimum(self.lengths[:, None], places + 3),
    )
    rows = rows_of(model)
    assert failed(rows) == [ONLINE]
    assert "decoder layer 1, cross attends there" in rows[ONLINE].found


# padding


@pytest.mark.parametrize(
    ("config", "seen"),
    [(transformer(), "encoder layer 1"), (rnn(), "decoder")],
    ids=["transformer", "rnn"],
)
def test_who_attends_to_padding(monkeypatch, config, seen):
    make = Mask.__init__
    monkeypatch.setattr(Mask, "__init__", lambda self, key_lengths=None, **more: make(self, **more))
    rows = rows_of(built(config))
    assert failed(rows) == [PADDING]
    assert f"{seen} attends there: head " in rows[PADDING].found
    assert "mask the source beyond its length" in rows[PADDING].advice
    assert rows[COMPANY].passed is rows[MODES].passed is None


def test_who_attends_to_padding_in_one_layer():
    model = built(transformer())
    unmasked(model.decoder.blocks[1].cross, key_lengths=None)
    rows = rows_of(model)
    assert failed(rows) == [PADDING]
    assert rows[PADDING].found.split("\n")[1].startswith("decoder layer 2, cross attends there")


# NaN


def test_a_nan_head_of_a_live_model():
    model = built(transformer())

    def spoil(module, inputs, output):
        output = output.clone()
        output.view(*output.shape[:-1], 3, 2, 8)[..., 0, 1, :] = (
            torch.nan
        )  # the queries of the second head
        return output

    model.encoder.blocks[1].attention.qkv.register_forward_hook(spoil)
    rows = rows_of(model)
    assert failed(rows) == [NUMBERS]
    assert rows[NUMBERS].found.startswith(
        "encoder layer 2, head 2: 16.7 % of encoder.blocks.1.attention.qkv is NaN"
    )
    assert all(row.passed is None for name, row in rows.items() if name != NUMBERS)


def test_a_score_that_is_nan_names_its_head():
    class Odd(ScaledDot):
        def forward(self, query, key):
            scores = super().forward(query, key)
            scores[:, 1] = torch.nan
            return scores

    model = built(transformer(score="additive"))
    model.decoder.blocks[0].cross.score = Odd(2, 8, 8, 0)
    rows = rows_of(model)
    assert failed(rows) == [NUMBERS]
    assert rows[NUMBERS].found.startswith(
        "decoder layer 1, cross, head 2: 50 % of decoder.blocks.0.cross.score is NaN"
    )


def test_nan_where_there_is_padding():
    """Every number is finite until a sentence is padded."""
    model = built(rnn())
    model.encoder.cells.register_forward_hook(
        lambda module, given, out: (
            out[0] / (1.0 if len(given[0]) > 1 or given[0].shape[1] == int(given[1]) else 0.0),
            out[1],
        )
    )
    rows = rows_of(model)
    assert failed(rows) == [PADDING]
    assert "logits change by inf" in rows[PADDING].found


def test_weights_that_do_not_sum_to_one(monkeypatch):
    model = built(transformer(score="additive"))
    attention = model.encoder.blocks[0].attention
    monkeypatch.setattr(
        attention, "_weights", lambda *given, own=attention._weights: own(*given) * 0.9
    )
    assert failed(rows := rows_of(model)) == [NUMBERS]
    assert rows[NUMBERS].found == "encoder layer 1: the attention weights of a row sum to 1 ± 0.1"


@pytest.mark.parametrize(
    ("tensor", "axis"),
    [("encoder.blocks.0.attention.qkv.weight", 0), ("decoder.blocks.0.cross.output.weight", 1)],
)
def test_a_nan_head_in_a_checkpoint(run, tmp_path, tensor, axis):
    """Its manifest is right: the files are as written."""
    path = shutil.copytree(run.path, tmp_path / "mine")
    folder = path / "checkpoints" / (path / "best").read_text().strip()
    files = storage.read_directory(folder)
    weights = load(files["model.safetensors"])
    weights[tensor].narrow(axis, 8, 4).fill_(torch.nan)  # of 16: the second of two heads
    storage.write_directory(folder, files | {"model.safetensors": save(weights)})
    done = CliRunner().invoke(app, ["doctor", str(path), "--json"], catch_exceptions=False)
    rows = {row.pop("name"): row for row in json.loads(done.stdout)}
    assert done.exit_code == 1
    assert [name for name, row in rows.items() if row["passed"] is False] == [FINITE]
    assert (
        "encoder layer 1, head 2: " if axis == 0 else "decoder layer 1, cross, head 2: "
    ) in rows[FINITE]["found"]
    assert tensor in rows[FINITE]["found"]
    assert rows[FINITE]["advice"]


# other faults


def test_sentences_that_disturb_each_other():
    model = built(transformer(tie="none"))
    embed = model.encoder.embedding.forward
    model.encoder.embedding.forward = lambda ids: (
        (x := embed(ids)) + 0.1 * x.mean(0, keepdim=True) * (len(ids) > 12)
    )
    rows = rows_of(model, pairs((4, 6), (3, 2), (4, 3)))
    assert failed(rows) == [COMPANY]


def test_an_answer_that_changes_in_company(monkeypatch):
    answers = proofs._answers
    monkeypatch.setattr(
        proofs,
        "_answers",
        lambda case, source, lengths: answers(case, source, lengths + (len(source) > 1)),
    )
    rows = rows_of(built(transformer()))
    assert failed(rows) == [COMPANY]


def test_another_model_in_training():
    model = built(transformer())
    feed = model.decoder.blocks[0].feed
    feed.forward = lambda x, own=feed.forward: own(x) * (1.2 if feed.training else 1)
    rows = rows_of(model)
    assert failed(rows) == [MODES]
    assert not model.training


def test_a_dead_head_is_a_remark_and_a_dead_layer_a_fault():
    model = built(transformer())
    with torch.no_grad():
        model.decoder.blocks[1].cross.output.weight[:, :8] = 0
        rows = rows_of(model)
        assert failed(rows) == []
        assert rows[HEADS].passed
        assert rows[HEADS].found.startswith("1 of 12 ")
        assert rows[HEADS].found.endswith("decoder layer 2, cross head 1")
        assert rows[HEADS].advice
        model.decoder.blocks[1].cross.output.weight[:] = 0
        rows = rows_of(model)
        assert failed(rows) == [HEADS]
        assert rows[HEADS].found.startswith("decoder layer 2, cross: every head")


def test_a_head_that_looks_everywhere_alike():
    model = built(transformer())
    with torch.no_grad():
        for side in (
            model.encoder.blocks[0].attention.qkv.weight,
            model.encoder.blocks[0].attention.qkv.bias,
        ):
            side[8:16] = 0  # the queries of the second head
    rows = rows_of(model)
    assert failed(rows) == []
    assert rows[HEADS].found.endswith(": encoder layer 1 head 2")


# on runs


def test_a_leak_in_a_run(run, monkeypatch):
    masks = TransformerState.masks
    monkeypatch.setattr(
        TransformerState, "masks", lambda self, *given: (Mask(), masks(self, *given)[1])
    )
    done = CliRunner().invoke(app, ["doctor", str(run.path)], env={"COLUMNS": "120"})
    assert done.exit_code == 1
    assert done.stdout.count("✗") == 1
    assert "│ ✗ │ no look-ahead" in done.stdout


def test_the_loss_is_not_the_logged_one(run, tmp_path):
    path = shutil.copytree(run.path, tmp_path / "mine")
    log = path / "log.jsonl"
    assert failed(doctor(path)) == []
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    for entry in entries:
        if entry["kind"] == "dev":
            entry["loss"] += 1
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert failed(doctor(path)) == [LOGGED]
    log.unlink()
    assert failed(doctor(path)) == []


def test_large_models_are_asked_less(run, monkeypatch):
    monkeypatch.setattr(proofs, "LARGE", 10)
    monkeypatch.setattr(proofs, "WORK", 10)
    rows = {row.name: row for row in doctor(run.path)}
    assert failed(rows) == []
    assert rows[NUMBERS].found.startswith("8 sentences")
    assert rows[LOGGED].passed is None
    assert "evaluate" in rows[LOGGED].found


def test_parts_of_ones_own(tiny, tmp_path):
    class Mine(ScaledDot):
        pass

    class Place(Position):
        pass

    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{i} {i % 7}\t{i % 7} {i}\n" for i in range(60)))
    own, model = (
        {"score": Mine, "position": Place},
        tiny["model"] | {"score": "custom:Mine", "position": "custom:Place"},
    )
    sets = {"model": model, "train": tiny["train"], "text": {"tokenizer": "words", "share": False}}
    run = regard.train(file, out=tmp_path / "run", parts=own, reporter=Reporter(quiet=True), **sets)
    assert (run.path / "samples.txt").exists()  # which needs the parts, too
    rows = {row.name: row for row in doctor(run.path)}
    assert failed(rows) == []
    assert (
        'pass parts={"score": Mine, "position": Place}, or on the command line'
        in rows["model can be built"].found
    )
    assert rows[WEIGHTS].passed is rows["resuming is exact"].passed is rows[NUMBERS].passed is None
    rows = {row.name: row for row in doctor(run.path, parts=own)}
    assert failed(rows) == []
    assert [name for name, row in rows.items() if row.passed is None] == [ONLINE]


def test_unused_vocabulary_is_a_remark(run, tmp_path):
    """As when a run is trained on other data than its tokenizer."""
    path = shutil.copytree(run.path, tmp_path / "mine")
    run = Run.open(path)
    corpus = path / "data" / "train"
    ids = bytearray((corpus / "ids.bin").read_bytes())
    assert len(ids)
    assert vocabulary(Case(path, run=run)).startswith("0.0 % ")
    few = torch.tensor(list(ids), dtype=torch.uint8).clamp(max=18)
    (corpus / "ids.bin").write_bytes(bytes(few.tolist()))
    with pytest.raises(Remark, match="do not occur in 60 pairs"):
        vocabulary(Case(path, run=run))


@pytest.mark.parametrize(
    ("kind", "size", "spare"),
    [
        *(("bpe", 272, 0.0), ("bpe", 528, 0.5), ("bytes", 272, 0.0)),
        *(("words", 17, 0.0), ("words", 116, 0.99)),
    ],
)
def test_no_smaller_vocabulary_is_advised_than_there_can_be(kind, size, spare):
    tokenizer = SimpleNamespace(size=size, first=16)
    assert _spare(tokenizer, kind) == spare


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_has_a_mark_for_remarks(run, monkeypatch, width):
    monkeypatch.setattr(proofs, "UNIFORM", 0.0)
    done = CliRunner().invoke(app, ["doctor", str(run.path)], env={"COLUMNS": str(width)})
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= width
    assert [done.stdout.count(f"│ {mark} │") for mark in "✓!✗–"] == [17, 1, 0, 1]
