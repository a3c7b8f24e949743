"""The command line: parse, call a recipe, print.

Whatever is slow to import is imported where it is used.
"""

import gc
import os
import sys
import warnings
from contextlib import suppress
from typing import Annotated, Any

import typer

import regard
from regard.cli.compare import compare
from regard.cli.data import data
from regard.cli.demo import demo
from regard.cli.doctor import doctor
from regard.cli.embed import embed
from regard.cli.evaluate import evaluate
from regard.cli.fill import fill
from regard.cli.generate import generate
from regard.cli.help import with_our_help
from regard.cli.interruption import repeat_ignored_interrupts
from regard.cli.presets import presets
from regard.cli.prune import prune
from regard.cli.runs import runs
from regard.cli.score import score
from regard.cli.settings import setting_meant, settings
from regard.cli.show import show
from regard.cli.terms import TEXTS
from regard.cli.train import train
from regard.cli.translate import translate
from regard.display import fail, note, say, warn
from regard.display.streams import OutputFault, ReaderLeft, open_streams
from regard.errors import Interrupted, UserError

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    options_metavar="[--version] [--install-completion]",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"regard {regard.__version__}")
        raise typer.Exit


@app.callback()
def regard_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, hidden=True),
    ] = False,
) -> None:
    """Train your own text-to-text model on pairs, or a language model on texts."""


def main() -> None:
    """Run the command line.

    What went wrong is told in one line, with exit code 2 if the caller can put it right. With
    --debug it is a traceback.
    """
    # Importing torch makes a million objects that stay: look for garbage less often.
    gc.set_threshold(50_000, 20, 20)
    debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    open_streams()
    repeat_ignored_interrupts()
    warnings.showwarning = _warn
    try:
        code = with_our_help(app)(standalone_mode=False)
        sys.stdout.flush()  # a full disk is told now, not when Python ends
        sys.exit(code)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except ReaderLeft:
        sys.exit(0)
    except Interrupted as stopped:
        note("", stopped)  # after the line in which Ctrl-C was typed
        sys.exit(stopped.code)
    except Exception as error:
        message = _message(error)
        if debug or message is None:
            raise
        if not message:  # a command without a verb: its help was printed
            sys.exit(0)
        fail(message)
        sys.exit(getattr(error, "code", 2))
    finally:
        with suppress(ReaderLeft, OutputFault):  # an error was told already
            sys.stdout.flush()
        # The process ends: looking for garbage among all objects of torch would take 0.4 s.
        gc.freeze()


def _message(error: Exception) -> str | None:
    """What went wrong, in one line; None: it is a fault of ours. Empty: typer printed a help."""
    format_message = getattr(error, "format_message", None)
    if format_message is not None:  # typer's own: an unknown option, a missing argument
        return setting_meant(error, sys.argv[1:]) or str(format_message())
    if isinstance(error, OSError) and error.filename:  # such as a folder where a picture should be
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if isinstance(error, UserError | OutputFault):
        return str(error)
    if isinstance(error, MemoryError | RuntimeError) and _lacks_memory(error):
        return (
            "out of memory: give shorter texts or fewer at a time; a narrower beam or a lower "
            "search.batch_tokens may help, too"
        )
    return None


def _lacks_memory(error: Exception) -> bool:
    """Whether an error says that there is no memory left."""
    from regard.nn.devices import is_out_of_memory

    return isinstance(error, MemoryError) or is_out_of_memory(error)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning in one line for a person, without the place in our code."""
    warn(message)


# In the order of the help.
app.command()(demo)
app.command()(train)
app.command(context_settings=TEXTS)(translate)
app.command(context_settings=TEXTS)(generate)
app.command(context_settings=TEXTS)(fill)
app.command()(embed)
app.command()(evaluate)
app.command(context_settings=TEXTS)(score)
app.command()(compare)
app.command()(doctor)
app.command()(prune)
app.command()(presets)
app.command()(runs)
app.command()(settings)
app.add_typer(show, name="show")
app.add_typer(data, name="data")
