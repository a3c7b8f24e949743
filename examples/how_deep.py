"""How deep? English to French with 1, 2 and 3 blocks: what another block costs in time, and what it
gives.

python examples/how_deep.py        (about 10 minutes on two cores)
"""

import argparse
from pathlib import Path

from matplotlib.figure import Figure

import regard

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument(
    "--out", type=Path, default=Path("runs/how_deep"), help="folder for the runs and the plot"
)
parser.add_argument(
    "--tiny", action="store_true", help="a few steps of a tiny model, only to see that it works"
)
args = parser.parse_args()

DEPTHS = [1, 2, 3]
model, data, train = {}, {}, {"epochs": 12}
if args.tiny:
    model, data = {"width": 16, "ffn": 16}, {"options": {"train": 200, "dev": 16, "test": 16}}
    train = {"epochs": 1, "tensorboard": "off"}

rows = []
for depth in DEPTHS:
    run = regard.train(
        "phrases",
        preset="d2l",
        out=args.out / f"{depth}-blocks",
        data=data,
        model={**model, "encoder_layers": depth, "decoder_layers": depth},
        train=train,
    )
    score = regard.evaluate(run).report
    seconds = [record["seconds"] for record in run.records() if record["kind"] == "train"][-1]
    rows.append(
        (depth, run.manifest["parameters"], score.loss, score.bleu, score.exact_match, seconds)
    )

print("\nblocks  parameters    loss    BLEU  exactly right  training")
for depth, parameters, loss, bleu, exact, seconds in rows:
    print(f"{depth:6}  {parameters:10,}  {loss:6.3f}  {bleu:6.1f}  {exact:13.1%}  {seconds:6.1f} s")

figure = Figure(figsize=(10, 3), layout="constrained")
depths, _, losses, bleus, _, times = zip(*rows)
for axes, values, label in zip(
    figure.subplots(1, 3), (losses, bleus, times), ("test loss", "test BLEU", "training, seconds")
):
    axes.plot(depths, values, "o-")
    axes.set(xlabel="blocks", ylabel=label, xticks=depths)
    axes.set_ylim(bottom=0)
figure.savefig(args.out / "how_deep.png", dpi=150)
print(f"\n{args.out / 'how_deep.png'}")
