"""B12, E25. Masks and positions of the user's own, from the model up to a translated text."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard import nn
from regard.cli import app
from regard.config import Config, RNNConfig, TransformerConfig, build
from regard.data.batches import collate
from regard.data.splits import from_iterable
from regard.errors import UserError
from regard.models import build_model
from regard.recipes.reporter import Reporter
from regard.search import beam, greedy
from regard.text.positions import Located, positions_in, word_positions
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import BOS, EOS, PAD

SIZES = {"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}
SMALL = TransformerConfig(**SIZES, dropout=0.0)
QUIET = Reporter(quiet=True)
FEW_STEPS = {"steps": 6, "evaluate_every": 6, "save_every": 6, "threads": 1, "tensorboard": "off"}


def not_near(query, key):
    """No look at the token itself, nor at its neighbours."""
    return (query - key).abs() > 1


PARTS = {"encoder_mask": not_near, "decoder_mask": not_near, "cross_mask": not_near}
NAMED = dict.fromkeys(PARTS, "custom:not_near")


@pytest.fixture
def single():
    """New tensors and layers are float32, as users have them."""
    torch.set_default_dtype(torch.float32)


def batch_of(*lengths):
    """Sentences of random words: (source words, target words)."""
    draw = torch.Generator().manual_seed(3)

    def words(count):
        return torch.randint(5, 20, (count,), generator=draw).tolist()

    return collate([([*words(s), EOS], [BOS, *words(t), EOS]) for s, t in lengths])


def near(rows, columns):
    return (torch.arange(rows)[:, None] - torch.arange(columns)).abs() <= 1


# ---- B12: a mask, by its name in the config ----


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return regard.train(
        [(text, text.upper()) for text in SENTENCES],
        parts=PARTS,
        out=tmp_path_factory.mktemp("masks") / "run",
        reporter=QUIET,
        data={"batch_sentences": 8, "dev": 1, "test": 1},
        text={"tokenizer": "words"},
        model=SIZES,
        train=FEW_STEPS,
        search={"limit_ratio": 1.0, "limit_extra": 2},
    )


@pytest.mark.usefixtures("single")
def test_b12_a_mask_is_trained_saved_and_loaded(run):
    config = regard.Run.open(run.path).config
    assert {config.model.encoder_mask, config.model.decoder_mask, config.model.cross_mask} == {
        "custom:not_near"
    }
    result = regard.load(run.path, parts=PARTS)("the old cat sees the dog")
    for block in ("encoder", "decoder", "cross"):
        weights = torch.from_numpy(result.attention.blocks[block])  # (L, H, T, S)
        forbidden = near(*weights.shape[2:])
        assert (weights[..., forbidden] == 0).all()
        assert (weights[..., ~forbidden] > 0).any()
    with pytest.raises(UserError, match=r"model\.encoder_mask=custom:not_near, .* --parts encoder"):
        regard.load(run.path)


@torch.no_grad()
def test_b12_one_by_one_is_the_whole_for_every_search(close):
    model = build_model(replace(SMALL, **NAMED), 20, 20, PARTS).eval()
    batch = batch_of((7, 6), (2, 5), (4, 0))
    whole = model(batch.source, batch.source_lengths, batch.target_in)
    state = model.decoder.start(model.encoder(batch.source, batch.source_lengths))
    steps = []
    for tokens in batch.target_in.T:
        logits, state = model.step(tokens, state)
        steps.append(logits)
    close(torch.stack(steps, 1), whole)

    def start():
        return model.decoder.start(model.encoder(batch.source, batch.source_lengths))

    by_greedy = greedy(model.step, start(), batch=3, limit=[9] * 3)
    by_beam = beam(model.step, start(), batch=3, limit=[9] * 3, width=4)
    for row, (one, hypotheses) in enumerate(zip(by_greedy, by_beam, strict=True)):
        for found in (one, *hypotheses):
            target = torch.tensor([[BOS, *found.tokens, EOS]])
            source = batch.source[row : row + 1, : batch.source_lengths[row]]
            logits = model(source, batch.source_lengths[row : row + 1], target)[0]
            logits[:, [PAD, BOS]] = -torch.inf  # which a search never writes
            likely = logits[:-1].log_softmax(-1).gather(1, target[0, 1:, None])[:, 0]
            close(likely[: len(found.logprobs)], torch.tensor(found.logprobs))


def test_b12_a_mask_for_each_head(close):
    def only_second_head_looks_back(query, key):
        return (key >= query) | (torch.arange(2)[:, None, None] == 1)

    config = replace(SMALL, encoder_mask="custom:only_second_head_looks_back")
    model = build_model(config, 20, 20, {"encoder_mask": only_second_head_looks_back}).eval()
    batch = batch_of((6, 3))
    with nn.watch(model) as record:
        model(batch.source, batch.source_lengths, batch.target_in)
    weights = record.weights["encoder.blocks.0.attention"][0]
    assert (weights[0, 0].tril(-1) == 0).all()
    assert (weights[0, 1].tril(-1) > 0).any()


def test_b12_a_rule_that_is_no_mask_is_told():
    def distance(query, key):
        return query - key

    def wrong(query, key):
        return torch.ones(3, 3, dtype=torch.bool)

    batch = batch_of((6, 3))
    for rule, told in ((distance, "bool tensor, True = may look"), (wrong, r"\(B, H, T, S\)")):
        config = replace(SMALL, cross_mask=f"custom:{rule.__name__}")
        model = build_model(config, 20, 20, {"cross_mask": rule})
        with pytest.raises(UserError, match=f"the mask {rule.__name__} returns .*{told}"):
            model(batch.source, batch.source_lengths, batch.target_in)


def test_b12_fast_paths_do_not_take_what_they_do_not_know():
    model = {"model": NAMED}
    for path in ("captured", "compiled"):
        with pytest.raises(UserError, match=f"train.path={path} does not support your own masks"):
            build(model | {"train": {"path": path}})
    fixed = pytest.importorskip("regard.models.fast.fixed")
    assert fixed.fits(build_model(SMALL, 20, 20))
    for kind in PARTS:
        own = replace(SMALL, **{kind: "custom:not_near"})
        assert not fixed.fits(build_model(own, 20, 20, PARTS)), kind


# ---- B12: masks as tensors, for experiments by hand ----


@pytest.mark.parametrize("lengths", [[(6, 4), (3, 7)], [(5, 5), (5, 5)]], ids=["unlike", "alike"])
def test_b12_each_attention_has_its_own_mask(lengths):
    """Also where source and target are of one length, a mask stays in its own attention."""
    model = build_model(SMALL, 20, 20).eval()
    batch = batch_of(*lengths)
    source, target = batch.source.shape[1], batch.target_in.shape[1]
    shapes = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    for kind, shape in shapes.items():
        with nn.watch(model) as record:
            model.predict(replace(batch, **{f"{kind}_mask": ~near(*shape)}))
        for name, (weights,) in record.weights.items():
            block = "cross" if name.endswith("cross") else name.split(".")[0]
            looked_near = weights[..., near(*weights.shape[2:])].any()
            assert looked_near == (block != kind), (kind, name)


def test_b12_masks_as_tensors_equal_the_rule_in_training_too(close):
    model = build_model(SMALL, 20, 20)
    named = build_model(replace(SMALL, **NAMED), 20, 20, PARTS)
    named.load_state_dict(model.state_dict())
    batch = batch_of((6, 4), (3, 7), (1, 1))
    source, target = batch.source.shape[1], batch.target_in.shape[1]
    masked = replace(
        batch,
        encoder_mask=~near(source, source),
        decoder_mask=~near(target, target).expand(3, -1, -1),
        cross_mask=~near(target, source).expand(3, 2, -1, -1),
    )
    expected = named.loss(batch).loss
    close(model.loss(masked).loss, expected)
    close(sum(model.loss(half).loss for half in masked.split()), expected)
    close(model.rdrop(masked, 0.0, 0.0).loss, expected)
    assert not torch.allclose(model.loss(batch).loss, expected)


def test_b12_masks_row_by_row_with_a_cache(close):
    model = build_model(SMALL, 20, 20).eval()
    batch = batch_of((6, 5))
    mask, cross = ~near(6, 6), ~near(6, 7)
    inputs = (batch.source, batch.source_lengths)
    whole = model(*inputs, batch.target_in, decoder_mask=mask, cross_mask=cross)
    state = model.decoder.start(model.encoder(*inputs))
    for t in range(6):
        row = {"mask": mask[t : t + 1, : t + 1], "cross_mask": cross[t : t + 1]}
        logits, state = model.decoder(batch.target_in[:, t : t + 1], state, **row)
        close(logits[:, 0], whole[:, t])


def test_b12_a_mask_of_a_wrong_shape_is_told():
    model = build_model(SMALL, 20, 20)
    batch = batch_of((6, 3), (2, 2))
    inputs = (batch.source, batch.source_lengths, batch.target_in)
    with pytest.raises(UserError, match=r"cross_mask: a bool mask of \(7, 7\): .*\(4, 7\)"):
        model(*inputs, cross_mask=~near(7, 7))
    with pytest.raises(UserError, match=r"encoder_mask: a mask of torch.float64"):
        model(*inputs, encoder_mask=torch.ones(7, 7))


def test_b12_an_rnn_has_cross_attention_only(close):
    config = RNNConfig(width=16, embedding=8, dropout=0.0, cell="gru")
    batch = batch_of((6, 4), (3, 7))
    inputs = (batch.source, batch.source_lengths, batch.target_in)
    for attention in ("before", "after"):
        model = build_model(replace(config, attention=attention), 20, 20)
        cross = ~near(batch.target_in.shape[1], batch.source.shape[1])
        with nn.watch(model) as record:
            by_tensor = model(*inputs, cross_mask=cross)
        weights = torch.cat(record.weights["decoder.attention"], 2)
        assert (weights[:, :, ~cross] == 0).all()

        named = replace(config, attention=attention, cross_mask="custom:not_near")
        by_rule = build_model(named, 20, 20, {"cross_mask": not_near})
        by_rule.load_state_dict(model.state_dict())
        close(by_rule(*inputs), by_tensor)

    for name, told in (("encoder_mask", "self-attention"), ("source_positions", "no positions")):
        with pytest.raises(UserError, match=told):
            model(*inputs, **{name: torch.zeros_like(batch.source)})
    deaf = build_model(replace(config, attention="none"), 20, 20)
    with pytest.raises(UserError, match="no attention"):
        deaf(*inputs, cross_mask=cross)


# ---- E25: positions ----


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "relative", "rotary", "alibi"])
def test_e25_positions_of_both_sides(position, close):
    model = build_model(replace(SMALL, position=position, max_positions=64), 20, 20).eval()
    batch = batch_of((6, 4), (3, 7))
    inputs = (batch.source, batch.source_lengths, batch.target_in)
    plain = model(*inputs)
    counted = {
        "source_positions": torch.arange(7).expand(2, -1),
        "target_positions": torch.arange(8).expand(2, -1),
    }
    close(model(*inputs, **counted), plain)
    for name, positions in counted.items():
        assert not torch.allclose(model(*inputs, **{name: positions * positions}), plain), name

    deep = replace(batch, **{name: 2 * positions for name, positions in counted.items()})
    whole = model.predict(deep)
    memory = model.encoder(*inputs[:2], positions=deep.source_positions)
    state = model.decoder.start(memory)
    for t in range(8):  # with a cache
        here = slice(t, t + 1)
        place = {"positions": deep.target_positions[:, here]}
        logits, state = model.decoder(batch.target_in[:, here], state, **place)
        close(logits[:, 0], whole[:, t])

    targets = batch.target_out.flatten()
    logprobs = whole.log_softmax(-1).flatten(0, 1)
    real = targets != 0
    expected = -logprobs.gather(1, targets[:, None])[real].sum()
    close(model.loss(deep).loss, expected)
    close(sum(model.loss(half).loss for half in deep.split()), expected)


def test_e25_positions_of_a_wrong_shape_are_told():
    model = build_model(SMALL, 20, 20)
    batch = batch_of((6, 3))
    inputs = (batch.source, batch.source_lengths, batch.target_in)
    with pytest.raises(UserError, match=r"source_positions: .*whole numbers of \(1, 7\)"):
        model(*inputs, source_positions=torch.arange(6)[None])
    with pytest.raises(UserError, match=r"target_positions: .*whole numbers of \(1, 4\)"):
        model(*inputs, target_positions=torch.zeros(1, 4))


# Subject, verb, object, and how deep each word lies in the tree of the sentence.
NOUNS = ("cat", "dog", "bird")
DEPTH = {"the": 2, "old": 2, "sees": 0, "cat": 1, "dog": 1, "bird": 1}
SENTENCES = [f"the old {one} sees the {two}" for one in NOUNS for two in NOUNS]


def depths(text):
    return [DEPTH[word] for word in text.split()]


def words_of(text, pieces):
    """The word that each piece ends in."""
    return [text.split()[len(text[: piece.end].split()) - 1] for piece in pieces]


def table(tmp_path, rows=()):
    lines = [f"{text}\t{' '.join(map(str, depths(text)))}\t{text.upper()}" for text in SENTENCES]
    file = tmp_path / "trees.tsv"
    file.write_text("\n".join(["source\tdepth\ttarget", *rows, *lines]) + "\n")
    return file


def train(pairs, out, **more):
    settings = {
        "data": {"positions": "depth", "dev": 2, "test": 2, "batch_sentences": 8},
        "text": {"tokenizer": "bpe", "size": 290},
        "model": SIZES | {"dropout": 0.0},
        "train": FEW_STEPS | {"metric": "exact_match"},
        "search": {"width": 3, "limit_ratio": 1.0, "limit_extra": 2},
    }
    merged = {name: settings[name] | more.get(name, {}) for name in settings}
    return regard.train(pairs, out=out, reporter=QUIET, **merged)


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees")
    return train(table(folder), folder / "run")


@pytest.mark.usefixtures("single")
def test_e25_positions_from_a_column_are_trained_and_translated(trees):
    run = trees
    assert run.config.data.positions == "depth"

    # What training reads: every piece of a word has the position of the word, <eos> one more.
    text = "the old cat sees the bird"
    pieces = run.source.pieces(text)
    assert len(pieces) > 6  # words of several pieces
    row = run.corpus("train").row(0)
    read = run.source.decode(row[0])
    words = words_of(read, run.source.pieces(read))
    assert row[2].tolist() == [*(DEPTH[word] for word in words), 3]

    translator = regard.load(run)
    result = translator(text, positions=depths(text))
    assert translator(f"{text}\t{' '.join(map(str, depths(text)))}") == result
    for one in translator.translate([text] * 2, positions=[depths(text)] * 2):
        assert one.ids == result.ids
        assert one.score == pytest.approx(result.score, rel=1e-5)  # two at once are rounded apart
    others = translator(text, positions=[0, 1, 2, 3, 4, 5])
    assert others.score != result.score

    # Everything that reads the answer again reads its positions, too.
    assert translator.options(result, 0)[0].probability == pytest.approx(
        result.attention.candidates[0][0][1], rel=1e-4
    )
    score = translator.score(result.source, "THE CAT")
    ids = [*run.target.encode("THE CAT"), EOS]
    pieces_read = [*(piece.id for piece in pieces), EOS]
    places = [*(DEPTH[word] for word in words_of(text, pieces)), 3]
    batch = collate([(pieces_read, [BOS, *ids], places)])
    logprobs = translator.model.predict(batch)[0].log_softmax(-1)
    assert score.total == pytest.approx(logprobs[range(len(ids)), ids].sum().item(), rel=1e-4)
    assert "<html" in translator.page(result)
    assert regard.evaluate(run, run.path.with_name("trees.tsv")).report.examples == len(SENTENCES)


@pytest.mark.usefixtures("single")
def test_e25_on_the_command_line(trees, tmp_path):
    text = "the old cat sees the bird"
    line = f"{text}\t{' '.join(map(str, depths(text)))}"
    file = tmp_path / "texts.tsv"
    file.write_text(f"{line}\n{line}\n")
    expected = regard.load(trees)(text, positions=depths(text)).text
    done = CliRunner().invoke(app, ["translate", str(trees.path), "--input", str(file), "--json"])
    assert done.exit_code == 0, done.output
    results = [json.loads(row) for row in done.stdout.splitlines()]
    assert [(result["source"], result["text"]) for result in results] == [(text, expected)] * 2


def test_e25_positions_of_pairs_from_python():
    rows = [{"source": text, "target": "X", "depth": depths(text)} for text in SENTENCES]
    splits = from_iterable(rows, positions="depth", dev=0, test=0)
    assert [list(pair.positions) for pair in splits.train] == [depths(text) for text in SENTENCES]
    with pytest.raises(UserError, match=r"no 'height' \(data.positions\), only 'source'"):
        from_iterable(rows, positions="height")
    with pytest.raises(UserError, match="have no columns; pass dicts"):
        from_iterable([("a", "b")], positions="depth")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("the cat sees\t2 1\tX", r"trees\.tsv line 2: 2 positions for 3 words: give one for each"),
        ("the cat sees\t2 1 x\tX", r"trees\.tsv line 2: positions '2 1 x'; write a whole number"),
        ("the cat sees\t2 1 -1\tX", r"trees\.tsv line 2: positions '2 1 -1'"),
        ("the cat sees\t\tX", r"trees\.tsv line 2: positions ''"),
    ],
)
@pytest.mark.usefixtures("single")
def test_e25_a_row_that_does_not_fit_is_told(tmp_path, row, told):
    with pytest.raises(UserError, match=told):
        train(table(tmp_path, [row]), tmp_path / "run", data={"order": "file"})


@pytest.mark.usefixtures("single")
def test_e25_positions_that_nothing_would_read_are_refused(tmp_path):
    refused = [
        ({"model": {"kind": "rnn"}}, "an RNN has no positions"),
        ({"model": {"position": "none"}}, "no effect with model.position=none"),
        ({"text": {"dropout": 0.1}}, "text.dropout"),
        ({"train": {"path": "captured"}}, "train.path=captured"),
    ]
    for settings, told in refused:
        with pytest.raises(UserError, match=told):
            build(settings | {"data": {"positions": "depth"}})
    assert Config().data.positions == ""

    with pytest.raises(UserError, match="no column 'height'"):
        train(table(tmp_path), tmp_path / "run", data={"positions": "height"})
    (tmp_path / "trees.jsonl").write_text('{"source": "a b", "target": "c", "depth": [1, 0]}\n')
    with pytest.raises(
        UserError, match=r"line 1: no 'height' \(data\.positions\); it has 'source'"
    ):
        train(tmp_path / "trees.jsonl", tmp_path / "run", data={"positions": "height"})
    with pytest.raises(UserError, match="a task, which has no columns"):
        train("copy", tmp_path / "run")
    small = {"position": "learned", "max_positions": 3}
    with pytest.raises(UserError, match=r"learned positions: raise model\.max_positions"):
        train(table(tmp_path), tmp_path / "run", model=small)


@pytest.mark.usefixtures("single")
def test_e25_a_text_without_positions_is_told(trees):
    translator = regard.load(trees)
    with pytest.raises(UserError, match=r"data\.positions=depth; write a tab and a number"):
        translator("the cat sees")
    with pytest.raises(UserError, match="2 positions for 3 words"):
        translator("the cat sees", positions=[1, 2])
    with pytest.raises(UserError, match="one list of numbers for each text"):
        list(translator.translate(["the cat sees"] * 2, positions=[[1, 2, 3]]))
    with pytest.raises(UserError, match="a text that is still being written"):
        translator.online(1)


def test_e25_a_rule_reads_the_positions(close):
    """Words look at words of their own depth, or above."""

    def upwards(query, key):
        return key <= query

    config = replace(SMALL, encoder_mask="custom:upwards", position="none")
    model = build_model(config, 20, 20, {"encoder_mask": upwards}).eval()
    batch = replace(batch_of((3, 2)), source_positions=torch.tensor([[2, 1, 0, 1]]))
    with nn.watch(model) as record:
        model.predict(batch)
    looked = record.weights["encoder.blocks.0.attention"][0][0, 0] > 0
    assert looked.tolist() == [[d <= own for d in (2, 1, 0, 1)] for own in (2, 1, 0, 1)]


def test_e25_pieces_of_words():
    words = train_tokenizer("words", ["the old cat"], size=30)
    assert positions_in(words, Located("the old cat", [0, 1, 2])) == [0, 1, 2, 3]  # as counted
    letters = train_tokenizer("characters", ["the cat"], size=30)
    assert positions_in(letters, Located("the cat", [7, 5])) == [7, 7, 7, 7, 5, 5, 5, 8]
    for kind in ("characters", "bytes", "words", "bpe"):
        tokenizer = train_tokenizer(kind, ["the cat", "été à"] * 5, size=300)
        for text, numbers in (("the cat", [7, 5]), ("été à the", [1, 0, 3])):
            places = positions_in(tokenizer, Located(text, numbers))
            assert word_positions(tokenizer, tokenizer.encode(text), places) == numbers
