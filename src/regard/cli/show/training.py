"""`regard show training`: attention, checkpoint by checkpoint."""

from pathlib import Path

import regard
from regard.cli.parts import PartsOption, read_parts
from regard.cli.show.terms import (
    Block,
    Head,
    Layer,
    Open,
    Picture,
    TextToRead,
    caption_of,
    chosen_weights,
    read_by,
    wrote,
)
from regard.cli.terms import Device, RunFolder, refuse_options
from regard.display import say_answer
from regard.errors import UserError


def show_training(
    run: RunFolder,
    text: TextToRead,
    layer: Layer = None,
    head: Head = None,
    block: Block = "",
    out: Picture = Path("training.png"),
    open_it: Open = False,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """Attention during training, checkpoint by checkpoint.

    Example: `regard show training runs/demo "he's calm ." --head 2`
    """
    refuse_options([text], show_training)
    from regard.pictures.heatmaps import growth

    own = read_parts(parts)
    names = regard.Run.open(run).checkpoints()
    if len(names) < 2:
        raise UserError(
            f"{run}: fewer than two checkpoints were kept; to keep more, train with train.keep=10 "
            f"train.save_every=100"
        )
    count = min(len(names), 10)
    last = len(names) - 1
    names = [names[number * last // (count - 1)] for number in range(count)]  # evenly spaced

    reading = read_by(run, text, checkpoint=names[-1], device=device, parts=own)
    record = reading.record
    block = block or record.main_block
    # A wrong --layer, --head or --block is refused before every checkpoint is loaded.
    chosen_weights(record, block, "mean", layer, head)

    matrices = []
    for name in names:
        step = int(name.removeprefix("step-"))
        model = regard.load(run, checkpoint=name, device=device, parts=own)
        attention = reading.look_again(model)
        matrices.append((step, chosen_weights(attention, block, "mean", layer, head)))

    caption = caption_of(record, block, "mean", layer, head)
    title = f"{reading.title} ({caption})"
    growth(matrices, *record.sides(block), title=title, out=out)
    say_answer(reading.answer)
    wrote(out, open_it)
