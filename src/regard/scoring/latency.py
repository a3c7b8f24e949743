"""How far simultaneous translation lags behind its source, in source words."""

from collections.abc import Sequence


def delays(source: Sequence[int], target: Sequence[int], wait: float) -> list[int]:
    """Source words read when each target word was complete, under wait-k: target token t needs wait
    + t source tokens.

    source, target: the number of words after each token. The source's last token is <eos>.
    """
    last = {
        words: source[int(min(wait + t, len(source))) - 1]
        for t, words in enumerate(target)
        if words
    }
    return list(last.values())


def average_lagging(delays: Sequence[float], source: int, target: int) -> float:
    """AL (Ma et al. 2019, eq. 8 and 9): mean of d_t − (t − 1) · source / target, up to the first
    word written with all read.

    source, target: lengths in words. The target's is the reference's, as in SimulEval (Ma et al.
    2020).
    """
    lags = []
    for t, delay in enumerate(delays):
        lags.append(delay - t * source / target)
        if delay >= source:
            break
    return sum(lags) / len(lags) if lags else float(source)  # who says nothing has waited for all


def laal(delays: Sequence[float], source: int, target: int) -> float:
    """LAAL (Papi et al. 2022): AL with the longer of output and reference, so that writing too much
    does not look fast.
    """
    return average_lagging(delays, source, max(len(delays), target))
