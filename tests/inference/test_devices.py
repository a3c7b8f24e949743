"""Where a translator computes: when a GPU takes over, what happens where it has no room, and what a
pickle carries.
"""

import copy
import json
import pickle
from contextlib import nullcontext

import pytest
import torch

import regard
from regard.errors import UserError
from regard.inference import decoding
from regard.inference import placed as placing
from regard.inference.placed import Placed, hooked
from regard.nn.fast.readonly import ReadOnly
from regard.nn.kernels import writable
from regard.records.result import Result
from regard.text.tokenizer import train_tokenizer

TEXTS = ["1+1", "-940-819", "12+345", "7-8"]
NO_ROOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore words.")


@pytest.fixture
def ours(run):
    return regard.load(run)


def answers(translator, **wishes):
    return [(result.text, result.score) for result in translator(TEXTS, **wishes)]


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU, as far as the decision goes; what would be moved there is only
    noted.
    """
    moves = []

    def pick(name, setting):
        return torch.device("cuda" if name == "auto" else name)

    monkeypatch.setattr(decoding, "pick_device", pick)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 * 2**20, 2**30))

    def moved(placed, device, kind):
        moves.append((device.type, kind))
        return placed

    monkeypatch.setattr(Placed, "moved", moved)
    return moves


def test_one_short_text_does_not_even_ask_for_a_gpu(ours, monkeypatch):
    def ask(*_):
        raise AssertionError("asked for a GPU")

    monkeypatch.setattr(decoding, "pick_device", ask)
    assert ours.auto
    ours("1+1")


def test_a_gpu_takes_over_when_there_is_enough_to_translate(ours, gpu, monkeypatch):
    parameters = sum(weight.numel() for weight in ours.model.parameters())
    monkeypatch.setattr(decoding, "WORTH", 30.0 * parameters)  # of the tokens below
    ours("1+1")
    assert gpu == []
    ours(["1234+5678"] * 3)
    assert gpu == [("cuda", torch.float32)]


def test_many_small_calls_are_much_work_too(ours, gpu, monkeypatch):
    parameters = sum(weight.numel() for weight in ours.model.parameters())
    monkeypatch.setattr(decoding, "WORTH", 30.0 * parameters)
    for _ in range(20):
        ours("1+1")
    assert gpu


def test_who_names_a_device_stays_there(run, gpu, monkeypatch):
    monkeypatch.setattr(decoding, "WORTH", 0.0)
    on_cpu = regard.load(run, device="cpu")
    on_cpu(TEXTS)
    assert gpu == []


def test_without_a_gpu_nothing_moves_and_nobody_asks_twice(ours, monkeypatch):
    asked = []

    def pick(name, setting):
        asked.append(name)
        return torch.device("cpu")

    monkeypatch.setattr(decoding, "pick_device", pick)
    monkeypatch.setattr(decoding, "WORTH", 0.0)
    ours(TEXTS)
    ours(TEXTS)
    assert asked == ["auto"]


def test_no_room_on_the_gpu_is_told_and_the_cpu_goes_on(run, ours, gpu, monkeypatch):
    def refuse(placed, device, kind):
        raise NO_ROOM

    expected = answers(regard.load(run))
    monkeypatch.setattr(Placed, "moved", refuse)
    monkeypatch.setattr(decoding, "WORTH", 0.0)
    with pytest.warns(UserWarning, match=r"3 of 1,024 MiB are free.*CPU"):
        assert answers(ours) == expected
    assert answers(ours) == expected  # and is not tried again


def fake_gpu(monkeypatch, translator, fits):
    """Its decoding runs here, and has room for so many source tokens."""
    tried = []

    def on_gpu(placed, jobs, search, rules, room, every):
        tried.append(room)
        if room > fits:
            raise NO_ROOM
        rules.device = torch.device("cpu")
        device, placed.device = placed.device, torch.device("cpu")
        placed._by_engine(jobs, search, rules, room, every)
        placed.device = device

    monkeypatch.setattr(Placed, "_on_gpu", on_gpu)
    monkeypatch.setattr(placing, "on_device", lambda device: nullcontext())
    translator._placed.device = torch.device("cuda")
    return tried


def test_a_batch_that_does_not_fit_is_made_smaller(run, monkeypatch):
    expected = answers(regard.load(run))
    ours = regard.load(run)
    tried = fake_gpu(monkeypatch, ours, fits=1200)
    assert answers(ours) == expected
    assert tried[:2] == [4096, 1024]
    assert max(tried[2:], default=0) <= 1024  # what has not fitted is not tried again


def test_where_no_batch_fits_the_cpu_goes_on_or_the_caller_is_told(run, gpu, monkeypatch):
    expected = answers(regard.load(run))
    ours = regard.load(run)
    fake_gpu(monkeypatch, ours, fits=0)

    def home(placed, device, kind):
        return Placed(placed.model, placed.suppress)

    monkeypatch.setattr(Placed, "moved", home)
    with pytest.warns(UserWarning, match="continuing on the CPU"):
        assert answers(ours) == expected

    named = regard.load(run)
    named.auto = False
    fake_gpu(monkeypatch, named, fits=0)
    with pytest.raises(UserError, match=r"search\.batch_tokens"):
        named(TEXTS)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_weights_come_back_from_their_layout(run, kind):
    plain = run.model()
    laid_out = regard.nn.kernels.read_only
    model = copy.deepcopy(plain)
    laid_out(model, kind)
    assert any(isinstance(module, ReadOnly) for module in model.modules())
    writable(model)
    assert not any(isinstance(module, ReadOnly) for module in model.modules())
    for name, layer in plain.named_modules():
        if isinstance(layer, torch.nn.Linear):
            back = model.get_submodule(name)
            assert torch.equal(back.weight, layer.weight.to(kind))
            assert back.bias is layer.bias or torch.equal(back.bias, layer.bias.to(kind))


def test_a_moved_model_answers_the_same_and_the_old_one_stays_good(run, ours):
    expected = answers(ours)
    before = ours._placed
    ours._placed = before.moved(torch.device("cpu"), torch.float32)
    assert answers(ours) == expected
    ours._placed = before
    assert answers(ours) == expected


def test_a_move_asks_the_device_it_leaves_for_no_room(ours, monkeypatch):
    """On a full GPU a second copy of the weights would not fit; and what was tied stays tied."""
    model = ours.model
    copies = []
    original = torch.Tensor.clone

    def clone(tensor, *more, **options):
        copies.append(tensor.numel())
        return original(tensor, *more, **options)

    monkeypatch.setattr(torch.Tensor, "clone", clone)
    placing._copied(model, torch.device("cpu"))
    assert sum(copies) < sum(weight.numel() for weight in model.parameters())


def test_weights_that_are_tied_stay_tied(run):
    plain = run.model()
    names = [name for name, _ in plain.named_parameters()]
    copied = placing._copied(plain, torch.device("cpu"))
    assert [name for name, _ in copied.named_parameters()] == names  # a tie is listed once
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), copied.parameters(), strict=True)
    )
    assert not any(a is b for a, b in zip(plain.parameters(), copied.parameters(), strict=True))


def test_a_file_announced_is_not_counted_twice(ours, gpu, monkeypatch):
    parameters = sum(weight.numel() for weight in ours.model.parameters())
    monkeypatch.setattr(decoding, "WORTH", 100.0 * parameters)
    ours.expect(60)
    ours(["1234+5678"] * 5)  # 45 tokens of those 60
    assert gpu == []
    ours.expect(60)
    assert gpu == [("cuda", torch.float32)]


def test_another_thread_may_have_gone_back_already(run, gpu, monkeypatch):
    """Two threads on one full GPU: the second finds that the first has moved, and follows."""
    expected = answers(regard.load(run))
    ours = regard.load(run)
    first = ours._placed
    fake_gpu(monkeypatch, ours, fits=0)
    on_gpu = Placed._on_gpu

    def fail_after_a_move(placed, *rest):
        ours.auto = False
        ours._placed = Placed(first.model, first.suppress)
        on_gpu(placed, *rest)

    monkeypatch.setattr(Placed, "_on_gpu", fail_after_a_move)
    assert answers(ours) == expected


def test_graphs_would_not_call_hooks(ours):
    assert not hooked(ours.model)
    with ours.model.decoder.register_forward_hook(lambda *_: None):
        assert hooked(ours.model)
    assert not hooked(ours.model)


def test_a_used_translator_can_be_pickled(ours):
    expected = answers(ours, n_best=2)
    again = pickle.loads(pickle.dumps(ours))
    assert answers(again, n_best=2) == expected
    assert again("1+1").attention.blocks.keys() == ours("1+1").attention.blocks.keys()
    assert copy.deepcopy(ours)("1+1") == ours("1+1")


def test_a_result_from_json_keeps_its_values_and_says_that_it_cannot_look(ours):
    result = ours("-940-819", n_best=2)
    again = Result.from_dict(json.loads(json.dumps(result.as_dict())))
    assert again == result
    assert again.alternatives == result.alternatives
    assert again._repr_html_()
    for look in (
        lambda: again.attention,
        lambda: again.overlooked,
        lambda: again.write_page("page.html"),
    ):
        with pytest.raises(UserError, match="translate its source again"):
            look()


def test_a_pickled_result_keeps_its_values_and_says_that_it_cannot_look(ours):
    result = ours("-940-819", n_best=2)
    content = pickle.dumps(result)
    assert len(content) < 5_000  # no weights
    again = pickle.loads(content)
    assert again == result
    assert again._repr_html_()
    with pytest.raises(UserError, match="translate its source again"):
        _ = again.attention
    looked = result.attention
    assert (
        pickle.loads(pickle.dumps(result)).attention.blocks["cross"] == looked.blocks["cross"]
    ).all()


@pytest.mark.parametrize("kind", ["characters", "bytes", "words", "bpe", "unigram"])
def test_tokenizers_can_be_pickled(kind):
    texts = ["a rose is a rose", "über den Wolken"] * 20
    tokenizer = train_tokenizer(kind, texts, size=400)
    again = pickle.loads(pickle.dumps((tokenizer, tokenizer)))
    assert again[0] is again[1]
    assert again[0].encode(texts[1]) == tokenizer.encode(texts[1])
    assert again[0].to_json() == tokenizer.to_json()


@pytest.mark.parametrize("verb", ["translate", "evaluate", "doctor"])
def test_a_device_that_is_not_here_is_one_line(run, command, verb):
    more = ["1+1"] if verb == "translate" else []
    found = command(verb, run.path, *more, "--device", "cuda:7")
    assert found.returncode == 2
    assert found.stderr.startswith("error: ")
    assert found.stderr.count("\n") == 1
    assert "cuda:7" in found.stderr
    assert "did you mean cuda" in command(verb, run.path, *more, "--device", "cud").stderr
