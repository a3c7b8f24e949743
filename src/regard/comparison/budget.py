"""What is the same for all systems of a comparison."""

from dataclasses import dataclass

from regard.bounds import shown
from regard.config import Settings
from regard.errors import UserError

LENGTHS = ("steps", "epochs", "tokens", "minutes")
"""How long training is can be told by one of these."""
LENGTH_SETTINGS = ("steps", "epochs", "minutes", "patience")
"""Settings of `train` that decide how long training is."""
MOST = 10**12


@dataclass(frozen=True)
class Budget:
    """What is the same for all systems: one length of training at most, and their parameters."""

    steps: int | None = None
    epochs: float | None = None
    tokens: float | None = None
    """Tokens that training reads, of both sides, without padding."""
    minutes: float | None = None
    """Of training, from the first step on."""
    parameters: float | str | None = None
    """Widths are found with which every model has as many; a name: as many as that system."""

    def __post_init__(self) -> None:
        lengths = [name for name in LENGTHS if self.has(name)]
        if len(lengths) > 1:
            raise UserError(
                f"[budget]: {' and '.join(lengths)} cannot all be the same for all systems: give "
                f"one of them"
            )
        for name in lengths:
            self._check_number(name)
        if self.has("parameters") and not isinstance(self.parameters, str):
            self._check_number("parameters")
        if self.steps is not None and self.steps % 1:
            raise UserError(f"[budget]: steps={shown(self.steps)}: must be a whole number")

    def _check_number(self, name: str) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < MOST:
            raise UserError(
                f"[budget]: {name}={shown(value)}: must be a number above 0 and below 10^12"
            )

    def has(self, name: str) -> bool:
        return getattr(self, name) is not None

    @property
    def length(self) -> str:
        """What is the same of training: steps, epochs, tokens, minutes; empty: nothing is said."""
        return next((name for name in LENGTHS if self.has(name)), "")

    def settings(self) -> Settings:
        """The settings that give a training this length."""
        if not self.length:
            return {}
        train = {"epochs": 0, "minutes": 0, "patience": 0}
        if self.steps is not None:
            return {"train": {**train, "steps": int(self.steps)}}
        if self.epochs is not None:
            return {"train": {**train, "epochs": self.epochs}}
        if self.tokens is not None:
            return {"train": {**train, "epochs": 1}}  # how many it takes is counted later
        timed = {
            "minutes": self.minutes,
            "schedule": "wsd",  # which need not know how many steps there will be
            "steps": 10**7,
            "average": 0,
        }
        return {"train": {**train, **timed}}

    def check(self, settings: Settings, where: str) -> None:
        """Refuse settings of an experiment that the budget would replace without a word."""
        given = settings.get("train", {})
        decided = self.settings().get("train", {})
        for name, value in given.items():
            is_length = bool(decided) and name in LENGTH_SETTINGS
            if is_length or (name in decided and value != decided[name]):
                raise UserError(
                    f"{where}train.{name}={shown(value)}: the budget of {self.length} decides it "
                    f"for all systems: remove one of them"
                )
