"""What every tokenizer shares: the reserved ids, and the text as it is before it is cut."""

import re
import unicodedata

PAD, BOS, EOS, UNK = range(4)
# Ids beyond the four above that a vocabulary reserves unless text.reserved says otherwise: models
# keep their ids when one of these comes into use.
RESERVED = 12
# Where ordinary tokens start then. Of a given tokenizer: `tokenizer.first`.
FIRST = 4 + RESERVED
SPECIALS = (
    *("<pad>", "<bos>", "<eos>", "<unk>", "<mask>"),
    *(f"<sentinel{i}>" for i in range(1, 8)),
    *(f"<tag{i}>" for i in range(1, 5)),
)
assert len(SPECIALS) == FIRST

UNKNOWN = "⁇"  # how <unk> shows in decoded text
_SURROGATE = re.compile("[\ud800-\udfff]")


def normalise(text: str) -> str:
    """The text as every tokenizer sees it.

    It is NFC, and lone surrogates, which Python lets be but which are no text, are U+FFFD.
    """
    if text.isascii():
        return text
    try:
        text.encode()  # quicker than to look for a surrogate
    except UnicodeEncodeError:
        text = _SURROGATE.sub("\ufffd", text)
    return unicodedata.normalize("NFC", text)
