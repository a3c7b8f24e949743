"""Whether the first line of a table is a header, and what its names say."""
# ruff: noqa: SIM905 - lists of words read best as words

import re
from collections.abc import Callable, Sequence

_ROLES = (  # the name of a source column, and those a target may have beside it
    (("source", "src"), ("target", "tgt", "trg")),
    (("source_text", "src_text"), ("target_text", "tgt_text")),
    (("input", "inputs"), ("output", "outputs", "label", "target")),
    (("question", "questions"), ("answer", "answers")),
    (("prompt", "instruction"), ("completion", "response", "output")),
    (("text", "sentence", "document", "article"), ("translation", "summary", "label", "target")),
    (("word", "grapheme", "graphemes"), ("pronunciation", "phonemes", "phoneme", "lemma", "ipa")),
    (("original",), ("translation", "corrected", "simplified")),
)
_LANGUAGES = frozenset(
    "afrikaans albanian amharic arabic armenian azerbaijani basque belarusian bengali bosnian "
    "bulgarian burmese catalan chinese croatian czech danish dutch english esperanto estonian "
    "finnish french galician georgian german greek gujarati hausa hebrew hindi hungarian icelandic "
    "igbo indonesian irish italian japanese kannada kazakh khmer korean kurdish lao latin latvian "
    "lithuanian macedonian malay malayalam maltese mandarin marathi mongolian nepali norwegian "
    "pashto persian polish portuguese punjabi romanian russian sanskrit serbian sinhala slovak "
    "slovenian somali spanish sundanese swahili swedish tagalog tamil telugu thai tibetan turkish "
    "ukrainian urdu uzbek vietnamese welsh xhosa yoruba zulu".split()
)
_CODES = frozenset(
    "af am ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gl gu he hi hr hu hy id "
    "is it ja ka kk km kn ko ku lo lt lv mk ml mn mr ms mt my ne nl no pa pl ps pt ro ru sa si sk "
    "sl so sq sr sv sw ta te th tl tr uk ur uz vi xh yo zh zu eng deu ger fra fre spa ita por rus "
    "jpn zho cmn kor ara nld pol tur".split()
)
_NUMBERING = ("", "#", "id", "index", "idx", "no", "nr", "num", "number", "key", "unnamed: 0")
_NAME = re.compile(r"[^\W\d][\w .()/:-]{0,38}[\w)]|[^\W\d_]")
_DIGIT = re.compile(r"\d")
_SEEN = 5  # rows at least, to tell a header by how the others look
_MOST = 0.9
_SENTENCE_ENDS = tuple(".!?…。！？।؟")


def is_header(first: Sequence[str], others: Sequence[Sequence[str]], *, strict: bool) -> bool:
    """Whether the first line names columns.

    With `strict` only by well-known names; without it also by how the other lines look.
    """
    names = [plain(cell) for cell in first]
    if len(names) < 2 or len({*names}) < len(names):
        return False
    if not all(_NAME.fullmatch(name) or name in _NUMBERING for name in names):
        return False
    if _roles(names) is not None or sum(name in _LANGUAGES for name in names) >= 2:
        return True
    if sum(re.split(r"[-_]", name)[0] in _CODES for name in names) >= 2:
        return _mean_words(others) >= 2
    return not strict and _looks_different(names, others)


def _looks_different(names: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether the other lines have digits where the first has a name, or whole sentences."""
    rows = [row for row in others if len(row) == len(names)]
    if len(rows) < _SEEN:
        return False
    for column, name in enumerate(names):
        if name and not _DIGIT.search(name) and all(_DIGIT.search(row[column]) for row in rows):
            return True
    single = all(len(name.split()) == 1 for name in names)
    return single and all(len(cell.split()) > 1 for row in rows for cell in row[:2])


def may_be_header(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether a first line that is read as a pair is so unlike the others that it may name them."""
    names = [plain(cell) for cell in first]
    if len({*names}) < len(names) or not all(map(_NAME.fullmatch, names)):
        return False
    if len(others) < _SEEN or any(len(name.split()) > 3 for name in names):
        return False
    for column, name in enumerate(names):
        cells = [row[column] for row in others]
        if not _DIGIT.search(name) and _most(cells, lambda cell: _DIGIT.search(cell) is not None):
            return True

    cells = [cell.strip() for row in others for cell in row]
    single = all(len(name.split()) == 1 for name in names)
    if single and _most(cells, lambda cell: len(cell.split()) > 1):
        return True
    if _most(cells, lambda cell: cell[-1:] in _SENTENCE_ENDS):
        return not any(name[-1] in _SENTENCE_ENDS for name in names)
    return all(cell.strip("\ufeff ")[0].isupper() for cell in first) and _most(
        cells, lambda cell: cell[:1].islower()
    )


def _most(cells: Sequence[str], fits: Callable[[str], bool]) -> bool:
    return sum(map(fits, cells)) >= _MOST * len(cells)


def _mean_words(rows: Sequence[Sequence[str]]) -> float:
    words = [len(cell.split()) for row in rows for cell in row[:2]]
    return sum(words) / max(1, len(words))


def text_columns(names: Sequence[str]) -> list[int]:
    """The columns of a header that hold source and target, where nobody says which."""
    plain_names = [plain(name) for name in names]
    roles = _roles(plain_names)
    if roles is not None:
        return roles
    languages = [
        column
        for column, name in enumerate(plain_names)
        if name in _LANGUAGES or re.split(r"[-_]", name)[0] in _CODES - {"id", "no"}
    ]
    if len(languages) >= 2:
        return languages[:2]
    texts = [column for column, name in enumerate(plain_names) if name not in _NUMBERING]
    return texts[:2] if len(texts) >= 2 else [0, 1]


def _roles(names: Sequence[str]) -> list[int] | None:
    """The columns that are called like a source and its target."""
    for sources, targets in _ROLES:
        source = [names.index(name) for name in sources if name in names]
        target = [names.index(name) for name in targets if name in names]
        if source and target:
            return [source[0], target[0]]
    return None


def has_roles(names: Sequence[str]) -> bool:
    """Whether columns are called like a source and its target; the names are plain."""
    return _roles(names) is not None


def plain(name: str) -> str:
    """A name as it is compared."""
    return name.strip().strip("\ufeff").casefold()
