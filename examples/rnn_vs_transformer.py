"""An RNN that must squeeze a sentence into one vector, an RNN that may look back, and a
Transformer.

python examples/rnn_vs_transformer.py        (about 12 minutes on two cores)
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
    default=Path("runs/rnn_vs_transformer"),
    help="folder for the runs and the plot",
)
parser.add_argument(
    "--tiny", action="store_true", help="a few steps of tiny models, only to see that it works"
)
args = parser.parse_args()

width, data, train = 128, {}, {"metric": "bleu"}
if args.tiny:
    width, data = 16, {"options": {"train": 200, "dev": 16, "test": 16}}
    train = {"epochs": 1, "tensorboard": "off"}

rnn = {"kind": "rnn", "cell": "lstm", "width": width, "embedding": width}
MODELS = {
    "RNN": {**rnn, "attention": "none"},
    "RNN with attention": {**rnn, "attention": "after"},
    "Transformer": {"kind": "transformer", "width": width, "ffn": 2 * width},
}

runs = {}
for name, model in MODELS.items():
    folder = args.out / name.lower().replace(" ", "-")
    runs[name] = regard.train(
        "phrases", preset="demo", out=folder, data=data, model=model, train=train
    )

print("\nmodel               parameters    loss    BLEU  exactly right  training")
for name, run in runs.items():
    score = regard.evaluate(run).report
    seconds = [record["seconds"] for record in run.records() if record["kind"] == "train"][-1]
    figures = f"{score.loss:6.3f}  {score.bleu:6.1f}  {score.exact_match:13.1%}  {seconds:6.1f} s"
    print(f"{name:18}  {run.manifest['parameters']:10,}  {figures}")

curves({name: run.records() for name, run in runs.items()}, args.out / "rnn_vs_transformer.png")
print(f"\n{args.out / 'rnn_vs_transformer.png'}")
