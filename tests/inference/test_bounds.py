"""Options of decoding: the same bounds from Python as on a command line, and memory that holds."""

import dataclasses
import math

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import UserError
from regard.inference import placed, room
from regard.inference.online import Online
from regard.recipes.pruning import prune
from regard.search import Job, Sample, Sampling
from regard.search.engine import _Queue
from regard.search.greedy import Greedy


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"temperature": math.nan}, r"temperature=nan: must be finite, from 1e-9 to 1,000,000"),
        ({"temperature": math.inf}, r"temperature=inf: must be finite"),
        ({"temperature": 1e-300}, r"temperature=1e-300: must be from 1e-9 to 1,000,000"),
        ({"temperature": 0}, r"temperature=0: must be from 1e-9"),
        ({"temperature": True}, r"temperature=True: must be a number"),
        ({"temperature": "warm"}, r"temperature=warm: must be a number"),
        ({"top_p": 1e-300}, r"top_p=1e-300: must be from 1e-9 to 1$"),
        ({"top_p": math.nan}, r"top_p=nan: must be finite"),
        ({"top_p": 1.5}, r"top_p=1\.5: must be from"),
        ({"top_k": -1}, r"top_k=-1: must be from 0"),
        ({"top_k": 2.5}, r"top_k=2\.5: must be a whole number"),
        ({"seed": -1}, r"seed=-1: must be at least 0"),
        ({"risk": 10**6}, r"risk=1000000: must be from 0 to 1,000"),
    ],
    ids=str,
)
def test_sampling_is_bounded(options, told):
    with pytest.raises(UserError, match=told):
        regard.Sampling(**options)
    shared = {field.name for field in dataclasses.fields(Sample)} & set(options)
    if shared:
        with pytest.raises(UserError, match=told):
            Sample(**options)


# ---- extreme, but legal ----


def drawn(logits, seeds, **options):
    """The ids that sampling draws from each row (R, V), with these seeds (R,)."""
    jobs = [Job(seed=seed) for seed in seeds]
    return Sample(**options).pick(logits, jobs)


@pytest.mark.parametrize(
    "options",
    [{"temperature": 1e-6}, {"temperature": 1e-9}, {"top_p": 1e-9}, {"top_k": 1}],
    ids=str,
)
def test_the_coldest_sample_is_greedy(options):
    torch.manual_seed(3)
    logits = 20 * torch.randn(400, 50)
    logits[:, 7] = -torch.inf
    second, first = logits.topk(2).values.flip(-1).unbind(-1)
    clear = first - second > 1e-4  # at 1e-6, closer ones are still a matter of chance
    ids = drawn(logits, range(400), **options)
    assert clear.sum() > 350
    assert torch.equal(ids[clear], Greedy().pick(logits, [])[clear])


def test_a_low_temperature_keeps_neighbouring_logits_apart():
    """Divided in fp32, some logits next to each other would become one."""
    first = torch.tensor(1.0)
    logits = torch.stack([torch.nextafter(first, torch.tensor(2.0)), first]).expand(4000, 2)
    ids = drawn(logits, range(4000), temperature=1e-6)
    gap = float(logits[0, 0]) - float(logits[0, 1])
    share = 1 / (1 + math.exp(-gap / 1e-6))
    assert abs((ids == 0).double().mean() - share) < 0.04


def test_the_hottest_sample_is_uniform():
    logits = torch.tensor([30.0, -30.0]).expand(4000, 2)
    ids = drawn(logits, range(4000), temperature=1e6)
    assert abs(ids.double().mean() - 0.5) < 0.04


# ---- a translator ----


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    sizes = {"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    return regard.train(
        "copy",
        out=tmp_path_factory.mktemp("bounds") / "run",
        model=sizes,
        data={"options": {"train": 200, "dev": 20, "test": 20}},
        train={"steps": 20, "evaluate_every": 20, "save_every": 20},
    )


@pytest.fixture(scope="module")
def translator(run):
    return regard.load(run, device="cpu")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"beam": 0}, r"search\.width=0: must be from 1 to 10,000"),
        ({"beam": 100_000}, r"search\.width=100000: must be from 1 to 10,000"),
        ({"beam": True}, r"search\.width=True: must be a whole number"),
        ({"length_penalty": 1e9}, r"search\.length_penalty=1000000000\.0: must be from 0 to 10"),
        ({"limit_ratio": math.nan}, r"search\.limit_ratio=nan: must be finite"),
    ],
    ids=str,
)
def test_loading_is_bounded(run, options, told):
    with pytest.raises(UserError, match=told):
        regard.load(run, **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"n_best": 0}, r"n_best=0: must be from 1 to 10,000"),
        ({"n_best": 1.5}, r"n_best=1\.5: must be a whole number"),
        ({"n_best": 100_000}, r"n_best=100000: must be from 1 to 10,000"),
        ({"n_best": 5000}, r"a beam of 5,000 is wider than the target vocabulary of \d+ tokens"),
        ({"window": -1}, r"window=-1: must be from 0"),
        ({"temperature": 1}, r"no option temperature: pass sampling=regard\.Sampling\(temperat"),
        ({"beam": 3}, r"no option beam: pass it to regard\.load"),
        ({"n_bset": 3}, r"no option n_bset; did you mean n_best\?"),
    ],
    ids=str,
)
def test_asking_is_bounded(translator, options, told):
    with pytest.raises(UserError, match=told):
        translator("a b c", **options)


def test_a_beam_wider_than_the_vocabulary(run):
    wide = regard.load(run, beam=9999, device="cpu")
    for ask in (wide, wide.tree):
        with pytest.raises(UserError, match=r"a beam of 9,999 is wider than the target vocabulary"):
            ask("a b c")


def test_more_answers_than_the_beam_widen_it(translator):
    assert len(translator("a b c", n_best=7).alternatives) == 6


@pytest.mark.parametrize("wait", [math.nan, 0, -1, -math.inf, "3", True, None])
def test_waiting_is_bounded(translator, wait, monkeypatch):
    monkeypatch.setattr("regard.inference.online.check_online", lambda model: None)
    with pytest.raises(UserError, match=r"^wait=.*: must be a number of at least 1"):
        translator.online(wait)
    assert isinstance(translator.online(math.inf), Online)


@pytest.mark.parametrize("n", [0, -3, 1.5])
def test_options_at_a_position_are_bounded(translator, n):
    with pytest.raises(UserError, match=r"^n="):
        translator.options(translator("a b c"), 0, n)


@pytest.mark.parametrize("limits", [{"tolerance": math.nan}, {"points": math.inf}], ids=str)
def test_what_pruning_may_lose_is_bounded(run, limits, tmp_path):
    with pytest.raises(UserError, match=r"must be finite, from 0 to"):
        prune(run.path, tmp_path / "pruned", **limits)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wait", ["9" * 5000, "nan", "0", "-1", "1e3"])
def test_numbers_of_waiting_are_bounded(run, wait):
    with pytest.raises(UserError, match=r"--wait .*: expected whole numbers from 1, or inf"):
        CliRunner().invoke(app, ["evaluate", str(run.path), "--wait", wait], catch_exceptions=False)


# ---- memory ----


def test_a_search_that_memory_cannot_hold_is_refused(translator, monkeypatch):
    monkeypatch.setattr(room, "free_memory", lambda device: 10**5)
    told = r"^20 hypotheses of up to \d+ tokens need about .* GB, but cpu has .* narrower beam"
    with pytest.raises(UserError, match=told):
        translator("a b c", n_best=20)
    with pytest.raises(UserError, match=r"use fewer samples"):
        translator("a b c", n_best=20, sampling=Sampling())


def test_nothing_to_decode_needs_no_memory(translator, monkeypatch):
    """As after a captured graph that has found everything."""
    monkeypatch.setattr(room, "free_memory", lambda device: 0)
    search = translator._search(5, None)
    cpu = torch.device("cpu")
    room.sentences_that_fit(translator.model, search, 1000, [], cpu)


def test_few_sentences_at_once_give_the_same_answers(translator, monkeypatch):
    texts = [" ".join("abcdefg"[: 1 + i % 7]) for i in range(40)]
    expected = [result.text for result in translator(texts)]
    asked = []

    def few(*_):
        asked.append(True)
        return lambda limit: 3

    monkeypatch.setattr(placed, "sentences_that_fit", few)
    assert [result.text for result in translator(texts)] == expected
    assert asked


def test_no_more_than_the_most_are_admitted():
    jobs = [Job([1, 2]) for _ in range(10)]
    queue = _Queue(jobs, 0, lambda limit: 4)
    live = queue.admit([])
    assert len(live) == 4
    assert queue.admit(live) == []
    assert len(queue.admit(live[:3])) == 1
    assert len(_Queue(jobs, 0, lambda limit: 0).admit([])) == 1
    assert len(_Queue(jobs, 0, None).admit([])) == 10


def test_more_of_short_answers_are_admitted():
    jobs = [Job([1, 2], limit=limit) for limit in (40, 40, *[10] * 20)]
    queue = _Queue(jobs, 0, lambda limit: 120 // limit)
    live = queue.admit([])
    assert [job.limit for job in live] == [40, 40, 10]
    assert len(queue.admit(live[2:])) == 11  # the long ones have left


def test_a_cpu_decodes_no_more_at_once_than_is_faster(translator):
    """However much memory is free, a hundred thousand sentences take what some hundred do."""
    jobs = [Job([5, 6, 7], limit=200)]
    search = translator._search(5, None)
    size = len(translator.suppress)

    def most(vocabulary):
        cpu = torch.device("cpu")
        return room.sentences_that_fit(translator.model, search, vocabulary, jobs, cpu)(200)

    one = 5 * (size * room.LOGIT + 10 * room.CANDIDATE)
    one += translator.model.decoder.decoding_bytes(5, 200)
    assert most(size) == room.ON_CPU // one
    assert most(10**5) == room.AT_LEAST  # each so large that fewer would be slow


@pytest.mark.parametrize("tokens", [8, 40, 150])
def test_the_memory_of_a_sentence_is_not_underestimated(translator, tokens):
    """Greedy search: what is reserved for a source and an answer of so many tokens."""
    decoder = translator.model.decoder
    state = translator._placed.begin([Job([5] * tokens, limit=tokens)])
    with torch.inference_mode():
        for _ in range(tokens):
            _, state = decoder(torch.tensor([[5]]), state)

    def reserved(kv):
        room = kv if kv.storage is None else kv.storage
        return room.key.nbytes + room.value.nbytes

    assert state.slots == tokens
    taken = sum(map(reserved, (*state.own, *state.cross)))
    assert taken <= decoder.decoding_bytes(1, tokens) <= 2 * taken + 10_000


def test_a_long_text_is_decoded_in_groups(translator, monkeypatch):
    lines = [" ".join("abcdefghij"[i % 3 : 3 + i % 7]) for i in range(300)]
    expected = translator("\n".join(lines))
    assert len(expected.parts) == 300

    sizes = []
    real = translator._run

    def run_group(jobs, *more):
        sizes.append(len(jobs))
        real(jobs, *more)

    monkeypatch.setattr(translator, "_run", run_group)
    [result] = translator.translate(["\n".join(lines)], window=10)
    assert max(sizes) == 20
    assert sum(sizes) >= 300
    assert result.text == expected.text


def test_a_very_long_text_is_never_encoded_as_a_whole(translator, monkeypatch):
    lines = [" ".join("abcdefghij"[i % 3 : 3 + i % 7]) for i in range(300)]
    text = "\n".join(lines)
    short = lines[5]
    expected = translator([text, short, text])

    lengths = []
    real = translator.source.encode_batch

    def encode(texts):
        lengths.extend(map(len, texts))
        return real(texts)

    monkeypatch.setattr(translator.source, "encode_batch", encode)
    monkeypatch.setattr("regard.inference.translator.LONG", len(text))
    assert translator([text, short, text]) == expected
    assert max(lengths) < len(text)
    assert translator(text, prefix="a").parts == []  # must stay whole
    assert max(lengths) == len(text)
