"""Law 3: no later target token reaches an earlier output, neither forwards nor backwards."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

few = settings(max_examples=3, deadline=None, derandomize=True)


@few
@given(st.integers(0, 10_000), st.integers(0, 5))
def test_gradient_of_the_future_is_zero(model, batch_of, seed, t):
    batch = batch_of(seed, [(4, 6), (2, 6)])
    seen = []

    def catch(module, inputs, output):
        leaf = output.detach().requires_grad_()
        seen.append(leaf)
        return leaf

    state = model.decoder.start(model.encoder(batch.source, batch.source_lengths))
    hook = model.decoder.embedding.register_forward_hook(catch)
    try:
        logits, _ = model.decoder(batch.target_in, state)
    finally:
        hook.remove()
    gradient = torch.autograd.grad(logits[:, t].square().sum(), seen[-1])[0].reshape(
        *batch.target_in.shape, -1
    )
    assert (gradient[:, t + 1 :] == 0).all()
    assert (gradient[:, : t + 1] != 0).any()


@few
@given(st.integers(0, 10_000), st.integers(0, 6))
@torch.no_grad()
def test_other_future_same_past(model, batch_of, close, seed, t):
    batch, other = batch_of(seed, [(4, 6), (2, 6)]), batch_of(seed + 1, [(4, 6), (2, 6)])
    target = torch.cat((batch.target_in[:, : t + 1], other.target_in[:, t + 1 :]), dim=1)
    before = model(batch.source, batch.source_lengths, batch.target_in)[:, : t + 1]
    after = model(batch.source, batch.source_lengths, target)[:, : t + 1]
    close(after, before)
