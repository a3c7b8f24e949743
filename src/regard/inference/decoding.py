"""A loaded model that decodes: on the CPU, and on a GPU as soon as that pays."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, get_type_hints

import torch
from torch import Tensor, nn

from regard.config import SearchConfig, build, to_settings
from regard.errors import UserError, nearest
from regard.inference.placed import WORTH, Placed
from regard.models import Seq2Seq
from regard.nn.devices import cpu_has_bf16, pick_device
from regard.nn.kernels import read_only
from regard.runs.run import Run
from regard.search import Constraints, Job, Rules, Search
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import EOS


class DecodingModel:
    """A model that writes texts, and may move to another device.

    suppress (V,): True = never written. auto: whether to move to a GPU, if there is one, as soon as
    there is enough to do.
    """

    def __init__(
        self, model: Seq2Seq, suppress: Tensor, search: SearchConfig, *, auto: bool
    ) -> None:
        self.suppress = suppress
        self.search = search
        self.auto = auto
        """Whether to move to a GPU, if there is one, as soon as there is enough to do."""
        self._work = 0.0  # tokens × parameters, asked for so far
        self._placed = Placed(model, suppress)

    @property
    def model(self) -> Seq2Seq:
        """The model, on its current device."""
        return self._placed.model

    @model.setter
    def model(self, model: Seq2Seq) -> None:
        self._placed = Placed(model, self.suppress)

    @property
    def device(self) -> torch.device:
        """The current device of the model."""
        return self._placed.device

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device: `cpu`, `cuda`, `cuda:1` or `mps`.

        From now on it does not move to a GPU automatically.
        """
        self.auto = False
        target = pick_device(str(device), "device")
        here = target.type == self.device.type and target.index in (None, self.device.index)
        if not here:
            self._placed = self._placed.moved(target, self._kind(target))
        return self

    def _kind(self, device: torch.device) -> torch.dtype:
        """The dtype of the weights there.

        A CPU that cannot multiply bfloat16 takes them as float32.
        """
        if self.search.precision != "bf16":
            return torch.float32
        if device.type == "cpu" and not cpu_has_bf16():
            return torch.float32
        return torch.bfloat16

    def expect(self, tokens: float) -> None:
        """Announce how many source tokens will be translated.

        With device="auto", this moves the model to a GPU if it is worth it.
        """
        if self.auto and self.device.type == "cpu":
            self._consider(self._work + tokens * self._parameters())

    def settle(self) -> None:
        """With device="auto": move to the GPU now, if there is one, and then never again."""
        self.expect(math.inf)
        self.auto = False

    def _count(self, tokens: int) -> None:
        """Note what there is to do, over all calls: many small ones are much work, too."""
        if self.auto and self.device.type == "cpu":
            self._work += tokens * self._parameters()
            self._consider(self._work)

    def _parameters(self) -> int:
        return sum(weight.numel() for weight in self.model.parameters())

    def _consider(self, work: float) -> None:
        """Move to the GPU, if there is one and the work is worth it."""
        if work < WORTH:
            return

        gpu = pick_device("auto", "device")
        if gpu.type == "cpu":
            self.auto = False  # there is none: do not ask again
            return
        try:
            self._placed = self._placed.moved(gpu, self._kind(gpu))
        except RuntimeError as error:  # out of memory, or a driver that refuses
            self._give_up_gpu(reason_of(error))

    def _give_up_gpu(self, reason: str) -> None:
        """Go on on the CPU, since the GPU cannot be used, and say so."""
        self.auto = False
        cpu = torch.device("cpu")
        if self.device.type != "cpu":
            self._placed = self._placed.moved(cpu, self._kind(cpu))
        advice = "device=cpu avoids this warning"
        warnings.warn(
            f"the GPU cannot be used ({reason}); continuing on the CPU ({advice})", stacklevel=3
        )

    def __getstate__(self) -> dict[str, Any]:
        """What another process can have: no graphs and locks, and the weights on the CPU."""
        state = {**self.__dict__, "_placed": None}
        on_cpu = self._placed
        if self.device.type != "cpu":
            cpu = torch.device("cpu")
            on_cpu = on_cpu.moved(cpu, self._kind(cpu))
        return {**state, "model": on_cpu.model, "device": str(self.device)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        model = state.pop("model")
        device = state.pop("device")
        self.__dict__.update(state)
        self._placed = Placed(model, self.suppress)
        if device != "cpu":
            self.auto = True  # back to a GPU, if there is one here

    def _decode(self, jobs: Sequence[Job], search: Search, no_repeat: int = 0) -> None:
        """Fill what each job has found; on the CPU, where the GPU cannot.

        no_repeat: instead of the setting, where it is not 0.
        """
        placed = self._placed
        failure = ""
        try:
            self._decode_on(placed, jobs, search, no_repeat)
        except RuntimeError as error:
            if not self._may_retry(placed):
                if not isinstance(error, torch.OutOfMemoryError):
                    raise
                advice = "lower search.batch_tokens or the beam width, or use device=cpu"
                raise UserError(f"out of memory on {placed.device}: {advice}") from error
            # Not the error itself, whose frames hold what filled the memory.
            failure = reason_of(error)

        if failure:
            placed.release()
            if self._placed is placed:
                self._give_up_gpu(failure)
            self._decode_on(self._placed, jobs, search, no_repeat)

    def _may_retry(self, placed: Placed) -> bool:
        """Whether jobs that failed on a device may be decoded on another one.

        They may on a GPU that was chosen by itself, or that another thread has given up meanwhile.
        """
        given_up = self._placed is not placed
        return placed.device.type != "cpu" and (self.auto or given_up)

    def _decode_on(
        self, placed: Placed, jobs: Sequence[Job], search: Search, no_repeat: int
    ) -> None:
        """Fill what each job has found, by a model on one device."""
        rules = self._rules(placed.device, no_repeat)
        every = bool(self.search.coverage)  # by which they are ranked anew
        placed.decode(jobs, search, rules, self.search.batch_tokens, every=every)

    def _rules(self, device: torch.device, no_repeat: int = 0) -> Rules:
        """What may be produced; no_repeat: instead of the setting, where it is not 0."""
        demands = Constraints(no_repeat=no_repeat or self.search.no_repeat)
        return Rules(demands, self.search.minimum, self.suppress, device)

    def _check_width(self, width: int) -> None:
        """Refuse a beam that the vocabulary cannot fill; memory is looked at when texts come."""
        size = len(self.suppress)
        if width > max(size, 5):
            raise UserError(
                f"a beam of {width:,} is wider than the target vocabulary of {size:,} tokens: use "
                f"a narrower one (--beam, --nbest, search.width)"
            )


def check_texts(texts: Iterable[str], call: str) -> None:
    """Refuse one text where several are expected: each of its letters would be one."""
    if isinstance(texts, str):
        raise UserError(f"{call}() takes a list of texts: write {call}([text])")


def never_written(tokenizer: Tokenizer) -> Tensor:
    """(V,): True for the ids that no answer has: specials but <eos>, and tags."""
    suppress = torch.arange(tokenizer.size) < tokenizer.first
    suppress[[EOS]] = False
    suppress[tokenizer.text_size :] = True  # tags
    return suppress


def check_options(given: Iterable[str]) -> None:
    """Refuse an option of `load` that there is not."""
    known = get_type_hints(SearchConfig)
    for name in given:
        if name not in known:
            options = ["checkpoint", "beam", "device", "parts", "kind", *known]
            raise UserError(f"load() has no option {name}{nearest(name, options)}")


def search_settings(run: Run, beam: int | None, given: Mapping[str, Any]) -> SearchConfig:
    """The search settings of a run, with those that the caller of `load` overrides."""
    check_options(given)
    chosen = {**to_settings(run.config)["search"], **given}
    if beam is not None:
        chosen["width"] = beam
    return build({"search": chosen}).search


def put(model: nn.Module, place: torch.device, kind: torch.dtype) -> None:
    """Put the weights of a model that only decodes onto a device."""
    if place.type == "cpu":
        read_only(model, kind)
    else:
        model.to(place, kind)


def reason_of(error: RuntimeError) -> str:
    """Why a GPU cannot be used, in a line."""
    if isinstance(error, torch.OutOfMemoryError):
        free, total = torch.cuda.mem_get_info()
        return f"out of memory: {free / 2**20:,.0f} of {total / 2**20:,.0f} MiB are free"
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def first_place(device: str, kind: torch.dtype) -> torch.device:
    """Where a model of this dtype begins; auto is the CPU, if it can multiply that dtype."""
    place = pick_device("cpu" if device == "auto" else device, "device")
    if kind != torch.bfloat16 or place.type != "cpu" or cpu_has_bf16():
        return place

    place = pick_device(device, "device")  # auto: a GPU may have what this CPU lacks
    if place.type == "cpu":
        raise UserError(
            "search.precision=bf16: PyTorch has no bfloat16 matrix products on this CPU; use fp32"
        )
    return place
