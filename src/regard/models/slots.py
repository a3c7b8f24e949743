"""What the hypotheses of a sentence share: the state of a Transformer's decoder.

Every token that any hypothesis has read gets a slot, once per sentence and block: its keys and
values. `seen` says which slots are the past of which hypothesis. With B = 1 sentence and K = 3
hypotheses, after two steps:

    slot            0     1     2     3     4     5
    step            1     1     1     2     2     2
    token          the    a    one   cat   dog   cat

    hypothesis 0    x     .     .     x     .     .     the cat
    hypothesis 1    x     .     .     .     x     .     the dog
    hypothesis 2    .     x     .     .     .     x     a cat

Hypotheses 0 and 1 grew from the same one, so both look at slot 0. To choose among hypotheses means
to pick rows of `seen` (B, K, S), a few bits; keys and values stay where they are. What no
hypothesis looks at any more (slot 2) is left behind when they are copied anyway: when other
sentences join, and when the room that is reserved for slots is full. So is what a pattern hides
from all later tokens: with a window, no more slots are kept than it reaches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.models.seq2seq import Memory
from regard.nn import KeyValue, Mask, Pattern
from regard.nn.state import spare_slots


@dataclass(frozen=True)
class TransformerState:
    """How far a decoder has come with B sentences, K hypotheses each."""

    own: tuple[KeyValue, ...]
    """Of each block, the slots: what was read of the target. Empty before the first token."""
    cross: tuple[KeyValue, ...]
    """Of each block, what is looked at in the source. Empty in a language model."""
    lengths: Tensor
    """(B,): of the sources."""
    at: Tensor
    """(B,): target tokens read so far."""
    seen: Tensor | None = None
    """(B, K, S): which slots are a hypothesis' past. None: there is one, and all slots are."""
    raw: Memory | None = None
    """In training, instead of `cross`: the packed states, which each block projects itself."""
    wait: int = 0
    """Wait-k (Ma et al. 2019): target token t sees wait + t tokens of the source. 0: all."""
    pattern: Pattern | None = None
    """Which of the slots of its past a token may look at, for long targets. None: all."""
    source_mask: Mask | None = None
    """The mask of the source in the step before, good as long as it is of the same lengths."""

    @property
    def slots(self) -> int:
        """S: how many slots a sentence has."""
        return len(self.own[0]) if self.own else 0

    @property
    def slot_positions(self) -> Tensor:
        """(B, S): where the token of each slot stands in its target."""
        return self.own[0].positions if self.own else self.at.new_zeros(len(self.at), 0)

    @property
    def source_positions(self) -> Tensor:
        """(B, S): where each token of the source stands."""
        if self.raw is None:
            return self.cross[0].positions
        if self.raw.positions is not None:
            return self.raw.positions
        assert self.raw.layout is not None
        places = torch.arange(self.raw.layout.length, device=self.at.device)  # (S,)
        return places.expand(len(self.at), -1)

    # ---- what may be seen ----

    def sight(self, beams: int, steps: int) -> Tensor:
        """(B, K · T, S + K · T): what each of T new tokens of every hypothesis may look at.

        These are the slots of its own past, and the new tokens of its hypothesis up to itself.
        """
        past = self._seen().repeat_interleave(steps, 1)  # (B, K · T, S)
        same_hypothesis = torch.eye(beams, device=self.at.device)  # (K, K)
        not_later = torch.ones(steps, steps, device=self.at.device).tril()  # (T, T)
        new = same_hypothesis.kron(not_later).bool()  # (K · T, K · T)
        return torch.cat((past, new.expand(len(self.at), -1, -1)), -1)

    def masks(self, sight: Tensor | None, places: Tensor) -> tuple[Mask, Mask]:
        """The masks of the target and of the source, for new tokens at these places (B, K · T)."""
        past = Mask(causal=True, offset=self.slots, pattern=self.pattern, filled=True)
        if sight is not None:
            if self.pattern is not None:
                sight = sight & self._within_pattern(places)
            past = Mask(extra=sight[:, None], filled=True)  # a token sees at least itself

        source = self.source_mask
        if source is None or not self._still_good(source):
            reach = self.reach(places)
            source = Mask(key_lengths=reach, filled=True)  # a source holds at least <eos>
        return past, source

    def _within_pattern(self, places: Tensor) -> Tensor:
        """(B, K · T, S + K · T): what the pattern allows tokens at these places (B, K · T)."""
        assert self.pattern is not None
        read = torch.cat((self.slot_positions, places), 1)  # (B, S + K · T)
        no_length = places.new_zeros(())  # a target is not complete yet
        return self.pattern.allows(places[:, :, None], read[:, None], no_length)

    def _still_good(self, source: Mask) -> bool:
        """Whether a mask was made of these very lengths, not only of equal ones: that is cheap."""
        return source.key_lengths is self.lengths

    def reach(self, places: Tensor) -> Tensor:
        """How much of the source may be seen: (B,), or (B, K · T) from each place."""
        if not self.wait:
            return self.lengths
        return torch.minimum(self.lengths[:, None], places + self.wait)

    def _seen(self) -> Tensor:
        """`seen`, also where one hypothesis sees everything: (B, K, S)."""
        if self.seen is not None:
            return self.seen
        return self.at.new_ones(len(self.at), 1, self.slots, dtype=torch.bool)

    # ---- what a search asks for ----

    def select(self, sentences: Tensor | None, beams: Tensor) -> TransformerState:
        """Keep `sentences` (B',) of the B, or all; of each, the hypotheses `beams` (B', K')."""
        one = self.seen is None and beams.shape[1] == 1
        if sentences is None:
            if one:
                return self
            rows = beams[..., None].expand(-1, -1, self.slots)  # (B, K', S)
            return replace(self, seen=self._seen().gather(1, rows))

        return TransformerState(
            own=tuple(kv.select(sentences) for kv in self.own),
            cross=tuple(kv.select(sentences) for kv in self.cross),
            lengths=self.lengths[sentences],
            at=self.at[sentences],
            seen=None if one else self._seen()[sentences[:, None], beams],
            wait=self.wait,
            pattern=self.pattern,
        )

    def join(self, other: TransformerState) -> TransformerState:
        """The sentences of both. What no hypothesis looks at any more is left behind."""
        first = self._used()  # (B, S')
        second = other._used()  # (B', S'')
        seen = [self._seen_among(first), other._seen_among(second)]
        slots = max(first.shape[1], second.shape[1])
        seen = [F.pad(each, (0, slots - each.shape[2])) for each in seen]

        own = zip(self._own_or_empty(other), other._own_or_empty(self))
        lengths = torch.cat((self.lengths, other.lengths))  # (B + B',)
        longest = int(lengths.max())  # the longest source may have left
        cross = zip(self.cross, other.cross)
        return TransformerState(
            own=tuple(  # block by block, so that no more than one is copied twice
                mine.gather(first).join(theirs.gather(second), spare=spare_slots(slots))
                for mine, theirs in own
            ),
            cross=tuple(mine.first(longest).join(theirs) for mine, theirs in cross),
            lengths=lengths,
            at=torch.cat((self.at, other.at)),
            seen=torch.cat(seen),
            wait=self.wait,
            pattern=self.pattern,
        )

    def seen_up_to(self, lengths: Tensor) -> TransformerState:
        """As if only the first `lengths` (B,) of the slots had been read.

        For states with one hypothesis a sentence, which have read all tokens in one pass.
        """
        if int(lengths.min()) == self.slots:
            return self
        places = torch.arange(self.slots, device=lengths.device)  # (S,)
        seen = places < lengths[:, None]  # (B, S)
        return replace(self, at=lengths, seen=seen[:, None])

    def with_room(self, tokens: int) -> TransformerState:
        """The state before so many more slots are written, perhaps with fewer of them.

        If they do not fit into the reserved room, the slots are copied to a larger one, without
        those that no hypothesis looks at any more: of a beam, that is most of them.
        """
        if not self.own or (self.seen is None and self.pattern is None):
            return self
        slots = self.own[0]
        is_unreserved = slots.storage is None and self.pattern is not None  # a prefix was read
        if not slots.is_full(tokens) and not is_unreserved:
            return self
        used = self._used()  # (B, S')
        spare = tokens + spare_slots(used.shape[1])
        own = tuple(kv.gather(used, spare=spare) for kv in self.own)
        return replace(self, own=own, seen=self._seen_among(used))

    def _own_or_empty(self, other: TransformerState) -> tuple[KeyValue, ...]:
        """`own`; before the first token, as many without a slot, if the other state has some."""
        if self.own:
            return self.own
        return tuple(kv.empty(len(self.at)) for kv in other.own)

    def _used(self) -> Tensor:
        """(B, S'): which slots hypotheses look at, first to last.

        S' is the most of any sentence. A sentence that has fewer is filled up with unused ones.
        """
        used = self._seen().any(1)  # (B, S)
        if self.pattern is not None:
            used = used & ~self.pattern.is_forgotten(self.slot_positions, self.at[:, None])
        most = int(used.sum(1).max()) if self.slots else 0
        used_first = used.byte().argsort(dim=1, descending=True, stable=True)  # (B, S)
        return used_first[:, :most]

    def _seen_among(self, slots: Tensor) -> Tensor:
        """(B, K, S'): `seen`, of these slots (B, S') only."""
        seen = self._seen()
        return seen.gather(2, slots[:, None].expand(-1, seen.shape[1], -1))
