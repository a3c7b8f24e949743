"""`regard demo`: a translator in three minutes."""

from regard.cli.terms import Out


def demo(out: Out = None) -> None:
    """Train English → French on built-in sentences (three minutes)."""
    from regard.recipes.demo import demo as run_demo

    run_demo(out)
