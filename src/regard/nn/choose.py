"""Which kernel computes an attention: one list, asked in order. All give the numbers of the
readable formula.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from regard.nn.masks import Layout, Mask

TRITON = find_spec("triton") is not None  # comes with torch where there may be a GPU

SHORT = {"cpu": 256, "cuda": 64}
"""Keys up to which training is faster with whole matrices of weights than with blocked kernels."""

HALF = (torch.bfloat16, torch.float16)
"""What kernels of variable length compute in. float32 is never rounded to fit them."""


def short(device: str) -> int:
    """`SHORT` of a type of device; one that was never measured is taken for a GPU."""
    return SHORT.get(device, SHORT["cuda"])


@dataclass(slots=True)
class Case:
    """Everything about one call of an attention that decides which kernel computes it."""

    mask: Mask
    queries: int
    keys: int
    device: str
    """The type of the device, such as `cuda`."""
    width: int
    """Of one head."""
    product: bool
    """The score is a product that a fused kernel can compute, and the position does not forbid it.
    """
    plain: bool
    """No position acts inside, and keys need no preparing: projected rows go into the kernel as
    they are.
    """
    dropout: float
    """Of the weights, now."""
    gradients: bool
    compiling: bool
    watched: bool
    layouts: tuple[Layout, Layout] | None = None
    """Of queries and keys that are still rows of tokens (N, D), where nobody needs the keys
    afterwards.
    """
    dtype: torch.dtype | None = None
    """What the projections will make of these rows (autocast included)."""
    own: bool = False
    """One product makes queries, keys and values of the same rows."""
    heads: tuple[Tensor, Tensor, Tensor] | None = None
    """Queries, keys and values (B, H, T, D), where they are made already."""
    term: bool = False
    """The position adds something to the scores."""


def choose(case: Case) -> str:
    """The name of the first kernel of `KERNELS` that applies."""
    for name, applies in KERNELS:
        if applies(case):
            return name

    raise AssertionError("the last kernel applies to everything")


def _variable_length(case: Case) -> bool:
    """Packed rows, each sentence alone: no padding at all. Decided once for both sides: they must
    have the same form.
    """
    if case.layouts is None or not case.product or not case.plain:
        return False

    query, key = case.layouts
    if query.offsets is None or key.offsets is None:
        return False

    mask = case.mask
    by_sentence = mask.key_lengths is None or mask.key_lengths.dim() == 1
    if mask.extra is not None or mask.window is not None or not by_sentence:
        return False
    if mask.causal and (mask.offset != 0 or query is not key):
        return False

    long = max(query.length, key.length) > short("cuda")
    kernel = (
        case.dtype in HALF and case.width % 8 == 0 and case.width <= 256 and has_flash(case.device)
    )
    return long and kernel and not case.dropout and not case.watched and mask.never_empty


def _pooled_own(case: Case) -> bool:
    """Whole matrices of weights straight from (B, T, 3 · H · D), in training."""
    if not case.own or case.layouts is None or not case.product or not case.plain:
        return False

    return (
        case.keys <= short(case.device)
        and case.mask.extra is None
        and case.gradients
        and not case.compiling
    )


def _readable(case: Case) -> bool:
    """Weights, then the values they weigh: what any score and position can do."""
    return not case.product


def _compiled(case: Case) -> bool:
    """The readable formula again: a compiler makes a kernel of it."""
    return case.compiling and _trains_short(case)


def _pooled(case: Case) -> bool:
    """Whole matrices of weights, in training."""
    return not case.compiling and _trains_short(case)


def _trains_short(case: Case) -> bool:
    return (
        case.gradients
        and case.keys <= short(case.device)
        and case.mask.extra is None
        and not case.term
    )


def _triton(case: Case) -> bool:
    """Few queries over many keys, in decoding."""
    if (
        case.device != "cuda"
        or not TRITON
        or case.gradients
        or case.compiling
        or case.heads is None
    ):
        return False

    mask = case.mask
    hides = not (mask.free(case.queries, case.keys) or mask.square(case.queries, case.keys))
    if not (hides or case.term):
        return False

    from regard.nn import gpu

    return gpu.can_look(*case.heads)


def _only_rows(case: Case) -> bool:
    """No kernel starts from these rows: make heads of them and ask again."""
    return case.heads is None


def _anything(case: Case) -> bool:
    """torch's scaled_dot_product_attention."""
    return True


KERNELS: tuple[tuple[str, Callable[[Case], bool]], ...] = (
    ("variable_length", _variable_length),
    ("pooled_own", _pooled_own),
    ("heads", _only_rows),
    ("readable", _readable),
    ("compiled", _compiled),
    ("pooled", _pooled),
    ("triton", _triton),
    ("sdpa", _anything),
)


@cache
def has_flash(device: str) -> bool:
    """Whether a type of device runs torch's flash attention of variable length."""
    if device != "cuda" or find_spec("torch.nn.attention.varlen") is None:
        return False

    return torch.cuda.get_device_capability() >= (8, 0)
