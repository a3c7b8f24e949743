"""Lines that commands read: whole ones, whatever is read at once, and never without an end."""

import pytest

from regard.cli import lines
from regard.cli.lines import line_bursts, text_bursts
from regard.errors import UserError


@pytest.fixture
def file(tmp_path, monkeypatch):
    """file(content): the path of a file, of which a few bytes are read at a time."""
    monkeypatch.setattr(lines, "BLOCK", 4)

    def write(content):
        path = tmp_path / "texts.txt"
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\n\n", b"a", b"a\n", b"long line\nb\n\nlong end", b"abc\nabcd\n"]
)
def test_lines_are_whole(file, content):
    found = [line for burst in line_bursts(file(content), lambda: 2) for line in burst]
    assert b"".join(line + b"\n" for line in found) == content + b"\n" * (content[-1:] not in b"\n")


def test_a_line_without_an_end_is_refused(file, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST", 20)
    assert list(line_bursts(file(b"x" * 20 + b"\n"), lambda: 2)) == [[b"x" * 20]]
    with pytest.raises(UserError, match="a line of more than 20 bytes"):
        list(line_bursts(file(b"a\n" + b"x" * 40), lambda: 2))


def test_what_the_disk_refuses_names_the_file(file, monkeypatch):
    path = file(b"a\n")

    class Broken:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def read(self, _):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(type(path), "open", lambda *_, **__: Broken())
    with pytest.raises(UserError, match=r"texts\.txt: Input/output error$"):
        list(line_bursts(path, lambda: 2))


def test_a_replacement_character_of_the_text_is_no_mistake(capsys):
    burst = ["a \ufffd\r".encode(), b"b"]
    assert list(text_bursts([burst])) == [["a \ufffd", "b"]]
    assert capsys.readouterr().err == ""
