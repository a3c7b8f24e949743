"""Encodings other than UTF-8: by their mark, by the caller's word, or guessed for a message."""

import codecs
import re

from regard.errors import UserError

BOMS = {  # the longer marks first: that of UTF-32 begins like that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# What a guess may name, the likelier first, with what people call it.
_GUESSES = {
    "latin-1": "Latin-1 (Western European)",
    "cp1252": "Windows-1252 (Western European)",
    "cp1250": "Windows-1250 (Central European)",
    "cp1251": "Windows-1251 (Cyrillic)",
    "koi8-r": "KOI8-R (Cyrillic)",
    "cp1253": "Windows-1253 (Greek)",
    "cp1255": "Windows-1255 (Hebrew)",
    "cp1256": "Windows-1256 (Arabic)",
    "shift_jis": "Shift JIS (Japanese)",
    "euc-jp": "EUC-JP (Japanese)",
    "euc-kr": "EUC-KR (Korean)",
    "gb18030": "GB 18030 (Chinese)",
    "big5": "Big5 (Chinese)",
}
_CONTROLS = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# A small letter before a capital, a Latin letter beside another script, a sign inside a word: what
# words in the wrong encoding are full of.
_ODD = re.compile(
    "[a-zß-öø-ÿ][A-ZÀ-ÖØ-Þ]|[а-я][А-Я]|[A-Za-zÀ-ÿ][\u0370-\u06ff]|[\u0370-\u06ff][A-Za-zÀ-ÿ]"
    "|[^\\W\\d_][¤¦§¨©ª¬®¯°±²³´µ¶¸¹º¼½¾×÷][^\\W\\d_]|[\x80-\x9f]|[\u2500-\u259f]"
    "|\\b[À-ÖØ-öø-ÿ]{4,}"
)


def known_encoding(name: str | None) -> str | None:
    """The encoding of that name; None for UTF-8, which is read without being told."""
    if not name:
        return None
    try:
        "".encode(name)
        canonical = codecs.lookup(name).name
    except (LookupError, ValueError):
        raise UserError(
            f"data.encoding={name}: no such encoding; give one such as latin-1, cp1252 or utf-16"
        ) from None
    return None if canonical in ("utf-8", "utf-8-sig") else canonical


def is_binary(block: bytes) -> bool:
    """Whether the first bytes of a file are no text in any encoding that could be guessed."""
    text = block.decode("utf-8", "replace")
    strange = text.count("\0") + text.count("\ufffd")
    if len(block) < 64 or strange <= 0.3 * len(text):
        return False
    return b"\n" not in block or _CONTROLS.search(block) is not None


def guess(block: bytes) -> tuple[str, str]:
    """The likeliest encoding of text that is not UTF-8: its name for Python, and for people."""
    strange = b"\n".join(line for line in block.split(b"\n") if not _is_utf8(line))
    scores = {}
    for name in _GUESSES:
        try:
            text = strange.decode(name)
        except UnicodeDecodeError:
            continue
        letters = max(1, sum(not character.isascii() for character in text))
        odd = len(_ODD.findall(text)) / letters
        if name in ("shift_jis", "euc-jp", "euc-kr", "gb18030", "big5"):
            odd = 1.0 - len(_CJK.findall(text)) / letters
        scores[name] = odd
    best = min(scores, key=scores.__getitem__, default="latin-1")
    return best, _GUESSES[best]


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
