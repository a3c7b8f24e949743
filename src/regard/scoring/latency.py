"""How far simultaneous translation lags behind its source, in source words."""

from collections.abc import Sequence


def delays(source: Sequence[int], target: Sequence[int], wait: float) -> list[int]:
    """How many source words were read when each target word was complete, under wait-k.

    Target token t needs wait + t source tokens. source, target: the number of words after each
    token. The source's last token is <eos>.
    """
    at_last_token: dict[int, int] = {}  # by the number of target words
    for t, words in enumerate(target):
        if words:
            tokens_read = int(min(wait + t, len(source)))
            at_last_token[words] = source[tokens_read - 1]
    return list(at_last_token.values())


def average_lagging(delays: Sequence[float], source: int, target: int) -> float:
    """AL, average lagging: the mean of d_t − (t − 1) · source / target (Ma et al. 2019, eq. 8, 9).

    The mean goes up to the first target word that was written when all of the source was read.
    source, target: lengths in words. The target's is the reference's, as in SimulEval (Ma et al.
    2020).
    """
    lags = []
    for t, delay in enumerate(delays):
        lags.append(delay - t * source / target)
        if delay >= source:
            break
    if not lags:
        return float(source)  # an empty output has waited for everything
    return sum(lags) / len(lags)


def laal(delays: Sequence[float], source: int, target: int) -> float:
    """LAAL, length-adaptive average lagging (Papi et al. 2022).

    It is AL with the length of the output or the reference, whichever is longer, so that an output
    that is too long does not look fast.
    """
    return average_lagging(delays, source, max(len(delays), target))
