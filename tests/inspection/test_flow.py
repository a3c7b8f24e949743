import numpy as np
import pytest
import torch

from regard.config import RNNConfig, TransformerConfig
from regard.inspection.flow import gradient_flow, textbook
from regard.models import build_model


@pytest.mark.parametrize("seed", range(3))
def test_a_plain_rnn_forgets_an_lstm_less_and_a_transformer_not(seed: int) -> None:
    rnn, lstm, transformer = (
        gradient_flow(model, 60, sentences=4, seed=seed) for model in textbook(32, seed).values()
    )
    assert rnn.shape == lstm.shape == transformer.shape == (60,)
    assert rnn[0] == lstm[0] == transformer[0] == 1
    assert rnn[-1] * 1e3 < lstm[-1] < transformer[-1] / 1e2
    assert transformer[1:].min() > 1e-3
    assert (np.diff(np.log(rnn[::6])) < 0).all()


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
    textbook(16)
    assert flow.shape == (7,)
    assert np.isfinite(flow).all()
    assert model.training
    assert all(
        p.grad is None and p.dtype == torch.float32 and torch.equal(p, before[name])
        for name, p in model.named_parameters()
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not model.encoder.embedding._forward_hooks
