"""The course's calculator: `torch.nn.Transformer` with one embedding, said in settings.

It is trained like our preset `course-tuned`, which takes fewer epochs than the course's own way.
Then every head is drawn: where does it look while it writes each digit?

python examples/course_calculator.py        (about 4 minutes on two cores)
"""

import argparse
from pathlib import Path

import torch

import regard
from regard.pictures.heatmaps import head_grid

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--out", type=Path, default=Path("runs/course_calculator"), help="a new folder")
parser.add_argument("--tiny", action="store_true", help="a few steps, only to see that it works")
args = parser.parse_args()

MODEL = {
    "width": 64,
    "heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "ffn": 64,
    "placement": "post",  # the norm stands after each sum,
    "final_norm": "yes",  # and once more at the end
    "tie": "inputs",  # one embedding for question and answer; the output layer is apart,
    "output_bias": True,  # and has a bias
    "scale_embeddings": False,
    "dropout": 0.01,
    "attention_dropout": 0.01,
    "activation_dropout": 0.01,
}
QUESTIONS = {"123+123": 246, "321+321": 642, "649+864": 1513, "-940-819": -1759}
data, train = {}, {"epochs": 50}
if args.tiny:
    data = {"options": {"train": 500, "dev": 50, "test": 50}}
    train = {"epochs": 2, "tensorboard": "off"}

run = regard.train(
    "arithmetic",
    preset="course-tuned",
    out=args.out / "run",
    data=data,
    text={"reserved": 0},
    model=MODEL,
    train=train,
)
translator = regard.load(run)
print("\nquestion    answer    truth")
for question, truth in QUESTIONS.items():
    print(f"{question:10}  {translator(question).text:8}  {truth}")
right = regard.evaluate(run, split="dev").report.exact_match
print(f"\n{right:.1%} of the formulas that it has not seen are exactly right.")

# The same in plain torch has as many weights; `regard.models.copy_weights` carries them over.
embedding = torch.nn.Embedding(16, 64)
transformer = torch.nn.Transformer(64, 4, 2, 2, 64, batch_first=True)
dense = torch.nn.Linear(64, 16)
parameters = torch.nn.ModuleList([embedding, transformer, dense]).parameters()
assert sum(parameter.numel() for parameter in parameters) == run.manifest["parameters"]

record = translator("649+864").attention
rows, columns = record.sides("cross")
head_grid(record.blocks["cross"], rows, columns, out=args.out / "course_calculator.png")
print(args.out / "course_calculator.png")
