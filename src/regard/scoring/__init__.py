"""Judging outputs: scores against references, the doubt about them, and the report that `evaluate`
prints.
"""

from regard.scoring.metrics import bleu, chrf, exact_match, per, sentence_bleu, ter, wer
from regard.scoring.report import Report, report

__all__ = ["Report", "bleu", "chrf", "exact_match", "per", "report", "sentence_bleu", "ter", "wer"]
