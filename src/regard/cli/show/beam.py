"""`regard show beam`: what the search tried."""

from pathlib import Path

from regard.cli.parts import PartsOption, read_parts
from regard.cli.show.terms import Open, Picture, Text, answered, wrote
from regard.cli.terms import Beam, Device, RunFolder, refuse_options
from regard.display import say_answer


def show_beam(
    run: RunFolder,
    text: Text,
    beam: Beam = None,
    out: Picture = Path("beam.png"),
    open_it: Open = False,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """The beam as a tree: what the search tried.

    Example: `regard show beam runs/demo "he's calm ." --beam 3`
    """
    refuse_options([text], show_beam)
    from regard.pictures.tree import beam_tree

    translator, result = answered(run, text, beam=beam, device=device, parts=read_parts(parts))
    beam_tree(translator.tree(text), title=text, out=out)
    say_answer(result.text)
    wrote(out, open_it)
