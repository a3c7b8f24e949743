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
# What a guess may name, the likelier first: what people call it, and the characters beyond ASCII
# that are likely where they stand. Western accents are rarely three in a row, capitals begin words.
_ACCENTED = "(?<![^\0-\x7f])[{0}]{{1,2}}(?![^\0-\x7f])"
_WESTERN = _ACCENTED.format("À-ÖØ-öø-ÿ«»¿¡\xa0°º§")
_TYPOGRAPHIC = _ACCENTED.format("À-ÖØ-öø-ÿ«»¿¡\xa0°º§“”„‘’…–—€œŒ•™")
_CENTRAL = _ACCENTED.format("À-ÖØ-öø-ÿĀ-žȘ-ț“”„‘’…–—")
_CYRILLIC = "\\b[А-ЯЁІЇЄҐЎ]?[а-яёіїєґў]+|[«»—–№“”„…]"
_JAPANESE = "[\u3000-\u30ff\u4e00-\u9fff\uff01-\uff5e]*[\u3040-\u30ff][\u3000-\u30ff\u4e00-\u9fff]*"
_CHINESE = "[\u3001\u3002\u4e00-\u9fff\uff01-\uff5e]"
_GUESSES = {
    "latin-1": ("Latin-1 (Western European)", _WESTERN),
    "cp1252": ("Windows-1252 (Western European)", _TYPOGRAPHIC),
    "cp1250": ("Windows-1250 (Central European)", _CENTRAL),
    "cp1255": ("Windows-1255 (Hebrew)", "[\u05d0-\u05ea][\u0591-\u05ea]*"),
    "cp1251": ("Windows-1251 (Cyrillic)", _CYRILLIC),
    "koi8-r": ("KOI8-R (Cyrillic)", _CYRILLIC),
    "cp1253": ("Windows-1253 (Greek)", "\\b[Α-ΫΆ-Ώ]?[ά-ώΐ]+|[«»·’–]"),
    "cp1256": ("Windows-1256 (Arabic)", "[\u060c\u061b\u061f-\u06d2]+"),
    "shift_jis": ("Shift JIS (Japanese)", _JAPANESE),
    "euc-jp": ("EUC-JP (Japanese)", _JAPANESE),
    "euc-kr": ("EUC-KR (Korean)", "[\uac00-\ud7a3]"),
    "gb18030": ("GB 18030 (Chinese)", _CHINESE),
    "big5": ("Big5 (Chinese)", _CHINESE),
}
_COMMON = {"gb18030": ("gb2312", range(0xA1, 0xD8)), "big5": ("big5", range(0xA1, 0xC7))}
_CONTROLS = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")


def known_encoding(name: str | None) -> str | None:
    """The encoding of that name; None for UTF-8, which is read without being told."""
    if not name:
        return None
    try:
        "".encode(name)
        canonical = codecs.lookup(name).name
    except (LookupError, ValueError):
        raise UserError(
            f"data.encoding={name}: unknown encoding; use one such as latin-1, cp1252 or utf-16"
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
    best = "latin-1"
    best_share = 0.0
    for name in _GUESSES:
        share = _likely_share(strange, name)
        if share > best_share:
            best = name
            best_share = share
    return best, _GUESSES[best][0]


def _likely_share(block: bytes, encoding: str) -> float:
    """How many of the characters beyond ASCII are likely where they stand, in an encoding."""
    try:
        text = block[: block.rfind(b"\n")].decode(encoding)
    except UnicodeDecodeError:
        return 0.0
    likely = "".join(re.findall(_GUESSES[encoding][1], text))
    if encoding in _COMMON:
        charset, first_bytes = _COMMON[encoding]
        encoded = [character.encode(charset, "ignore") for character in likely]
        count = sum(code[:1] != b"" and code[0] in first_bytes for code in encoded)
    else:
        count = sum(not character.isascii() for character in likely)
    return count / max(1, sum(not character.isascii() for character in text))


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
