"""Law 1: the whole target at once, token by token, or split anywhere gives the same logits."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

few = settings(max_examples=4, deadline=None, derandomize=True)
lengths = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 7)), min_size=1, max_size=3)


def in_pieces(model, batch, cuts):
    state = model.decoder.start(model.encoder(batch.source, batch.source_lengths))
    pieces = []
    for start, end in zip([0, *cuts], [*cuts, batch.target_in.shape[1]], strict=True):
        logits, state = model.decoder(batch.target_in[:, start:end], state)
        pieces.append(logits)
    return torch.cat(pieces, dim=1)


@few
@given(st.integers(0, 10_000), lengths, st.data())
@torch.no_grad()
def test_split_anywhere(model, batch_of, close, seed, lengths, data):
    batch = batch_of(seed, lengths)
    length = batch.target_in.shape[1]
    whole = model(batch.source, batch.source_lengths, batch.target_in)
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1)))) if length > 1 else []
    close(in_pieces(model, batch, cuts), whole)
    close(in_pieces(model, batch, range(1, length)), whole)


def test_split_with_gradients(model, batch_of, close):
    """Under autograd nothing is written in place: pieces give the gradient of the whole."""
    batch = batch_of(3, [(4, 5), (2, 5)])
    model.zero_grad()
    model(batch.source, batch.source_lengths, batch.target_in).logsumexp(-1).sum().backward()
    whole = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    in_pieces(model, batch, [2, 3]).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        if name in whole:
            close(parameter.grad, whole[name], name)
    model.zero_grad()


@torch.no_grad()
def test_beams_read_several_tokens_at_once(model, batch_of, close):
    """Hypotheses of one sentence, each with a prefix of its own: what each reads is its own."""
    batch = batch_of(4, [(5, 5), (2, 5)])
    state = model.decoder.start(model.encoder(batch.source, batch.source_lengths))
    state = state.select(torch.arange(2), torch.zeros(2, 3, dtype=torch.long))
    tokens = torch.randint(5, 30, (6, 4))
    logits, state = model.decoder(tokens, state)
    more, _ = model.decoder(tokens[:, :2], state)
    rows = torch.arange(2).repeat_interleave(3)
    whole = model(
        batch.source[rows], batch.source_lengths[rows], torch.cat((tokens, tokens[:, :2]), 1)
    )
    close(torch.cat((logits, more), 1), whole)


@few
@given(st.integers(0, 10_000), st.lists(st.integers(0, 6), min_size=1, max_size=4))
@torch.no_grad()
def test_a_prompt_is_the_beginning_of_the_text(causal_model, close, seed, lengths):
    """Prompts of mixed lengths, read at once: what follows is what follows in the whole text."""
    words = torch.Generator().manual_seed(seed)
    texts = torch.randint(5, 30, (len(lengths), 8), generator=words)
    state = causal_model.start(texts[:, :6], torch.tensor(lengths))
    rests = [text[length : length + 2] for text, length in zip(texts, lengths, strict=True)]
    logits, _ = causal_model.decoder(torch.stack(rests), state)

    nothing = torch.tensor([[2]])
    for row, length in enumerate(lengths):
        text = texts[row : row + 1, : length + 2]
        close(logits[row], causal_model(nothing, torch.tensor([1]), text)[0, -2:])
