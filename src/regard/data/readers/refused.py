"""Files that cannot be read as pairs: what they are, and the way out."""

from pathlib import Path

_SHEET = (
    "save the sheet as CSV UTF-8 in the spreadsheet program (File > Save As), or read it with "
    "pandas.read_excel and pass the frame to regard.train"
)
_PICTURE = "a binary file (a picture); give a file of text pairs"
_OFFICE = (
    "a binary file (a document); copy its table into a spreadsheet program and save that as CSV "
    "UTF-8, or write TSV: one pair per line, with a tab between"
)

# By how a file begins.
_MAGIC = {
    b"\xd0\xcf\x11\xe0": f"a binary file (an old Excel or Word document); {_SHEET}",
    b"\xfd7zXZ": "a binary file compressed with xz; decompress it first: xz -d FILE",
    b"BZh": "a binary file compressed with bzip2; decompress it first: bunzip2 FILE",
    b"\x28\xb5\x2f\xfd": "a binary file compressed with zstd; decompress it first: zstd -d FILE",
    b"7z\xbc\xaf\x27\x1c": "a binary file (a 7z archive); unpack it and give the file inside",
    b"Rar!": "a binary file (a RAR archive); unpack it and give the file inside",
    b"\x1f\x8b": "a binary file compressed with gzip twice; decompress it once: gunzip FILE",
    b"\x89PNG": _PICTURE,
    b"\xff\xd8": _PICTURE,
    b"GIF8": _PICTURE,
    b"%PDF": (
        "a binary file (a PDF); copy its text (pdftotext -layout FILE), and write TSV: one pair "
        "per line, with a tab between"
    ),
    b"{\\rtf": _OFFICE,
    b"\x7fELF": "a binary file (a program); give a file of text pairs",
    b"SQLite format 3": "a binary file (an SQLite database); export the table as CSV",
    b"ARROW1": "a binary file (Arrow or Feather); write it as Parquet",
    b"FEA1": "a binary file (Feather); write it as Parquet",
    b"\x89HDF": "a binary file (HDF5); write the pairs as TSV or Parquet",
    b"\x93NUMPY": "a binary file (a NumPy array); write the pairs as TSV or JSON lines",
    b"version https://git-lfs": "a Git LFS pointer, not the data itself; fetch it: git lfs pull",
}
# Zip archives, by the ending of their names; and what a file inside is called.
_ZIPPED = {
    ".xlsx": f"an Excel file; {_SHEET}",
    ".ods": f"a spreadsheet; {_SHEET}",
    ".docx": _OFFICE,
    ".odt": _OFFICE,
    ".npz": "a binary file (NumPy arrays); write the pairs as TSV or JSON lines",
}
_ZIP = "a binary file (a zip archive); unpack it and give the file inside"


def refusal(path: Path, block: bytes) -> str | None:
    """Why a file cannot be read, and what to do instead; None: it may well be readable."""
    if block.startswith(b"PK\x03\x04"):
        return _zip_refusal(path, block)
    for magic, words in _MAGIC.items():
        if block.startswith(magic):
            return words.replace("FILE", path.name)
    if block[257:262] == b"ustar":
        return f"a tar archive; unpack it and give the file inside: tar -xf {path.name}"
    if block[:2] == b"\x80\x04" or block[:2] == b"\x80\x05":
        return (
            "a binary file (a Python pickle), which is not safe to open; write JSON lines instead"
        )

    head = block[:1_000].lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        if b"<table" in block.lower():
            return (
                f'a web page with a table; turn it into CSV: python -c "import pandas; '
                f"pandas.read_html('{path.name}')[0].to_csv('pairs.csv', index=False)\""
            )
        return "a web page, not data; the download may have returned a page instead of the file"
    if head.startswith(b"<?xml") and b"<tmx" not in block.lower():
        return "XML, but not TMX; convert it to TMX, TSV or CSV"
    return None


def _zip_refusal(path: Path, block: bytes) -> str:
    for ending, words in _ZIPPED.items():
        if path.name.lower().endswith(ending):
            return words
    if b"xl/" in block or b"xl\\" in block:
        return _ZIPPED[".xlsx"]
    if b"word/" in block or b"opendocument.text" in block:
        return _OFFICE
    if b"opendocument.spreadsheet" in block:
        return _ZIPPED[".ods"]
    return _ZIP
