"""`regard show`: look inside a run, one file a picture."""

import typer

from regard.cli.show.attention import show_attention
from regard.cli.show.beam import show_beam
from regard.cli.show.curves import show_curves
from regard.cli.show.embeddings import show_embeddings
from regard.cli.show.evidence import show_evidence
from regard.cli.show.gradients import show_gradients
from regard.cli.show.model import show_model
from regard.cli.show.positions import show_positions
from regard.cli.show.training import show_training
from regard.cli.terms import TEXTS

show = typer.Typer(
    help="Look inside: curves, attention, evidence, beam, embeddings …",
    no_args_is_help=True,
)

# In the order of the help.
show.command("model")(show_model)
show.command("curves")(show_curves)
show.command("attention", context_settings=TEXTS)(show_attention)
show.command("training", context_settings=TEXTS)(show_training)
show.command("beam", context_settings=TEXTS)(show_beam)
show.command("embeddings")(show_embeddings)
show.command("gradients")(show_gradients)
show.command("positions")(show_positions)
show.command("evidence", context_settings=TEXTS)(show_evidence)
