"""Draw every figure of the README and the book: `make docs`. Trains what is not in runs/docs first:
some minutes.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import regard
from regard.data.tasks import TASKS
from regard.inspection import gradient_panels
from regard.nn import sinusoids
from regard.pictures.curves import curves
from regard.pictures.embeddings import embedding_map
from regard.pictures.gradients import gradients
from regard.pictures.heatmaps import growth, head_grid, heatmap
from regard.pictures.positions import positions_figure
from regard.pictures.tree import beam_tree

HERE = Path(__file__).parent / "figures"
RUNS = Path("runs/docs")
SENTENCE = "will your young strange tourists be in front of the restaurant ?"
STEPS = (60, 90, 120, 150, 180, 240, 300, 420, 600, 800)


def trained(name: str, task: str, /, **wishes: Any) -> regard.Run:
    """A run below runs/docs, trained if it is not there."""
    folder = RUNS / name.replace(" ", "-")
    return regard.Run.open(folder) if folder.exists() else regard.train(task, out=folder, **wishes)


def photograph(page: Path, out: Path) -> None:
    """The page, as Debian's Chromium shows it while somebody points at a token."""
    from playwright.sync_api import sync_playwright

    if not shutil.which("chromium"):
        print(f"no chromium here: {out} stays as it was")
        return
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport={"width": 1100, "height": 1240})
        tab.goto(page.resolve().as_uri())
        tab.hover("#rows button:nth-child(7)")
        tab.wait_for_timeout(400)
        tab.screenshot(path=out)
        browser.close()


def main() -> None:
    run = trained("phrases", "phrases", preset="demo", train={"keep": 100, "save_every": 30})
    translator = regard.load(run)
    result = translator(SENTENCE)
    record, title = result.attention, f"{SENTENCE} → {result.text}"
    heatmap(record.matrix(), record.target, record.source, title=title, out=HERE / "attention.png")
    head_grid(
        record.blocks["cross"], record.target, record.source, title=title, out=HERE / "heads.png"
    )
    pairs = TASKS["phrases"].pairs(10, 1, split="test", options={})
    at_once = translator(" ".join(source for source, _ in pairs))
    long = translator.look(at_once.source, at_once.ids)
    title_60 = (
        "Ten sentences read at once, by a model that has only ever seen one at a time: it loses "
        "its place"
    )
    heatmap(long.matrix(), long.target, long.source, title=title_60, out=HERE / "attention-60.png")
    beam_tree(translator.tree(SENTENCE, 3), title=SENTENCE, out=HERE / "beam.png")
    looks = [
        (n, regard.load(run, checkpoint=f"step-{n:08}").look(SENTENCE, result.ids)) for n in STEPS
    ]
    steps = [(n, look.matrix(layer=0, head=1)) for n, look in looks]
    growth(
        steps,
        record.target,
        record.source,
        title=f"{title} (layer 1, head 2)",
        out=HERE / "training.png",
    )
    curves({"phrases": run.records()}, HERE / "curves.png")

    brief = {"preset": "course-tuned", "train": {"epochs": 35, "threads": 1}}
    digits, names = trained("digits", "arithmetic", **brief), [*map(str, range(10))]
    lost = trained("digits without positions", "arithmetic", **brief, model={"position": "none"})
    runs = {"with positions": digits, "without positions": lost}
    curves({name: one.records() for name, one in runs.items()}, HERE / "curves-many.png")

    vectors = digits.model().encoder.get_submodule("embedding").get_parameter("weight").detach()
    chosen = vectors[[digits.source.encode(name)[0] for name in names]]
    title = "The calculator's digits: nobody told it their order"
    embedding_map(chosen.numpy(), names, title=title, joined=True, out=HERE / "embeddings.png")
    panels = gradient_panels()
    title = "Gradients of the last token’s loss in untrained models"
    gradients(panels, title=title, out=HERE / "gradients-all.png")
    gradients(panels[2:3], title="How far back the gradient reaches", out=HERE / "gradients.png")
    positions_figure(sinusoids(torch.arange(100), 64).numpy(), "sinusoidal", HERE / "positions.png")
    photograph(
        next(translator.translate([SENTENCE], n_best=3)).write_page(RUNS / "page.html"),
        HERE / "page.png",
    )
    for path in HERE.glob("*.png"):
        image = Image.open(path).convert("RGB")  # a third of the size, and no eye sees it
        image.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            path, optimize=True
        )
    print(f"{SENTENCE} → {result.text}\n{HERE}")


if __name__ == "__main__":
    main()
