"""Law 4, of an answer: what is shown of a beam's choice is what it used; and whoever does not look
pays nothing.
"""

import itertools
import threading

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regard.errors import UserError
from regard.inference.translator import Translator
from regard.nn import attention as module
from regard.nn import watch
from regard.records.attention import AttentionRecord
from regard.search import Beam, Job, Rules, Traced, decode
from regard.text.tokenizer import train_tokenizer
from regard.text.vocabulary import BOS, EOS, FIRST


class Paths(Beam):
    """A beam that notes what each hypothesis had written before every step.

    It adds noise to the logits, because the weights of some models never make a beam change its
    order: then following a hypothesis through the slots would mean nothing.
    """

    def grow(self, live, logits, jobs):
        self.written.append(live.tokens[0, :, 1:].tolist())
        return super().grow(live, logits + 2 * torch.randn_like(logits), jobs)


@torch.no_grad()
def test_the_record_is_what_the_beam_used(model, batch_of, close):
    """Weights seen while a beam of 5 searched, followed along the hypothesis it chose, are those of
    reading it at once.
    """
    turns = sum(follow(model, batch_of(seed, [(7, 1)]), close) for seed in (8, 9, 10))
    assert turns > 2, "no beam was reordered"


def follow(model, source, close):
    """How often hypotheses that ended had moved to another slot."""
    job = Job(source.source[0].tolist(), limit=9)
    beam = Paths(5)
    beam.written = []
    turns = 0
    suppress = torch.arange(model.decoder.out.out_features) < FIRST
    suppress[EOS] = False

    def start(_):
        return model.decoder.start(model.encoder(source.source, source.source_lengths))

    with watch(model) as while_searching:
        list(decode(model.step, start, [job], beam, Rules(suppress=suppress, minimum=6)))
    assert len(job.found) >= 5
    for chosen in job.found[:3]:
        rows = [
            table.index(chosen.tokens[:t])
            for t, table in enumerate(beam.written[: len(chosen.tokens) + 1])
        ]
        turns += sum(a != b for a, b in itertools.pairwise(rows))
        with watch(model) as at_once:
            model(source.source, source.source_lengths, torch.tensor([[BOS, *chosen.tokens]]))
        for name, calls in at_once.weights.items():
            compare(name, while_searching.weights[name], torch.cat(calls, dim=2)[0], rows, close)
    return turns


def compare(name, steps, whole, rows, close):
    if name.startswith("encoder"):
        assert torch.equal(steps[0][0], whole)
        return
    for t, row in enumerate(rows):
        used, expected = steps[t][0, :, row], whole[:, t]
        if "blocks" in name and name.endswith(".attention"):
            assert (expected[:, t + 1 :] == 0).all()
            used, expected = (
                x[:, x.sum(0) > 0] for x in (used, expected)
            )  # among the slots of all hypotheses, its own
        close(used, expected, name)


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        shapes = tuple(tuple(a.shape) for a in args if isinstance(a, torch.Tensor))
        self.names.append((str(function), shapes))
        return function(*args, **(kwargs or {}))


def operators(model, batch, grad):
    with torch.set_grad_enabled(grad), Operators() as seen:
        loss = (
            model.loss(batch).loss
            if grad
            else model(batch.source, batch.source_lengths, batch.target_in)
        )
        if grad:
            loss.backward()
            model.zero_grad()
    return seen.names


@pytest.mark.once  # whatever the weights are
@pytest.mark.parametrize("grad", [False, True], ids=["reading", "training"])
def test_who_does_not_look_pays_nothing(model, batch_of, monkeypatch, grad):
    """The same operators on the same shapes as a model that cannot be watched, also after, and
    beside, somebody who looks.
    """
    batch = batch_of(1, [(5, 6), (1, 3), (3, 0)])
    with watch(model):
        watched = operators(model, batch, grad)
    beside = []
    with watch(model):
        other = threading.Thread(target=lambda: beside.extend(operators(model, batch, grad)))
        other.start()
        other.join()
    plain = operators(model, batch, grad)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_watching", lambda: None)
        blind = operators(model, batch, grad)
    assert plain == blind
    assert beside == blind
    assert len(blind) > 20
    if any(isinstance(part, module.Attention) for part in model.modules()):
        assert len(watched) > len(blind)


@pytest.fixture(scope="module")
def letters():
    return train_tokenizer("characters", ["abcdefghijklmn"], size=100)


def test_the_translators_record(translating, letters, sum_error):
    """Offsets, sums of one and zeros where nothing may be seen, in every way of putting heads
    together.
    """
    model = translating
    has_own_masks = model.decoder.mask_rule is not None or model.decoder.cross_rule is not None
    has_patterns = model.encoder.pattern is not None or model.decoder.pattern is not None
    result = Translator(model, letters, letters)("abc  ni")
    record = result.attention
    assert record is result.attention  # computed once
    assert record.source == [*"abc  ni", "<eos>"]
    assert "".join(record.text_in[a:b] for a, b in record.source_spans) == "abc  ni"
    assert record.target[-1] == "<eos>"
    assert (
        [record.text_out[a:b] for a, b in record.target_spans[:-1]]
        == record.target[:-1]
        == result.tokens
    )
    assert [len(row) for row in record.candidates] == [5] * len(record.target)
    best = [row[0][0] for row in record.candidates]
    assert all(row == sorted(row, key=lambda pair: -pair[1]) for row in record.candidates)
    assert set(best) <= {*"abcdefghijklmn", "<eos>"}
    for block, weights in record.blocks.items():
        # Rows of weights that add up to one, kept in fp32: rounded, and a rollout multiplies two
        # such matrices per layer.
        once = sum_error(weights.shape[-1])
        if has_own_masks:  # which may leave a token nothing to look at: all its weights are zero
            sums = weights.sum(-1)
            assert (np.minimum(abs(sums - 1), abs(sums)) <= once).all()
            continue
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=0, atol=once)
        often = once * (1 + 2 * sum(len(layers) for layers in record.blocks.values()))
        hidden = (weights == 0).all((0, 1))
        if not record.has_rollout:
            with pytest.raises(UserError, match="how=rollout follows tokens through all layers"):
                record.matrix(block, "rollout", layer=None)
            with pytest.raises(UserError, match="how=rollout follows tokens through all layers"):
                record.words().matrix(block, "rollout", layer=None)
        ways = ["mean", "norm", "max", *(["rollout"] if record.has_rollout else [])]
        for how in ways:
            matrix = record.matrix(block, how, layer=None)
            assert (matrix >= 0).all()
            if how != "max":
                np.testing.assert_allclose(matrix.sum(-1), 1, rtol=0, atol=often)
            # A rollout goes through the layers in between.
            spreads = block == "cross" or model.encoder.causal or has_patterns
            if how != "rollout" or not spreads:
                assert (matrix[hidden] == 0).all()
        if block == "decoder":
            seen = np.tri(len(record.target), dtype=bool)
            if model.decoder.pattern is not None:
                places = torch.arange(len(seen))
                allowed = model.decoder.pattern.allows(places[:, None], places, places[-1] + 1)
                seen &= allowed.numpy()
            assert (hidden == ~seen).all()
        words = record.words().blocks[block]
        np.testing.assert_allclose(words.sum(-1), 1, rtol=0, atol=often)
    words = record.words()
    assert words.source == ["abc", "  ", "ni", "<eos>"]
    if "cross" in record.blocks:
        rows = record.blocks["cross"][:, :, -1:]  # <eos> is a word of its own
        summed = np.concatenate(
            [rows[..., :3].sum(-1), rows[..., 3:5].sum(-1), rows[..., 5:7].sum(-1), rows[..., 7]],
            -1,
        )
        np.testing.assert_allclose(
            words.blocks["cross"][:, :, -1], summed, rtol=0, atol=sum_error(len(record.source))
        )


def test_norms_are_lengths_of_what_is_handed_over(build, transformer, batch_of, sum_error):
    """If a query looks at one place only, its head adds a vector of that place's norm (bias
    aside).
    """
    model, batch = build(transformer(heads=2, bias=False)), batch_of(3, [(4, 3)])
    part = model.decoder.blocks[0].cross
    with torch.no_grad(), watch(model) as record:
        memory = model.encoder(batch.source, batch.source_lengths)
        model.decoder(batch.target_in, model.decoder.start(memory))
        value = part.project(memory.states).value  # (1, 2, S, D)
        for head in range(2):
            for place in range(5):
                alone = torch.zeros(1, 2, value.shape[-1], dtype=value.dtype)
                alone[0, head] = value[0, head, place]
                handed = float(part.output(alone.flatten(1)).norm())
                noted = float(
                    record.norms["decoder.blocks.0.cross"][0, head, place]
                )  # kept in fp32
                assert noted == pytest.approx(handed, rel=sum_error(model.decoder.out.in_features))


def test_what_the_beam_tried(translating, letters):
    """The tree holds the answer, with its score, and its nodes lead back to the start."""
    translator = Translator(translating, letters, letters)
    translator.search = translator.search.__class__(
        width=4, limit_extra=4, limit_ratio=1.0, no_repeat=3
    )
    nodes, result = translator.tree("abc", 4), translator("abc")
    path = [node for node in nodes if node.fate == "chosen"]
    assert [node.token for node in path][: len(result.tokens)] == result.tokens
    assert [node.logprob for node in path] == pytest.approx(result.logprobs, rel=1e-9)
    assert result.score == pytest.approx(path[-1].total / len(path), rel=1e-9)
    for number, node in enumerate(nodes):
        assert node.parent < number
        before = nodes[node.parent] if node.parent >= 0 else None
        assert node.step == (before.step + 1 if before else 0)
        assert node.total == pytest.approx(
            (before.total if before else 0) + node.logprob, abs=1e-9, rel=1e-9
        )
        assert before is None or before.fate in ("chosen", "kept")
    assert {node.fate for node in nodes} <= {"chosen", "kept", "ended", "dropped"}
    assert sum(node.step == 0 for node in nodes) == 8


def test_traced_changes_nothing(model, batch_of):
    batch = batch_of(5, [(6, 1)])

    def search(way):
        job = Job(batch.source[0].tolist(), limit=8)
        list(
            decode(
                model.step,
                lambda _: model.decoder.start(model.encoder(batch.source, batch.source_lengths)),
                [job],
                way,
                Rules(),
            )
        )
        return job.found

    assert search(Beam(3)) == search(Traced(Beam(3)))


def test_rollout_by_hand():
    """Two layers, two tokens: half stays, half flows where attention points."""
    own = np.array([[[[0.0, 1.0], [0.5, 0.5]]], [[[1.0, 0.0], [0.0, 1.0]]]], np.float32)
    back = np.array([[[[1.0, 0.0], [1.0, 0.0]]]], np.float32)
    cross = np.array([[[[1.0, 0.0], [0.25, 0.75]]]], np.float32)
    record = AttentionRecord(
        ["a", "b"], ["x", "y"], {"encoder": own, "decoder": back, "cross": cross}
    )
    first = np.array([[0.5, 0.5], [0.25, 0.75]])
    np.testing.assert_allclose(
        record.matrix("encoder", "rollout"), first
    )  # the second layer looks at itself only
    np.testing.assert_allclose(record.matrix("cross", "rollout"), cross[0, 0] @ first)
    np.testing.assert_allclose(record.matrix("decoder", "rollout"), [[1, 0], [0.5, 0.5]])
