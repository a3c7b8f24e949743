"""How long a training takes: by the clock, unless somebody has counted its steps or epochs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import counted
from regard.nn.devices import pick_device
from regard.recipes.pace import Load, Measure
from regard.recipes.plan import Choice, Model
from regard.training.forecast import duration

MINUTES = 20.0
"""How long a training takes at most if nobody says."""
LONGEST = 6.0
"""How many times as long as it wants a training is, as long as dev improves and time is left."""
LEAST_STEPS = 1000  # no model learns in fewer
EVALUATIONS = 30
"""How many times dev is looked at in the time there is: each look takes some of it."""
MOST_EVALUATIONS = 60
"""How many times where there is time for all steps: most trainings are past their best by then."""
PATIENCE = 8
"""How many of these may bring nothing better until the learning rate falls."""


def has_budget(train: Mapping[str, Any]) -> bool:
    """Whether a training ends by the clock, since nobody has set its length or its schedule."""
    return train.get("schedule", "wsd") == "wsd" and not {"steps", "epochs"} & set(train)


@dataclass(frozen=True)
class Budget:
    """The time there is, and what it allows."""

    train: Mapping[str, Any]  # the settings that were given
    examples: int  # pairs, or rows of texts, of an epoch
    batch_examples: int
    wanted_epochs: float  # that are worth their time
    has_dev: bool
    speed: float = 0.0  # examples a second; 0: not measured

    @property
    def limit(self) -> float:
        """Minutes; 0: no limit."""
        return float(self.train.get("minutes", MINUTES))

    @property
    def seconds(self) -> float:
        """The time that is planned for."""
        return 60 * (self.limit or MINUTES)

    @property
    def epochs_in_time(self) -> float:
        """How many epochs the time allows, at the speed that was measured."""
        return self.speed * self.seconds / max(1, self.examples)

    @property
    def epochs(self) -> float:
        """How many epochs there are at most; 0: nobody has measured it."""
        return min(self.epochs_in_time, self.most_steps / self.epoch_steps)

    @property
    def step_examples(self) -> int:
        """Examples of a step."""
        return self.batch_examples * int(self.train.get("accumulate", 1))

    @property
    def epoch_steps(self) -> float:
        return max(1.0, self.examples / self.step_examples)

    @property
    def most_steps(self) -> int:
        """Where training ends even if time is left. Without dev, nobody sees when it should."""
        longest = LONGEST if self.has_dev else 1.0
        return max(LEAST_STEPS, round(longest * self.wanted_epochs * self.epoch_steps))

    @property
    def expected_steps(self) -> int:
        """About how many steps there will be."""
        if not self.speed:
            return self.most_steps
        in_time = round(self.seconds * self.speed / self.step_examples)
        return max(100, min(self.most_steps, in_time))

    def settings(self, rate: float, metric: str) -> dict[str, Any]:
        """Settings of the section train."""
        steps = self.expected_steps
        every = max(20, round(min(steps / EVALUATIONS, self.most_steps / MOST_EVALUATIONS)))
        return {
            "epochs": 0,
            "steps": self.most_steps,
            "minutes": self.limit,
            "schedule": "wsd",
            "rate": rate,
            "warmup": max(1, min(400, steps // 10)),
            "ema": round(max(0.9, min(0.9995, 1 - 50 / steps)), 4),
            "evaluate_every": every,
            "save_every": 2 * every,
            "patience": PATIENCE,
            "metric": metric,
        }

    def choice(self) -> Choice:
        """How long training takes, and why."""
        is_cpu = pick_device(str(self.train.get("device", "auto"))).type == "cpu"
        device = "CPU" if is_cpu else "GPU"
        value = f"at most {duration(60 * self.limit)} on this {device}, from the first step on"
        if not self.limit:
            value = f"no limit, at most {counted(self.most_steps, 'step')}"
        parts = ["to change it, set train.minutes"]
        if self.has_dev:
            parts.insert(0, "it ends sooner when dev stops improving")
        return Choice("time", value, "; ".join(parts))


def largest_in_time(
    sizes: Sequence[Model], given: Model, load: Load, measure: Measure, least_speed: float
) -> tuple[Model, float]:
    """The largest model that is trained on this many examples a second, and its speed.

    What the user has set of the model is measured as it is set. Where even the smallest is slower,
    it is taken; a speed of 0: it was not measured, since its batch does not fit into memory.
    """
    kind = str(given.get("kind", "transformer"))
    best = sizes[0]
    best_speed = 0.0
    measured: list[Model] = []
    for size in sizes:
        model = given if kind != "transformer" else size | given
        if model in measured:  # the user has set what differs
            continue
        measured.append(model)
        speed = measure(model, load)
        if speed == 0:  # too large for memory, and so are the larger ones
            break
        if best_speed and speed < least_speed:
            break
        best = size
        best_speed = speed
    return dict(best), best_speed
