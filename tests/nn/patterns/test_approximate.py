"""Attentions that do not compare every query with every key."""

import math

import pytest
import torch
import torch.nn.functional as F

from regard.errors import UserError
from regard.nn import LSH, Linformer, Mask, Performer, Routing, SelfAttention, Window
from regard.nn.patterns.groups import Groups

HEADS = 2
WIDTH = 8
LENGTH = 200
SCALE = 1 / math.sqrt(WIDTH)


def performer():
    return Performer(HEADS, WIDTH, features=24)


def linformer():
    return Linformer(HEADS, WIDTH, max_positions=LENGTH, mixtures=12)


def lsh():
    return LSH(HEADS, WIDTH, chunk=8, rounds=3)


def routing():
    return Routing(HEADS, WIDTH, clusters=10)


KINDS = {"performer": performer, "linformer": linformer, "lsh": lsh, "routing": routing}
OVER_KEYS = ["performer", "lsh", "routing"]
"""Those whose weights are over keys; Linformer's are over its mixtures."""


@pytest.fixture(autouse=True)
def seed(law_seed):
    torch.manual_seed(law_seed)


@pytest.fixture(params=KINDS)
def approximation(request):
    """One of every kind."""
    return KINDS[request.param]().double()


def draw(batch, queries, keys):
    """Queries (B, H, T, D), keys and values (B, H, S, D)."""
    sizes = (queries, keys, keys)
    return [torch.randn(batch, HEADS, size, WIDTH, dtype=torch.float64) for size in sizes]


def readable(approximation, query, key, value, mask):
    """The readable formula."""
    weights = approximation.weights(query, key, mask, SCALE)
    return approximation.pool(weights, value, mask)


def fast(approximation, query, key, value, mask):
    """Its fast twin."""
    assert approximation.applies(mask, query.shape[2], key.shape[2])
    return approximation(query, key, value, mask, SCALE)


WAYS = [readable, fast]


def with_gradients(way, approximation, tensors, mask):
    """The output, and what one gradient of it gives for each tensor and parameter."""
    inputs = [x.clone().requires_grad_() for x in tensors]
    output = way(approximation, *inputs, mask)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    wanted = [*inputs, *approximation.parameters()]
    return output, torch.autograd.grad(output, wanted, direction, materialize_grads=True)


def assert_same(ours, theirs, tolerance):
    """Equal up to a part of the magnitude of the whole tensor."""
    assert theirs.isfinite().all()
    largest = max(theirs.abs().max().item(), 1e-30)
    assert ((ours - theirs).abs().max() / largest).item() <= tolerance


def assert_twins(approximation, tensors, mask):
    slow_output, slow_gradients = with_gradients(readable, approximation, tensors, mask)
    fast_output, fast_gradients = with_gradients(fast, approximation, tensors, mask)
    assert_same(fast_output, slow_output, 1e-12)
    for ours, theirs in zip(fast_gradients, slow_gradients, strict=True):
        assert_same(ours, theirs, 1e-10)


# ---- the two ways to compute each ----


@pytest.mark.parametrize("queries", [LENGTH, 37, 1])
def test_the_fast_twin_is_the_readable_formula(approximation, queries):
    tensors = draw(4, queries, LENGTH)
    longest = int(torch.randint(1, LENGTH, ()))
    assert_twins(approximation, tensors, Mask())
    assert_twins(approximation, tensors, Mask(key_lengths=torch.tensor([LENGTH, longest, 1, 0])))
    assert_twins(approximation, tensors, Mask(key_lengths=torch.randint(0, LENGTH + 1, (4,))))


@pytest.mark.parametrize("lengths", [None, torch.tensor([LENGTH, 0, 57])])
def test_the_causal_fast_twin_is_the_readable_formula(approximation, lengths):
    mask = Mask(causal=True, key_lengths=lengths)
    assert approximation.applies(mask, LENGTH, LENGTH) == approximation.causal
    if approximation.causal:
        assert_twins(approximation, draw(3, LENGTH, LENGTH), mask)


def test_masks_without_a_fast_twin_are_left_to_the_readable_formula(approximation):
    custom = torch.rand(LENGTH, LENGTH) < 0.5
    per_query = torch.full((3, LENGTH), 5)
    for mask in (Mask(pattern=Window(2)), Mask(extra=custom), Mask(key_lengths=per_query)):
        assert not approximation.applies(mask, LENGTH, LENGTH)
    assert not approximation.applies(Mask(causal=True, offset=LENGTH - 1), 1, LENGTH)


# ---- masks ----


@pytest.mark.parametrize("way", WAYS)
def test_neither_company_nor_padding_changes_a_row(approximation, way):
    query, key, value = draw(3, LENGTH, LENGTH)
    lengths = torch.tensor([LENGTH, 83, 30])
    padded = way(approximation, query, key, value, Mask(key_lengths=lengths))

    for row, length in enumerate(lengths.tolist()):
        part = [x[row : row + 1, :, :length] for x in (query, key, value)]
        alone = way(approximation, *part, Mask())
        assert_same(padded[row : row + 1, :, :length], alone, 1e-12)

        longer = [F.pad(x, (0, 0, 0, 150), value=1e3) for x in part]
        more = way(approximation, *longer, Mask(key_lengths=lengths[row : row + 1]))
        assert_same(more[:, :, :length], alone, 1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_padding_gets_no_gradient(approximation, way):
    lengths = torch.tensor([LENGTH, 83, 0])
    mask = Mask(key_lengths=lengths)
    output, gradients = with_gradients(way, approximation, draw(3, LENGTH, LENGTH), mask)
    assert (output[2] == 0).all()
    padding = (torch.arange(LENGTH) >= lengths[:, None])[:, None, :, None]  # (B, 1, S, 1)
    for gradient in gradients[1:3]:
        assert (gradient * padding == 0).all()
    assert all(gradient.isfinite().all() for gradient in gradients)


SORTING = ["lsh", "routing"]
"""Those whose keys are sorted together: nothing but padding can be hidden from a query."""
MASKS = {
    "none": Mask(),
    "lengths": Mask(key_lengths=torch.tensor([40, 17, 0])),
    "lengths of queries": Mask(key_lengths=torch.arange(120).reshape(3, 40) % 41),
    "causal": Mask(causal=True),
    "causal and lengths": Mask(causal=True, key_lengths=torch.tensor([40, 17, 0])),
    "window": Mask(pattern=Window(3)),
    "custom": Mask(
        extra=torch.rand(3, 1, 40, 40, generator=torch.Generator().manual_seed(0)) < 0.1
    ),
}


ONLY_PADDING = ["none", "lengths"]
PAIRS = [
    (kind, name) for kind in KINDS for name in MASKS if kind not in SORTING or name in ONLY_PADDING
]
"""Each kind with the masks that it takes."""


@pytest.mark.parametrize(("kind", "name"), [pair for pair in PAIRS if pair[0] in OVER_KEYS])
def test_weights_are_zero_where_masked_and_sum_to_one(kind, name):
    approximation = KINDS[kind]().double()
    query, key, _ = draw(3, 40, 40)
    weights = approximation.weights(query, key, MASKS[name], SCALE)
    allowed = MASKS[name].dense(40, 40).expand_as(weights)
    assert (weights[~allowed] == 0).all()
    assert_same(weights.sum(-1), allowed.any(-1).double(), 1e-12)


@pytest.mark.parametrize("name", [name for name in MASKS if name not in ONLY_PADDING])
@pytest.mark.parametrize("kind", SORTING)
def test_keys_hidden_from_some_queries_are_refused(kind, name):
    attention = SelfAttention(16, heads=HEADS, approximation=KINDS[kind]())
    x = torch.randn(3, 40, 16)
    with pytest.raises(UserError, match=r"(LSH|Routing) sorts all tokens of a text together"):
        attention(x, x, x, mask=MASKS[name])


def test_linformers_weights_sum_to_one_over_its_mixtures():
    query, key, _ = draw(3, 40, 40)
    for mask in MASKS.values():
        weights = linformer().double().weights(query, key, mask, SCALE)
        assert weights.shape == (3, HEADS, 40, 12)
        seeing = mask.dense(40, 40).any(-1).expand(3, HEADS, 40)
        assert_same(weights.sum(-1), seeing.double(), 1e-12)


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_a_hidden_key_has_no_influence(kind, name):
    """No query depends on a key and value that the mask hides from it."""
    approximation = KINDS[kind]().double()
    query, key, value = draw(3, 40, 40)
    allowed = MASKS[name].dense(40, 40).expand(3, HEADS, 40, 40)
    before = readable(approximation, query, key, value, MASKS[name])
    for place in (0, 5, 17, 39):
        hidden = ~allowed[:, :, :, place]  # (B, H, T)
        other_key = key.clone()
        other_value = value.clone()
        other_key[:, :, place] *= -20
        other_value[:, :, place] += 100
        after = readable(approximation, query, other_key, other_value, MASKS[name])
        if hidden.any():
            assert_same(after[hidden], before[hidden], 1e-12)


# ---- precision ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("way", WAYS)
def test_lower_precision_is_finite(approximation, dtype, spread, way):
    approximation = approximation.float()
    tensors = [(x * spread).to(dtype) for x in draw(3, LENGTH, LENGTH)]
    mask = Mask(key_lengths=torch.tensor([LENGTH, 83, 0]))
    output, gradients = with_gradients(way, approximation, tensors, mask)
    assert output.dtype == dtype
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_under_autocast_nothing_fails(approximation):
    approximation = approximation.float()
    tensors = [x.float() for x in draw(2, LENGTH, LENGTH)]
    with torch.autocast("cpu", torch.bfloat16):
        for way in WAYS:
            output, gradients = with_gradients(way, approximation, tensors, Mask())
            assert output.isfinite().all()
            assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True)])
def test_performer_in_single_precision_holds_for_long_vectors(mask):
    """Features of e^±100 are far outside of single precision; their quotients are not."""
    approximation = Performer(HEADS, WIDTH, features=24)
    query, key, value = draw(2, LENGTH, LENGTH)
    tensors = (query * 6, key * 6, value)
    exact = approximation.double()(*tensors, mask, SCALE)
    single = approximation.float()(*(x.float() for x in tensors), mask, SCALE)
    assert_same(single.double(), exact, 1e-3)


# ---- Performer ----


def test_performers_future_has_no_influence():
    approximation = performer().double()
    query, key, value = draw(2, LENGTH, LENGTH)
    key.requires_grad_()
    value.requires_grad_()
    output = approximation(query, key, value, Mask(causal=True), SCALE)
    for place in (0, 63, 64, 130):
        gradients = torch.autograd.grad(output[:, :, place].sum(), (key, value), retain_graph=True)
        for gradient in gradients:
            assert (gradient[:, :, place + 1 :] == 0).all()
            assert (gradient[:, :, : place + 1] != 0).any()

    later_key = key.detach().clone()
    later_key[:, :, 100:] *= 20
    changed = approximation(query, later_key, value, Mask(causal=True), SCALE)
    assert_same(changed[:, :, :100], output[:, :, :100], 1e-12)


def test_performers_cached_step_is_the_last_row():
    approximation = performer().double()
    query, key, value = draw(2, LENGTH, LENGTH)
    whole = approximation(query, key, value, Mask(causal=True), SCALE)
    step = Mask(causal=True, offset=LENGTH - 1)
    assert_same(
        readable(approximation, query[:, :, -1:], key, value, step), whole[:, :, -1:], 1e-12
    )


def performer_error(features, seed):
    """|approximation − attention| / |attention| for vectors of standard deviation 0.25."""
    torch.manual_seed(seed)
    query, key, value = (torch.randn(2, 4, 128, 32, dtype=torch.float64) / 4 for _ in range(3))
    exact = F.scaled_dot_product_attention(query, key, value)
    approximation = Performer(4, 32, features=features, seed=seed).double()
    difference = approximation(query, key, value, Mask(), 1 / math.sqrt(32)) - exact
    return (difference.norm() / exact.norm()).item()


def test_performers_error_falls_with_the_root_of_the_features(law_seed):
    few = [performer_error(64, 10 * law_seed + seed) for seed in range(4)]
    many = [performer_error(1024, 10 * law_seed + seed) for seed in range(4)]
    assert max(many) < 0.05
    assert 2.5 < sum(few) / sum(many) < 6.5  # √(1024 / 64) = 4


def test_performers_features_are_those_of_the_seed():
    one = Performer(2, 8, features=20, seed=3)
    assert torch.equal(one.directions, Performer(2, 8, features=20, seed=3).directions)
    assert not torch.equal(one.directions, Performer(2, 8, features=20, seed=4).directions)
    assert not one.state_dict()

    block = one.directions[0, :, :8]  # (D, D)
    gram = block.T @ block
    torch.testing.assert_close(gram, gram.diagonal().diag(), atol=1e-4, rtol=0)


# ---- Linformer ----


def test_linformer_says_which_setting_is_too_small():
    approximation = linformer().double()
    longer = draw(1, LENGTH + 1, LENGTH + 1)
    for way in WAYS:
        with pytest.raises(UserError, match=r"201 tokens.*model.max_positions.*200"):
            way(approximation, *longer, Mask())
        padded = way(approximation, *longer, Mask(key_lengths=torch.tensor([LENGTH])))
        assert padded.isfinite().all()


@pytest.mark.parametrize("length", [20, 500])
def test_linformers_mixtures_vary_as_keys_do(length):
    """Equal weights of many mixtures: the variance of the output is that of their mean."""
    approximation = Linformer(1, 4, max_positions=500, mixtures=64).double()
    value = torch.randn(200, 1, length, 4, dtype=torch.float64)
    nothing = torch.zeros(200, 1, 1, 4, dtype=torch.float64)
    output = approximation(nothing, torch.zeros_like(value), value, Mask(), 1.0)
    assert 0.6 < 64 * output.var().item() < 1.6


# ---- hashing and clusters ----


def clustered(tokens=2048, clusters=32, width=32):
    """Queries and keys (1, 1, T, D) around centroids, at a quarter of the distance of these."""
    centroids = F.normalize(torch.randn(clusters, width, dtype=torch.float64), dim=-1)
    distance = torch.pdist(centroids).mean()
    deviation = distance / 4 / math.sqrt(width)
    points = []
    for _ in ("query", "key"):
        cluster = torch.randint(0, clusters, (tokens,))
        noise = torch.randn(tokens, width, dtype=torch.float64) * deviation
        points.append((centroids[cluster] + noise)[None, None])
    return points[0], points[1]


def coverage(approximation, query, key, seen_by=None):
    """The part of full attention's weights on what is seen, or on what other vectors would see."""
    full = (query @ key.mT * 16).softmax(-1)
    asked = (query, key) if seen_by is None else seen_by
    seen = approximation.weights(*asked, Mask(), 0.0) > 0
    return (full * seen).sum(-1).mean().item()


@pytest.mark.parametrize("kind", ["lsh", "routing"])
def test_what_is_near_is_seen(kind, law_seed):
    query, key = clustered()
    if kind == "lsh":
        approximation = LSH(1, 32, rounds=6, seed=law_seed).double()
        at_random = 6 * 3 / 32  # rounds · chunks seen / chunks
    else:
        approximation = Routing(1, 32).double()
        at_random = 2 / 32  # clusters that take a key / clusters

    assert coverage(approximation, query, key) > 0.9
    unrelated = (torch.randn_like(query), torch.randn_like(key))
    assert coverage(approximation, query, key, seen_by=unrelated) < at_random + 0.05


def test_centroids_are_those_of_the_rows_own_keys():
    """They have length 1 and follow the clusters; padding does not move them, whatever it holds."""
    _, key = clustered(tokens=512)
    approximation = Routing(1, 32).double()
    real = torch.ones(1, 1, 512, dtype=torch.bool)
    centroids = approximation.centroids(key, real)  # (1, 1, 32, 32)
    torch.testing.assert_close(centroids.norm(dim=-1), torch.ones(1, 1, 32, dtype=torch.float64))

    started = Routing(1, 32).double()
    started.steps = 0
    before = (F.normalize(key, dim=-1) @ started.centroids(key, real).mT).amax(-1).mean()
    after = (F.normalize(key, dim=-1) @ centroids.mT).amax(-1).mean()
    assert after > before + 0.02

    padded = F.pad(key, (0, 0, 0, 100), value=math.nan)
    longer = F.pad(real, (0, 100))
    assert_same(approximation.centroids(padded, longer), centroids, 1e-12)
    assert not list(approximation.parameters())


def test_settings_draw_the_same_rotations():
    one = LSH(2, 8, seed=3)
    assert torch.equal(one.rotations, LSH(2, 8, seed=3).rotations)
    assert not one.state_dict()


def test_hashing_a_short_text_is_left_to_the_readable_formula():
    """Its queries see nearly all keys, and blocks of three chunks would be mostly empty."""
    hashing = LSH(HEADS, WIDTH, chunk=64)
    assert not hashing.applies(Mask(), 20, 20)
    assert hashing.applies(Mask(), 200, 200)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: LSH(HEADS, WIDTH, chunk=0), "chunk=0"),
        (lambda: Performer(HEADS, WIDTH, features=0), "features=0"),
        (lambda: Linformer(HEADS, WIDTH, max_positions=0), "max_positions=0"),
        (lambda: Routing(HEADS, WIDTH, clusters=0), "clusters=0"),
        (
            lambda: SelfAttention(32, heads=4, approximation=Performer(1, 8)),
            "for 1 head of width 8, the attention has 4 heads of width 8",
        ),
        (
            lambda: SelfAttention(8, position="alibi", approximation=Performer(1, 8)),
            "does not work with ALiBi positions",
        ),
        (
            lambda: SelfAttention(8, score="additive", approximation=Performer(1, 8)),
            "needs a score that is a product",
        ),
    ],
)
def test_what_makes_no_approximation(make, text):
    with pytest.raises(UserError, match=text):
        make()


def test_a_short_text_is_seen_whole_by_routing():
    query, key, value = draw(2, 16, 16)
    torch.testing.assert_close(
        Routing(HEADS, WIDTH, clusters=32).double()(query, key, value, Mask(), SCALE),
        F.scaled_dot_product_attention(query, key, value),
    )


def test_few_enough_keys_are_all_seen():
    """Two chunks are side by side, so hashing hides nothing from anyone."""
    query, key, value = draw(2, 16, 16)
    torch.testing.assert_close(
        lsh().double()(query, key, value, Mask(), SCALE),
        F.scaled_dot_product_attention(query, key, value),
    )


def test_blocks_hold_queries_of_one_group():
    group = torch.randint(0, 5, (3, 40)) * 2  # some groups are empty
    group[2] = 9
    blocks = Groups.of(group, 10, 4)
    of_block = blocks.group[..., None].expand(-1, -1, 4)  # (N, P, W)
    assert torch.equal(blocks.join(of_block), group)
    assert torch.equal(blocks.join(blocks.split(group)), group)
    assert all(row.unique().numel() == 40 for row in blocks.slot)
