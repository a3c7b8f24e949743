"""A12: the real file, fetched by a command."""

import pytest
from typer.testing import CliRunner

import regard.data.remote
from regard.cli import app
from regard.data.remote import RemoteCorpus, RemoteFile, remote_corpora


def test_a12_the_books_file_is_known_by_its_sum():
    [file] = remote_corpora()["tatoeba-fra-eng"].files
    assert file.url.endswith("/fra-eng.zip")
    assert file.sha1 == "94646ad1522d915e7b0f9296181140edcf86a4f5"


@pytest.mark.parametrize("home", ["", "corpora"])
def test_a12_the_command_says_where_it_was_put_and_what_to_type_next(tmp_path, monkeypatch, home):
    """No server here: what the network gives is in tests/data/test_remote.py."""

    def download(url, path, tell):
        assert url == "http://localhost/pairs"
        path.write_bytes(b"go .\tva !\n")

    file = RemoteFile("train.tsv", "http://localhost/pairs")
    known = {"pairs": RemoteCorpus("A pair.", (file,), "--preset d2l")}
    monkeypatch.setattr(regard.data.remote, "remote_corpora", lambda: known)
    monkeypatch.setattr(regard.data.remote, "download", download)
    monkeypatch.setenv("REGARD_DATA", home)
    monkeypatch.chdir(tmp_path)

    done = CliRunner().invoke(app, ["data", "fetch", "pairs"], catch_exceptions=False)
    folder = f"{home or 'data'}/pairs"
    assert done.exit_code == 0
    assert f"Saved in {folder}. Try next:\n  regard train {folder} --preset d2l\n" in done.stdout
    assert (tmp_path / folder / "train.tsv").read_bytes() == b"go .\tva !\n"
    assert "fetching http://localhost/pairs\n" in done.stderr
    assert "no sum is known" in done.stderr
