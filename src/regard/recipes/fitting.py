"""A prepared run -> a trained one.

Connects the trainer with checkpoints, the log, dev data, the progress bar and signals.
"""

import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from regard.data.corpus import Corpus
from regard.data.objectives import objective_of
from regard.errors import Failed, Interrupted, UserError, counted
from regard.files import disk_faults_told
from regard.inference.translator import Translator
from regard.models.parts import Parts, find_part, is_own
from regard.nn.devices import on_device, pick_device, state_kept
from regard.pictures.curves import curves
from regard.recipes.outcome import dev_pairs, finish
from regard.recipes.reporter import Reporter, Update
from regard.runs.run import Run
from regard.runs.weights import get_weights, set_weights
from regard.scoring import bleu, bleu_applies, exact_match
from regard.training.checkpoint import (
    average_checkpoints,
    count_kept,
    find_best,
    load_checkpoint,
    save_average,
    save_checkpoint,
)
from regard.training.event import Event
from regard.training.forecast import forecast
from regard.training.loss import mean_loss
from regard.training.parallel import World
from regard.training.start import initial_model, make_trainer
from regard.training.trainer import Progress, Trainer, Trouble, Validate

SOON_REPEATED = 1000
"""Steps of a training that nobody minds to repeat, with more checkpoints."""
Callback = Callable[[Event], Any]
"""A function of the user's own, which returns True to end the training."""


def fit(
    run: Run,
    *,
    parts: Parts = None,
    reporter: Reporter | None = None,
    extended: bool = False,
    world: World | None = None,
) -> Run:
    """Train a prepared run to its end, from wherever it stands.

    extended: its settings were changed since, so it goes on even if it had come to an end.
    """
    reporter = reporter or Reporter()
    world = world or World(device=pick_device(run.config.train.device))
    lock = run.locked() if world.rank == 0 else nullcontext()
    with on_device(world.device), state_kept(world.device), lock:
        if run.config.train.threads:
            torch.set_num_threads(run.config.train.threads)
        trainer = _resumed_trainer(run, parts, reporter, extended, world)
        had_ended = trainer.progress.finished
        forecast(trainer, reporter.say)
        _say_if_few_checkpoints(run, trainer, reporter)
        validate = _validator(run, world.device, parts)

        with _stop_request() as stop_request:
            if not trainer.progress.finished:
                _train(run, trainer, parts, validate, reporter, stop_request)
        if world.any(stop_request.came) and not trainer.progress.finished:
            raise Interrupted(
                f"stopped and saved; resume with: {_way_on(run)}",
                stop_request.signal_number or signal.SIGTERM,  # another process may have got it
            )

        if world.rank == 0:
            _average(run, trainer, validate, reporter, parts)
            finish(run, trainer, parts, reporter, had_ended=had_ended)
        world.wait()
    return run


def _way_on(run: Run) -> str:
    """What a person types to go on with a run that was stopped."""
    data = run.config.data.path
    if not data:
        return f"regard.train(pairs, out={str(run.path)!r}, resume=True)"
    return f"regard train {data} --out {run.path} --resume"


def _resumed_trainer(
    run: Run, parts: Parts, reporter: Reporter, extended: bool, world: World
) -> Trainer:
    """A trainer that stands at the run's newest checkpoint, or at the beginning."""
    if world.rank == 0:
        with disk_faults_told(run.path):
            run.sweep()
            run.corpus("train")  # these read the data once, to see that it is still the same
            if (run.path / "data" / "dev").exists():
                run.corpus("dev")
    world.wait()

    trainer = make_trainer(run, parts, world)
    with disk_faults_told(run.path):
        resumed = load_checkpoint(run, trainer, reporter.warn)
    if resumed:
        progress = trainer.progress
        if extended:
            progress.finished = False
            progress.waited = 0
        if progress.finished:
            reporter.say(f"already trained: {run.path} is at its last step, {progress.step:,}")
        else:
            reporter.say(f"resuming from step {progress.step:,} of {trainer.steps:,}")
    return trainer


def _say_if_few_checkpoints(run: Run, trainer: Trainer, reporter: Reporter) -> None:
    """Say before training that `show training` will have too few checkpoints to draw."""
    if trainer.progress.finished or trainer.steps < SOON_REPEATED:
        return
    count = count_kept(trainer)
    if count < 2:
        often = max(1, trainer.steps // 10)
        reporter.say(
            f"only {counted(count, 'checkpoint')} will be kept, but `regard show training` needs "
            f"at least two: to keep more, add train.save_every={often} train.keep=10"
        )


class _StopRequest:
    """The first signal that asked training to stop; None: none has come yet."""

    signal_number: int | None = None

    @property
    def came(self) -> bool:
        """Whether training was asked to stop."""
        return self.signal_number is not None


def _train(
    run: Run,
    trainer: Trainer,
    parts: Parts,
    validate: Validate | None,
    reporter: Reporter,
    stop_request: _StopRequest,
) -> None:
    """Run the trainer's loop to its end, or until a signal asks it to stop.

    When too many steps had to be left out, it goes back to the last healthy checkpoint.
    """
    callback = None
    if is_own(run.config.train.callback):
        callback = find_part("callback", run.config.train.callback, parts)
    hooks = _Hooks(run, trainer, reporter, stop_request, callback)
    with reporter.bar(trainer.steps, trainer.progress.step, hooks.picture) as bar:
        hooks.bar = bar
        while True:
            try:
                trainer.fit(
                    validate=validate,
                    save=hooks.save,
                    log=hooks.log,
                    tick=hooks.tick,
                    stop=hooks.stop,
                    decide=hooks.decide,
                    find_best=hooks.find_best,
                    go_back=hooks.go_back,
                )
                break
            except Trouble:
                _go_back(run, trainer, parts, reporter)
    hooks.close()


class _Hooks:
    """What the trainer calls while it trains: checkpoints, the log, the bar, and when to stop."""

    bar: Update  # set before training starts

    def __init__(
        self,
        run: Run,
        trainer: Trainer,
        reporter: Reporter,
        stop_request: _StopRequest,
        callback: Callback | None,
    ) -> None:
        self._run = run
        self._callback = callback
        self._callback_wants_end = False
        self._trainer = trainer
        self._reporter = reporter
        self._stop_request = stop_request
        self._is_first = trainer.world.rank == 0  # only this process writes
        self._board: Any = _tensorboard(run) if self._is_first else None
        self._notes: dict[str, str] = {}  # the newest figures, shown beside the bar
        self._speed = ""
        self._log_has_gaps = False
        self._unnoted: tuple[int, int] | None = None  # the steps of a decay that the disk refused
        self._remember_best()

    def log(self, kind: str, **values: Any) -> None:
        """Note a record for the bar, the log and TensorBoard. A full disk does not end training."""
        prefix = "" if kind == "train" else f"{kind} "
        self._notes[f"{prefix}loss"] = f"{values['loss']:.3f}"
        self._notes[f"{prefix}accuracy"] = f"{values['accuracy']:.3f}"
        if kind == "train":
            self._speed = f"{values['tokens_per_second']:,.0f} tokens/s"

        try:
            if self._is_first:
                self._run.check_place()
                self._run.log(kind, **values)
            if self._board is not None:
                for name, value in values.items():
                    self._board.add_scalar(f"{kind}/{name}", value, values["step"])
        except OSError as error:
            if not self._log_has_gaps:
                self._reporter.warn(
                    f"{self._problem(error)}: the log will have gaps; training continues"
                )
            self._log_has_gaps = True

        if self._callback is not None and self._is_first:
            event = Event(kind, values["step"], dict(values), self._trainer.model, self._run)
            if self._callback(event) is True:
                self._callback_wants_end = True

    def tick(self, progress: Progress) -> None:
        """Move the bar, and tell it the time that train.minutes leaves."""
        names = ("loss", "dev loss", "accuracy", "dev accuracy")  # the most important ones first
        notes = [f"{name} {self._notes[name]}" for name in names if name in self._notes]
        if self._speed:
            notes.append(self._speed)

        trainer = self._trainer
        is_open = trainer.config.minutes > 0 and not trainer.has_decay  # the last step is not known
        total = 0 if is_open else trainer.steps
        self.bar(progress.step, *notes, at_most=trainer.seconds_left(), total=total)
        if self._callback is not None and self._trainer.world.any(self._callback_wants_end):
            progress.finished = True

    def decide(self, start: int, end: int) -> None:
        """Note in the run between which steps the learning rate falls to zero.

        From here on, whoever resumes the run trains exactly these steps. Where the disk is full,
        training goes on all the same, and every save tries to note them again.
        """
        now = self._trainer.progress.step
        steps = counted(end - start, "step")
        back = f"back to step {start:,}, the best; " if start < now else ""
        self._reporter.say(
            f"step {now:,}: {self._reason()}; {back}{steps} to a learning rate of zero"
        )
        self._unnoted = (start, end)
        try:
            self._note_decay()
        except OSError as error:
            self._reporter.warn(
                f"{self._problem(error)}: the last step, {end:,}, could not be noted in the "
                f"settings; training continues, and notes it with the next checkpoint"
            )

    def find_best(self) -> int:
        """The step of the best checkpoint, if training can go on from it; 0: it cannot."""
        with disk_faults_told(self._run.path):
            return find_best(self._run, self._trainer)

    def go_back(self) -> None:
        """Load the checkpoint from which the decay begins. The time that has passed still counts.

        A full disk does not end training: then the log still has what was given up.
        """
        trainer = self._trainer
        progress = trainer.progress
        seconds = progress.seconds
        try:
            load_checkpoint(self._run, trainer, self._reporter.warn)
        except OSError as error:
            self._reporter.warn(f"{self._problem(error)}: the log was not cut; training continues")
        start = trainer.config.decay_start
        if progress.step > start:
            raise Failed(
                f"{self._run.path}: the checkpoint of step {start:,}, the best, cannot be read"
            )
        since = seconds - progress.seconds
        progress.seconds += since
        progress.logged_at += since

    def _note_decay(self) -> None:
        """Write into the settings of the run what was decided about the decay."""
        if self._unnoted is None or not self._is_first:
            return
        start, end = self._unnoted
        run = self._run
        run.check_place()
        train = dataclasses.replace(run.config.train, decay_start=start, decay_end=end)
        run.change(dataclasses.replace(run.config, train=train))
        self._unnoted = None

    def _reason(self) -> str:
        """Why the learning rate begins to fall."""
        trainer = self._trainer
        if trainer.has_waited():
            evaluations = counted(trainer.progress.waited, "evaluation")
            return f"dev {trainer.config.metric} did not improve in {evaluations}"
        if trainer.is_late():
            return "the time is nearly over"
        return "the last fifth of the steps begins"

    def stop(self) -> bool:
        """Whether a signal asked for the end."""
        return self._stop_request.came

    def save(self) -> None:
        """Save a checkpoint. If that fails, training goes on, unless this was the last one."""
        failure = None
        try:
            self._run.check_place()
            self._note_decay()
            save_checkpoint(self._run, self._trainer)
        except OSError as error:
            failure = error

        progress = self._trainer.progress
        if self._trainer.world.any(failure is not None):
            # What is not on disk cannot be the best.
            progress.best = self._saved_best
            progress.best_name = self._saved_best_name
        self._remember_best()

        if failure is None:
            return
        problem = self._problem(failure)
        if progress.finished or self._stop_request.came:
            raise Failed(
                f"{problem}: the last checkpoint could not be saved; the previous one is intact"
            ) from failure
        self._reporter.warn(
            f"{problem}: no checkpoint at step {progress.step:,}; training continues, the "
            f"previous one is intact"
        )

    def picture(self) -> str:
        """The run so far as HTML, for a notebook."""
        _draw_curves(self._run)
        return self._run._repr_html_()

    def close(self) -> None:
        """Finish TensorBoard's files and draw the curves for the last time."""
        if self._board is not None:
            self._board.close()
        if self._is_first:
            self._run.check_place()
            _draw_curves(self._run)

    def _remember_best(self) -> None:
        """Note which checkpoint is the best of those on disk."""
        progress = self._trainer.progress
        self._saved_best = progress.best
        self._saved_best_name = progress.best_name

    def _problem(self, error: OSError) -> str:
        return f"{error.filename or self._run.path}: {error.strerror}"


def _draw_curves(run: Run) -> None:
    """Draw the curves of loss and accuracy, once there are any."""
    with disk_faults_told(run.path):
        records = run.records("train", "dev")
        if records:
            curves({run.path.name: records}, run.path / "curves.png")


def _go_back(run: Run, trainer: Trainer, parts: Parts, reporter: Reporter) -> None:
    """Go back to the last healthy checkpoint, or to the very beginning, with half the rate.

    Three times at most.
    """
    progress = trainer.progress
    factor = progress.factor / 2
    step = progress.step
    if factor < 1 / 8:
        rate = trainer.config.rate * progress.factor
        kept = " (the last checkpoint is intact)" if run.checkpoints() else ""
        raise Failed(
            f"step {step:,}: the loss or its gradient keeps becoming NaN, infinite or extremely "
            f"large, although the learning rate was lowered to {rate:.2g}; check the data, or set "
            f"a lower train.rate{kept}"
        )

    with disk_faults_told(run.path):
        loaded = load_checkpoint(run, trainer, reporter.warn)
    if not loaded:
        trainer.restart(get_weights(initial_model(run, parts)))
    trainer.totals.zero_()
    progress.finished = False
    progress.factor = factor
    progress.skipped = []
    progress.tokens_read = 0
    reporter.warn(
        f"step {step:,}: the loss or its gradient was NaN, infinite or extremely large in too "
        f"many steps; going back to step {progress.step:,} with the learning rate × {factor:g}"
    )


def _validator(run: Run, device: torch.device, parts: Parts) -> Validate | None:
    """What looks at the dev data; None: there is none.

    It measures loss and accuracy of every token. With train.metric=exact_match, bleu or one of the
    user's own it also decodes the first sentences. BLEU is left out where it says nothing and is
    not asked for.
    """
    metric = run.config.train.metric
    own_metric = find_part("metric", metric, parts) if is_own(metric) else None
    if not (run.path / "data" / "dev").exists():
        return None
    corpus = Corpus.open(run.path / "data" / "dev")
    if run.config.train.objective != "translate":
        return _text_validator(run, corpus, device)
    pairs = dev_pairs(run, 500)
    references = [pair.targets for pair in pairs]
    tokenize = run.config.data.bleu_tokenize

    def validate(model: Any) -> Mapping[str, float]:
        scores = mean_loss(model, corpus, run.config.data.batch_tokens, device)
        if metric in ("exact_match", "bleu") or own_metric is not None:
            greedy = dataclasses.replace(run.config.search, width=1)
            translator = Translator(model, run.source, run.target, greedy)
            results = translator.translate(pair.located for pair in pairs)
            answers = [result.text for result in results]
            scores["exact_match"] = exact_match(answers, references)
            if metric == "bleu" or bleu_applies(references, tokenize):
                scores["bleu"] = bleu(answers, references, tokenize).score
            if own_metric is not None:
                scores[metric] = float(own_metric(answers, references))
        return scores

    return validate


def _text_validator(run: Run, corpus: Corpus, device: torch.device) -> Validate:
    """What looks at the dev texts of a language model: loss and accuracy."""
    objective = objective_of(run.config.train, run.source)
    budget = run.config.data.batch_tokens

    def validate(model: Any) -> Mapping[str, float]:
        return mean_loss(model, corpus, budget, device, objective)

    return validate


def _average(
    run: Run, trainer: Trainer, validate: Validate | None, reporter: Reporter, parts: Parts
) -> None:
    """Weights averaged over the last checkpoints become the best, if dev agrees."""
    count = trainer.config.average
    if not count or validate is None:
        return

    with disk_faults_told(run.path):
        weights = average_checkpoints(run, trainer)
    model = run.new_model(parts)
    set_weights(model, weights, "average")
    scores = validate(model.to(trainer.device).eval())

    with disk_faults_told(run.path):
        run.log("average", step=trainer.progress.step, **scores)
        if not trainer.better(scores):
            return
        save_average(run, weights)
    loss = scores["loss"]
    reporter.say(f"the average of the last {count} checkpoints is better: dev loss {loss:.4f}")


@contextmanager
def _stop_request() -> Iterator[_StopRequest]:
    """Note SIGINT and SIGTERM, so that a step is never torn; a second Ctrl-C stops at once."""
    request = _StopRequest()

    def note(number: int, frame: object) -> None:
        # SIGTERM may come twice: from the cluster, and from torchrun.
        if request.came and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not request.came:
            request.signal_number = number

    before = {}
    if threading.current_thread() is threading.main_thread():  # no other thread may handle signals
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tensorboard(run: Run) -> Any:
    """A writer for TensorBoard; None: it is off, or not installed and not insisted on."""
    wanted = run.config.train.tensorboard
    if wanted == "off":
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        if wanted == "on":
            raise UserError(
                "train.tensorboard=on needs TensorBoard: pip install 'regard[tensorboard]'"
            ) from None
        return None
    folder = run.path / "tensorboard"
    if folder.is_symlink():
        raise UserError(f"{folder}: this is a link, and Regard writes through no link; delete it")
    return SummaryWriter(str(folder))
