"""B. Learning to calculate: invariances, loss, training, accuracy (B19, B20, B22, B25, B34).

Networks and formulas in float64. What a trained run tells is in test_b_predicting.
"""

import torch
import torch.nn.functional as F

from regard.config import TrainConfig, TransformerConfig
from regard.data.batches import collate
from regard.models import build_model
from regard.presets import preset
from regard.scoring import accuracy
from regard.search import beam
from regard.text.vocabulary import BOS, EOS, PAD
from regard.training.trainer import Trainer

SIZE = 16
DIGITS = {character: 4 + i for i, character in enumerate("0123456789+-")}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


def network(**settings):
    """The course's network with other weights in every call, none of them zero or one."""
    course = {**preset("course")["model"], **NO_DROPOUT, **settings}
    model = build_model(TransformerConfig(**course), SIZE, SIZE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model


def ids(text):
    return [DIGITS[character] for character in text]


def batch_of(*pairs):
    return collate([([*ids(a), EOS], [BOS, *ids(b), EOS]) for a, b in pairs])


BATCH = batch_of(("649+864", "1513"), ("-940-819", "-1759"), ("954-2", "952"), ("1+2", "3"))


def first_logits(model, question):
    batch = batch_of((question, ""))
    return model(batch.source, batch.source_lengths, batch.target_in)[0, 0]


def test_b19_without_positions_the_order_of_a_question_is_lost(close):
    """123+123 and 321+321 are one set of characters; with positions they are two questions."""
    lost = network(position="none")
    close(first_logits(lost, "123+123"), first_logits(lost, "321+321"))
    close(first_logits(lost, "123+123"), first_logits(lost, "+112233"))
    assert not first_logits(lost, "123+123").allclose(first_logits(lost, "123+124"))
    kept = network()
    assert not first_logits(kept, "123+123").allclose(first_logits(kept, "321+321"))


def test_b19_padding_changes_nothing(close):
    """A question alone and beside a longer one: the same logits."""
    model = network()
    together = model(BATCH.source, BATCH.source_lengths, BATCH.target_in)
    alone = batch_of(("1+2", "3"))
    close(model(alone.source, alone.source_lengths, alone.target_in)[0], together[3, :2])


def test_b20_the_loss_ignores_padding(close):
    """Cross-entropy of the real tokens of `target_out`, as torch's with an ignored index."""
    model = network()
    logits = model(BATCH.source, BATCH.source_lengths, BATCH.target_in)
    rows = logits.flatten(0, 1)
    answers = BATCH.target_out.flatten()
    sums = model.loss(BATCH)
    assert sums.tokens == int(BATCH.target_out.ne(PAD).sum())
    close(sums.loss, F.cross_entropy(rows, answers, ignore_index=PAD, reduction="sum"))
    close(sums.loss / sums.tokens, F.cross_entropy(rows, answers, ignore_index=PAD))


def test_b21_accuracy_with_an_ignored_index():
    """Five of eight tokens are right, of which one is padding: four of seven."""
    target = torch.tensor([[4, 5, 6, EOS], [7, 8, EOS, PAD]])
    predicted = torch.tensor([[4, 5, 9, EOS], [7, 9, 9, PAD]])
    assert accuracy(predicted, target, ignore=PAD) == 4 / 7
    assert accuracy(predicted, target) == 5 / 8


def test_b22_training_is_plain_adam(close, steps):
    """Adam at 1e-3, constant, without clipping, decay or smoothing: the same weights as by hand.

    Our ε is 1e-9, as in Vaswani et al. 2017; torch's default is 1e-8.
    """
    torch.manual_seed(1)
    ours = network()
    torch.manual_seed(1)
    theirs = network()
    settings = {**preset("course")["train"], "precision": "fp32"}
    trainer = Trainer(
        ours,
        lambda step: BATCH,
        TrainConfig(**settings),
        steps=4,
        device=torch.device("cpu"),
    )
    for _ in range(4):
        trainer.update([BATCH])

    def loss():
        rows = theirs(BATCH.source, BATCH.source_lengths, BATCH.target_in).flatten(0, 1)
        return F.cross_entropy(rows, BATCH.target_out.flatten(), ignore_index=PAD)

    losses = steps(theirs, loss, count=4, eps=1e-9)
    assert losses[-1] < losses[0]
    for our_weight, their_weight in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(our_weight, their_weight)


def test_b25_losses_and_accuracies_of_many_batches_are_those_of_one(close):
    """Sums over all tokens are divided once: a short batch does not count as much as a long one."""
    model = network()
    whole = model.loss(BATCH)
    parts = [model.loss(batch) for batch in BATCH.split()]
    tokens = sum(part.tokens for part in parts)
    assert tokens == whole.tokens
    close(sum(part.loss for part in parts), whole.loss)

    predicted = model(BATCH.source, BATCH.source_lengths, BATCH.target_in).argmax(-1)
    right = sum(int(part.correct) for part in parts)
    assert accuracy(predicted, BATCH.target_out, ignore=PAD) == right / tokens


def test_b34_kept_keys_and_values_change_no_prediction():
    """A search that keeps what it has read = one that reads the whole answer at every step."""
    model = network().eval()
    memory = model.encoder(BATCH.source, BATCH.source_lengths)
    state = model.decoder.start(memory)
    with torch.no_grad():
        found = beam(model.step, state, width=3, n_best=3, batch=4, limit=[6] * 4)
        for row, hypotheses in enumerate(found):
            for hypothesis in hypotheses:
                answer = [*hypothesis.tokens, *[EOS] * hypothesis.finished]
                assert logprobs(model, row, answer).allclose(torch.tensor(hypothesis.logprobs))


def logprobs(model, row, answer):
    """Log-probabilities of an answer, all at once; <pad> and <bos> are never written."""
    source = BATCH.source[row : row + 1]
    length = BATCH.source_lengths[row : row + 1]
    logits = model(source, length, torch.tensor([[BOS, *answer[:-1]]]))[0]
    logits[:, [PAD, BOS]] = -torch.inf
    return logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
