"""Captured decoding on a GPU beside the ordinary engine: the same answers, greedy and by beam."""

import random
from functools import partial

import pytest
import torch

from regard.config import TransformerConfig
from regard.data.batches import collate
from regard.models import build_model
from regard.models.fast.fixed import reserve
from regard.search import Beam, Job, Rules, decode
from regard.search.fast.captured import CapturedSearch

pytestmark = pytest.mark.gpu

SIZE = 5000
SMALL = {"width": 128, "ffn": 256, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
MODELS = {
    "sinusoidal": {},
    "rotary": {"position": "rotary"},
    "alibi": {"position": "alibi"},
    "relative": {"position": "relative"},
    "additive": {"score": "additive"},
    "narrow heads": {"heads": 16},  # which the Triton kernel does not take
    "waiting": {"causal": True, "wait": 2},
}


def sources(count):
    rng = random.Random(3)
    rows = [
        [rng.randrange(16, SIZE) for _ in range(rng.randint(2, 40) - 1)] + [2] for _ in range(count)
    ]
    return sorted(rows, key=len, reverse=True)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("kind", MODELS)
def test_graphs_write_what_the_engine_writes(kind, width):
    cuda = torch.device("cuda")
    torch.manual_seed(1)
    model = build_model(TransformerConfig(**(SMALL | MODELS[kind])), SIZE, SIZE).to(cuda).eval()

    def begin(jobs):
        batch = collate([(job.source, [1, 2]) for job in jobs]).to(cuda)
        return model.decoder.start(model.encoder(batch.source, batch.source_lengths))

    suppressed = torch.arange(SIZE, device=cuda) < 2
    graphs = CapturedSearch(partial(reserve, model), model.step, Beam(width), suppressed, 0)
    ways = (
        lambda jobs: list(graphs.decode(jobs, 2048)),
        lambda jobs: list(
            graphs.decode(jobs, 2048)
        ),  # again: the graphs are there already, their memory is used
        lambda jobs: list(decode(model.step, begin, jobs, Beam(width), Rules(device=cuda), 2048)),
    )
    answers = []
    for way in ways:
        jobs = [Job(row, limit=len(row) + 10) for row in sources(48)]
        with torch.inference_mode():
            way(jobs)
        answers.append([job.found[0] for job in jobs])

    first, again, engine = answers
    assert [one.tokens for one in first] == [one.tokens for one in again]
    assert [one.tokens for one in first] == [one.tokens for one in engine]
    # A logit comes out of some twelve products in a row, each a sum of up to 256 numbers in
    # float32.
    error = 12 * 256 * 2**-24
    for one, other in zip(first, engine, strict=True):
        for ours, theirs in zip(one.logprobs, other.logprobs, strict=True):
            assert ours == pytest.approx(theirs, rel=error, abs=error)
