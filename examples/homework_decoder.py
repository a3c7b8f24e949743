"""The homework of many courses: write a decoder with attention, and see where it looks.

It is d2l's: the state of a GRU attends to the states of the encoder; the context, joined to
the embedding of the previous token, is the GRU's next input, and a dense layer reads its output.

python examples/homework_decoder.py        (about half a minute on two cores)
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import regard
from regard import models, nn
from regard.pictures.heatmaps import heatmap


class Encoder(models.Encoder):
    def __init__(self, size, width):
        super().__init__()
        self.embedding = nn.Embedding(size, width, scaled=False)
        self.gru = nn.Recurrent("gru", width, width, layers=2)

    def forward(self, source, lengths, **_):
        states, final = self.gru(self.embedding(source), lengths)
        return models.Memory(states, lengths, final)


@dataclass
class State:
    """What the decoder knows of B sentences with K hypotheses each, in B · K rows."""

    hidden: torch.Tensor  # (layers, B · K, D)
    source: nn.KeyValue  # what is attended to
    lengths: torch.Tensor  # (B · K,), of the source
    beams: int = 1  # K

    def select(self, sentences, beams):
        if sentences is None:
            sentences = torch.arange(len(beams), device=beams.device)
        rows = (sentences[:, None] * self.beams + beams).flatten()
        source = self.source.select(rows)
        return State(self.hidden[:, rows], source, self.lengths[rows], beams.shape[1])

    def join(self, other):
        hidden = torch.cat((self.hidden, other.hidden), 1)
        lengths = torch.cat((self.lengths, other.lengths))
        return State(hidden, self.source.join(other.source), lengths, self.beams)


class Decoder(models.Decoder):
    def __init__(self, size, width):
        super().__init__()
        self.embedding = nn.Embedding(size, width, scaled=False)
        self.attention = nn.Attention(width, score="additive", projections=False)
        self.gru = nn.Recurrent("gru", 2 * width, width, layers=2)
        self.out = torch.nn.Linear(width, size)

    def start(self, memory):
        return State(memory.final[0], self.attention.project(memory.states), memory.lengths)

    def hidden(self, tokens, state, *, layout=None, **_):
        hidden = state.hidden
        outputs = []
        for x in self.embedding(tokens).split(1, dim=1):  # (B · K, 1, D)
            query = hidden[-1][:, None]  # of the top layer
            context = self.attention.attend_to(query, state.source, nn.Mask(state.lengths))
            output, (hidden,) = self.gru(torch.cat((x, context), -1), hidden=(hidden,))
            outputs.append(output)
        states = torch.cat(outputs, 1)
        return states if layout is None else layout.pack(states), replace(state, hidden=hidden)


class Homework(models.Seq2Seq):
    def __init__(self, source_size, target_size, width):
        super().__init__(Encoder(source_size, width), Decoder(target_size, width))


parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--out", type=Path, default=Path("runs/homework_decoder"), help="a new folder")
parser.add_argument("--tiny", action="store_true", help="a few steps, only to see that it works")
args = parser.parse_args()

WORDS = ["a b c", "z y x w", "r e g a r d"]
width, data, train = 64, {}, {"rate": 3e-3}
if args.tiny:
    width, data = 16, {"options": {"train": 200, "dev": 16, "test": 16}}
    train = {"steps": 4, "tensorboard": "off"}

# Letters to be written backwards; "pairs.tsv" would be your own file.
run = regard.train(
    "reverse",
    preset="letters",
    parts=[Homework],
    out=args.out / "run",
    data=data,
    model={"options": {"width": width}},
    train=train,
)
report = regard.evaluate(run, parts=[Homework]).report
translator = regard.load(run, parts=[Homework])
print(f"\n{report.exact_match:.1%} of {report.examples} words that it has not seen are right.")

print("\nword         answer")
for word in WORDS:
    print(f"{word:11}  {translator(word).text}")

record = translator(WORDS[-1]).attention
rows, columns = record.sides("cross")
heatmap(record.matrix(), rows, columns, out=args.out / "homework_decoder.png")
print(f"\n{args.out / 'homework_decoder.png'}")
