"""The help as people read it: short enough for a screen, and no type after a flag."""

from typing import Any

import typer
import typer.main


def with_our_help(app: typer.Typer) -> Any:
    """The command line of an app."""
    command: Any = typer.main.get_command(app)
    for parameter in command.params:
        if parameter.name in ("show_completion", "install_completion"):
            parameter.hidden = True  # the line of usage has what people need of it
    _hide_types_of_flags(command)
    _hide_help_option(command)
    return command


def _hide_help_option(command: Any) -> None:
    """Leave `--help` out of the help of a command: who reads it has found it."""
    parameters_of = command.get_params

    def get_params(context: Any) -> list[Any]:
        parameters: list[Any] = parameters_of(context)
        for parameter in parameters:
            if parameter.name == "help":
                parameter.hidden = True
        return parameters

    command.get_params = get_params


def _hide_types_of_flags(command: Any) -> None:
    """Show `--version` in the help of a command and of those below it, not `--version <bool>`."""
    parameters_of = command.get_params

    def get_params(context: Any) -> list[Any]:
        parameters: list[Any] = parameters_of(context)
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.display_type_rich = lambda ctx: None
        return parameters

    command.get_params = get_params
    for inner in getattr(command, "commands", {}).values():
        _hide_types_of_flags(inner)
