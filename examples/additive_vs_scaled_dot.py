"""Two ways to compare a query with a key, in the same Transformer on the same sentences.

additive     v · tanh(W q + U k)    Bahdanau et al. 2015: a small network for every pair of tokens
scaled dot   q · k / sqrt(d)        Vaswani et al. 2017: one matrix product for all of them

python examples/additive_vs_scaled_dot.py        (about 10 minutes on two cores)
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
    default=Path("runs/additive_vs_scaled_dot"),
    help="folder for the runs and the plot",
)
parser.add_argument(
    "--tiny", action="store_true", help="a few steps of a tiny model, only to see that it works"
)
args = parser.parse_args()

model, data, train = {}, {}, {}
if args.tiny:
    model, data = {"width": 16, "ffn": 16}, {"options": {"train": 200, "dev": 16, "test": 16}}
    train = {"epochs": 1, "tensorboard": "off"}

runs = {}
for score in ("additive", "scaled_dot"):
    runs[score] = regard.train(
        "phrases",
        preset="demo",
        out=args.out / score,
        data=data,
        model={**model, "score": score},
        train=train,
    )

print("\nscore       parameters    loss    BLEU  exactly right  training  tokens/s")
for score, run in runs.items():
    report = regard.evaluate(run).report
    last = [record for record in run.records() if record["kind"] == "train"][-1]
    figures = (
        f"{report.loss:6.3f}  {report.bleu:6.1f}  {report.exact_match:13.1%}  "
        f"{last['seconds']:6.1f} s"
    )
    print(
        f"{score:10}  {run.manifest['parameters']:10,}  {figures}  "
        f"{last['tokens_per_second']:8,.0f}"
    )

# Is the difference more than luck with these test sentences? (Luck with the seed is another
# question: try train.seed.)
comparison = regard.evaluate(runs["additive"], against=runs["scaled_dot"]).comparison
interval = f"95 % between {comparison.low:+.2f} and {comparison.high:+.2f}"
print(
    f"\nadditive - scaled dot: {comparison.difference:+.2f} BLEU, {interval}, p = "
    f"{comparison.p:.3f}"
)

curves(
    {score: run.records() for score, run in runs.items()}, args.out / "additive_vs_scaled_dot.png"
)
print(args.out / "additive_vs_scaled_dot.png")
