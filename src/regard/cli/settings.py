"""`regard settings`: every setting with its default and its help."""

import re
from typing import Annotated, Any

import typer

from regard.bounds import TYPE_WORDS, SettingSpec
from regard.cli.completion import setting_names
from regard.cli.terms import AsJson
from regard.config import all_settings, full_names, to_toml
from regard.display import console, say_json
from regard.errors import UserError, nearest


def _names(incomplete: str) -> list[str]:
    return [name.removesuffix("=") for name in setting_names(incomplete)]


def settings(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="A setting, a section, or words to search for in names and help.",
            autocompletion=_names,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the settings, with their defaults and help.

    Example: `regard settings dropout`, or one of them: `regard settings train.steps`
    """
    found = _matching(words or [])
    if as_json:
        say_json([_fields(spec) for spec in found])
        return

    is_one = len({spec.full_name for spec in found}) == 1
    for spec in found:
        _print_setting(spec, in_full=is_one)


def _print_setting(spec: SettingSpec, *, in_full: bool) -> None:
    """Print a setting as it is written, and its help below.

    in_full: say also which values it may have.
    """
    from rich.padding import Padding
    from rich.text import Text

    terminal = console()
    title = Text(f"{spec.full_name}={_default(spec)}", style="bold")
    if _is_of_one_kind(spec):
        title.append(f"  ({spec.kind})", style="not bold")
    terminal.print(title, soft_wrap=True)

    help_text = spec.help
    if in_full:
        help_text += f" Allowed: {_allowed(spec)}."
    terminal.print(Padding(Text(help_text), (0, 0, 0, 4), expand=False))


def _matching(words: list[str]) -> list[SettingSpec]:
    """The settings of that name or section, or else those that speak of all the words."""
    specs = all_settings()
    if len(words) == 1:
        name = words[0].partition("=")[0]
        exact = [spec for spec in specs if name in (spec.full_name, spec.section)]
        if exact:
            return exact

    found = [spec for spec in specs if all(_speaks_of(spec, word) for word in words)]
    if not found:
        foreign = [name for word in words for name in full_names(word)]
        found = [spec for spec in specs if spec.full_name in foreign]
    if not found:
        text = " ".join(words)
        names = dict.fromkeys(name for spec in specs for name in (spec.full_name, spec.name))
        hint = nearest(text, names)
        raise UserError(f"no setting matches {text!r}" + (hint if "did you mean" in hint else ""))
    return found


def _speaks_of(spec: SettingSpec, word: str) -> bool:
    """Whether a word in the name, the help or the choices of a setting begins like this."""
    text = " ".join([spec.full_name, spec.name, spec.help, *spec.choices])
    start = re.escape(word.replace("-", "_"))
    return bool(re.search(rf"(\b|_){start}", text, re.IGNORECASE))


def _is_of_one_kind(spec: SettingSpec) -> bool:
    """Whether the setting, or this default of it, belongs to one kind of model only."""
    same = [other for other in all_settings() if other.full_name == spec.full_name]
    return spec.section == "model" and (len(same) == 1 or spec.name != "kind")


def _default(spec: SettingSpec) -> str:
    """The default as it is written on the command line."""
    if spec.default is None or spec.default in ("", {}):
        return ""
    text = to_toml({"": {"": spec.default}}).splitlines()[1].removeprefix(" = ")
    return text.strip('"')


def _allowed(spec: SettingSpec) -> str:
    """The values that a setting may have."""
    if spec.choices:
        return ", ".join([*spec.choices, *(["custom:Name"] if spec.custom else [])])
    words = [TYPE_WORDS[spec.type], spec.range_words, "or none" if spec.is_seed else ""]
    return ", ".join(filter(None, words))


def _fields(spec: SettingSpec) -> dict[str, Any]:
    """A setting as a JSON object."""
    fields = {
        "name": spec.full_name,
        "model_kind": spec.kind,
        "default": spec.default,
        "help": spec.help,
        "choices": list(spec.choices),
        "least": spec.least,
        "most": spec.most,
        "below": spec.below,
    }
    return {
        name: value for name, value in fields.items() if value not in ("", []) or name == "default"
    }


def setting_meant(error: Any, words: list[str]) -> str | None:
    """What to write for an option that is a setting, as `--steps 5` is train.steps=5.

    None: the error is another, the command takes no settings, or there is no such setting.
    """
    option = getattr(error, "option_name", "")
    parameters = getattr(getattr(getattr(error, "ctx", None), "command", None), "params", [])
    takes_settings = any(
        parameter.name == "settings" and parameter.param_type_name == "argument"
        for parameter in parameters
    )
    if not takes_settings or type(error).__name__ != "NoSuchOption":
        return None

    name = option.lstrip("-")
    full = [name] if "." in name and _is_setting(name) else full_names(name)
    if not full:
        return None
    value = _value_after(option, words)
    return f"no option {option}: write {' or '.join(f'{one}={value}' for one in full)}"


def _is_setting(name: str) -> bool:
    """Whether there is a setting of this full name."""
    return any(spec.full_name == name for spec in all_settings())


def _value_after(option: str, words: list[str]) -> str:
    """The value that was given with an option, in the next word or after the sign =."""
    for place, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and place + 1 < len(words) and not words[place + 1].startswith("--"):
            return words[place + 1]
    return "…"
