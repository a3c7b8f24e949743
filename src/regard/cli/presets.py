"""`regard presets`: configurations that were measured."""

from regard.cli.terms import AsJson
from regard.display import say_json, table
from regard.presets import preset as read_preset
from regard.presets import presets as all_presets


def presets(as_json: AsJson = False) -> None:
    """List the presets and their measured results."""
    summaries = all_presets()
    if not as_json:
        table(["preset", "description and measured results"], summaries.items())
        return
    entries = [
        {"name": name, "what": summary, "settings": read_preset(name)}
        for name, summary in summaries.items()
    ]
    say_json(entries)
