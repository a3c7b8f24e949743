import numpy as np
import pytest
import torch

from regard.config import RNNConfig, TransformerConfig
from regard.errors import UserError
from regard.inspection import gradient_by_depth, gradient_flow, gradient_norms, reach
from regard.inspection.untrained import gradient_panels
from regard.models import build_model


def test_the_flow_is_the_gradient_of_the_last_token() -> None:
    """By hand: one sentence, embeddings perturbed one position at a time."""
    torch.manual_seed(0)
    model = (
        build_model(RNNConfig(cell="rnn", width=8, embedding=8, attention="none"), 40, 30)
        .double()
        .eval()
    )
    found = gradient_flow(model, 6, sentences=1)
    random = torch.Generator().manual_seed(0)
    source, target = (
        torch.randint(16, 40, (1, 3), generator=random),
        torch.randint(16, 30, (1, 4), generator=random),
    )

    def loss(side: str, place: int, shift: torch.Tensor) -> torch.Tensor:
        table = getattr(model, side).embedding
        moved = torch.zeros(1, 3, 8, dtype=torch.double)
        moved[0, place] = shift
        hook = table.register_forward_hook(lambda module, inputs, output: output + moved)
        logits = model(source, torch.tensor([3]), target[:, :-1])
        hook.remove()
        return -logits[0, -1].log_softmax(-1)[target[0, -1]].detach()

    norms = []
    for side, place in [
        ("decoder", 2),
        ("decoder", 1),
        ("decoder", 0),
        ("encoder", 2),
        ("encoder", 1),
        ("encoder", 0),
    ]:
        steps = torch.eye(8, dtype=torch.double) * 1e-6
        norms.append(
            torch.stack(
                [(loss(side, place, e) - loss(side, place, -e)) / 2e-6 for e in steps]
            ).norm()
        )
    np.testing.assert_allclose(found, torch.stack(norms) / norms[0], rtol=1e-4)


@pytest.mark.parametrize("tie", ["none", "all"])
def test_models_are_left_as_they_were(tie: str) -> None:
    model = build_model(TransformerConfig(width=16, ffn=16, tie=tie), 30, 30).train()
    before = {name: p.clone() for name, p in model.named_parameters()}
    state = torch.random.get_rng_state()
    flow = gradient_flow(model, 7)
    gradient_panels(6, width=16)
    assert flow.shape == (7,)
    assert np.isfinite(flow).all()
    assert model.training
    assert all(
        p.grad is None and p.dtype == torch.float32 and torch.equal(p, before[name])
        for name, p in model.named_parameters()
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not model.encoder.embedding._forward_hooks


def test_how_far_a_flow_reaches() -> None:
    assert reach([1, 0.5, 0.009, 0.02, 0.001]) == 2
    assert reach([1, 0.5, 0.02]) is None
    assert reach([1, 0.5, 0.02], share=0.1) == 2


def test_the_gradient_by_depth_is_that_of_the_blocks() -> None:
    """By hand: what a block adds is switched off, so that all below it has the same gradient."""
    model = build_model(
        TransformerConfig(width=8, ffn=8, heads=2, encoder_layers=4, decoder_layers=1), 30, 30
    )
    with torch.no_grad():
        for block in model.encoder.blocks[1:]:
            for name, weight in block.named_parameters():
                if "residual" not in name:
                    weight.zero_()
    np.testing.assert_allclose(gradient_by_depth(model, 6), np.ones(4))
    model.encoder.blocks[2].feed_residual = Doubled()
    np.testing.assert_allclose(gradient_by_depth(model, 6), [1, 1, 2, 2])
    with pytest.raises(UserError, match="needs an encoder of blocks"):
        gradient_by_depth(build_model(RNNConfig(width=8, embedding=8), 30, 30))


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor, sublayer: object) -> torch.Tensor:
        return 2 * x


def test_the_norm_that_clipping_looks_at() -> None:
    model = build_model(TransformerConfig(width=8, ffn=8, heads=2), 30, 30).double().eval()
    (found,) = gradient_norms(model, [6], sentences=1)
    random = torch.Generator().manual_seed(0)
    source = torch.randint(16, 30, (1, 3), generator=random)
    target = torch.randint(16, 30, (1, 4), generator=random)
    logits = model(source, torch.tensor([3]), target[:, :-1])
    torch.nn.functional.cross_entropy(logits[:, -1], target[:, -1]).backward()
    assert found == pytest.approx(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
