"""What are positions for? Learning to calculate with them and without.

Attention sees a set. Without positions 123+123 and 321+321 are the same set of characters, so the
two questions get the same answer, whatever is learned.

python examples/positions_on_off.py        (about 10 minutes on two cores)
"""

import argparse
from pathlib import Path

import regard
from regard.pictures.curves import curves

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument(
    "--out",
    type=Path,
    default=Path("runs/positions_on_off"),
    help="folder for the runs and the plot",
)
parser.add_argument(
    "--tiny", action="store_true", help="a few steps of a tiny model, only to see that it works"
)
args = parser.parse_args()

QUESTIONS = ["123+123", "321+321"]
data, train = {}, {}
if args.tiny:
    data, train = (
        {"options": {"train": 500, "dev": 50, "test": 50}},
        {"epochs": 2, "tensorboard": "off"},
    )

runs = {}
for position in ("sinusoidal", "none"):
    runs[position] = regard.train(
        "arithmetic",
        preset="course-tuned",
        out=args.out / position,
        data=data,
        model={"position": position},
        train=train,
    )

print(
    "\npositions    loss  token accuracy  exactly right  "
    + "  ".join(f"{q:>10}" for q in QUESTIONS)
)
first_digits = {}
for position, run in runs.items():
    score = regard.evaluate(run).report
    answers = [result.text for result in regard.load(run).translate(QUESTIONS)]
    first_digits[position] = [answer[:1] for answer in answers]
    figures = f"{score.loss:6.3f}  {score.token_accuracy:14.1%}  {score.exact_match:13.1%}"
    print(f"{position:10}  {figures}  " + "  ".join(f"{answer:>10}" for answer in answers))
print(f"{'the truth':10}  {0:6.3f}  {1:14.1%}  {1:13.1%}  {246:10}  {642:10}")

one, other = first_digits["none"]
print(
    f"\nWithout positions the first digits are {one!r} and {other!r}: "
    f"{'the same' if one == other else 'NOT the same'}."
)

curves(
    {f"positions: {name}": run.records() for name, run in runs.items()},
    args.out / "positions_on_off.png",
)
print(args.out / "positions_on_off.png")
