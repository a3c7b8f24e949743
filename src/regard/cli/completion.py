"""What the shell offers when Tab is pressed: runs, data, presets, settings."""

from pathlib import Path

from regard.config import all_settings
from regard.presets import presets


def run_folders(incomplete: str) -> list[str]:
    """Runs, and folders that may hold some."""
    offered = []
    for folder in _folders(incomplete):
        is_run = (folder / "config.toml").exists() and (folder / "manifest.json").exists()
        offered.append(folder.as_posix() if is_run else f"{folder.as_posix()}/")
    return offered


def _folders(incomplete: str) -> list[Path]:
    """The folders whose path begins like this."""
    if incomplete.endswith("/"):
        parent = Path(incomplete)
        start = ""
    else:
        parent = Path(incomplete).parent
        start = Path(incomplete).name
    if not parent.is_dir():
        return []
    folders = [path for path in parent.iterdir() if path.is_dir() and path.name.startswith(start)]
    return sorted(path for path in folders if start.startswith(".") or path.name[0] != ".")


def data_names(incomplete: str) -> list[str]:
    """Built-in tasks, then files and folders."""
    from regard.data.tasks import TASKS

    tasks = [name for name in TASKS if name.startswith(incomplete)]
    return tasks + sorted(path.as_posix() for path in Path().glob(f"{incomplete}*"))


def preset_names(incomplete: str) -> list[str]:
    """The names of presets."""
    return [name for name in presets() if name.startswith(incomplete)]


def setting_names(incomplete: str) -> list[str]:
    """Settings as they are written on the command line; after the sign =, their choices."""
    name, equals, _ = incomplete.partition("=")
    if not equals:
        names = dict.fromkeys(spec.full_name for spec in all_settings())
        return [f"{full}=" for full in names if full.startswith(incomplete)]

    values = []
    for spec in all_settings():
        if spec.full_name == name:
            choices = ("true", "false") if spec.type is bool else spec.choices
            values += [f"{name}={choice}" for choice in choices]
    return [value for value in dict.fromkeys(values) if value.startswith(incomplete)]
