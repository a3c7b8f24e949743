"""Corpora from the network, which is a server of the test's own."""

import io
import threading
import zipfile
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from regard.data import remote
from regard.data.remote import RECORD, RemoteCorpus, RemoteFile, fetch
from regard.data.splits import open_data
from regard.errors import Failed, UserError

PAIRS = "".join(f"go {i} .\tva {i} !\n" for i in range(2_000)).encode()


class Server(ThreadingHTTPServer):
    """Serves `files`; ends a connection after `most` bytes. Notes the ranges it was asked for."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.ranges = []
        self.most = 10**9
        self.knows_ranges = True

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        content = self.server.files.get(self.path[1:])
        if content is None:
            self.send_error(404)
            return
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        tag = f'"{sha1(content).hexdigest()}"'
        start = 0
        if asked and self.server.knows_ranges and self.headers.get("If-Range") == tag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][: self.server.most])

    def log_message(self, *words):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("REGARD_DATA", raising=False)
    with Server() as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


@pytest.fixture
def corpus(server, monkeypatch):
    """A corpus whose sum nobody knows; or a zip file, or whatever else is said of its file."""

    def put(content=PAIRS, **about):
        server.files["pairs"] = content
        file = RemoteFile("train.tsv", server.url("pairs"), **about)
        known = {"small": RemoteCorpus("Two thousand pairs.", (file,), "train.steps=5")}
        monkeypatch.setattr(remote, "remote_corpora", lambda: known)

    put()
    return put


def zipped(member="fra-eng/fra.txt"):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, PAIRS)
        archive.writestr("fra-eng/_about.txt", "about")
    return content.getvalue()


def fetched(folder):
    said = []
    assert fetch("small", folder, say=said.append) == folder
    assert (folder / "train.tsv").read_bytes() == PAIRS
    assert sorted(path.name for path in folder.iterdir()) == [RECORD, "train.tsv"]
    return said


def test_a_member_of_a_zip_file_with_a_known_sum(corpus, tmp_path):
    content = zipped()
    corpus(content, sha1=sha1(content).hexdigest(), member="fra-eng/fra.txt")
    _, checked = fetched(tmp_path / "data")
    assert checked == f"train.tsv: sha1 {sha1(content).hexdigest()}, as expected"
    first = next(iter(open_data(str(tmp_path / "data")).train))
    assert first.source.startswith("go ")
    assert first.targets[0].startswith("va ")


def test_a_wrong_sum_is_refused(corpus, tmp_path):
    corpus(zipped(), sha1="0" * 40, member="fra-eng/fra.txt")
    with pytest.raises(
        Failed, match=r"/pairs: not the file that was expected .* nothing was kept$"
    ):
        fetch("small", tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("content", [b"no zip file", zipped("elsewhere.txt"), zipped()[:-100]])
def test_a_zip_file_that_cannot_be_unpacked(corpus, tmp_path, content):
    corpus(content, member="fra-eng/fra.txt")
    with pytest.raises(Failed, match=r"fra-eng/fra\.txt cannot be unpacked"):
        fetch("small", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_the_first_sum_is_recorded_and_later_ones_are_compared(corpus, server, tmp_path):
    folder = tmp_path / "data"
    digest = sha256(PAIRS).hexdigest()
    assert fetched(folder)[1].startswith(f"train.tsv: sha256 {digest}, recorded to compare later")

    (folder / "train.tsv").unlink()
    assert fetched(folder)[1].startswith(f"train.tsv: sha256 {digest}, as on 20")

    (folder / "train.tsv").unlink()
    corpus(PAIRS + b"more\tplus\n")
    with pytest.raises(Failed, match=rf"not the file that was fetched on 20.* delete .*{RECORD}$"):
        fetch("small", folder)
    assert [path.name for path in folder.iterdir()] == [RECORD]

    (folder / RECORD).unlink()
    fetch("small", folder)
    assert (folder / "train.tsv").read_bytes().endswith(b"more\tplus\n")


def test_what_is_there_is_not_fetched_again(corpus, server, tmp_path):
    fetched(tmp_path)
    assert len(server.ranges) == 1
    [there] = fetched(tmp_path)
    assert there.startswith(f"{tmp_path / 'train.tsv'} is there already (fetched on 20")
    assert len(server.ranges) == 1


def broken_off(server, folder, most):
    server.most = most
    with pytest.raises(Failed, match=rf"after {most:,} of [\d,]+ bytes; repeat the command"):
        fetch("small", folder)
    server.most = 10**9


def test_a_download_goes_on_where_it_stopped(corpus, server, tmp_path):
    broken_off(server, tmp_path / "data", 10_000)
    fetched(tmp_path / "data")
    assert server.ranges == [None, "bytes=10000-"]


def test_another_version_is_fetched_from_its_beginning(corpus, server, tmp_path):
    server.files["pairs"] = b"old " * 10_000
    broken_off(server, tmp_path / "data", 10_000)
    server.files["pairs"] = PAIRS
    fetched(tmp_path / "data")
    assert server.ranges == [None, "bytes=10000-"]


def test_a_server_without_ranges(corpus, server, tmp_path):
    server.knows_ranges = False
    broken_off(server, tmp_path / "data", 10_000)
    fetched(tmp_path / "data")


def test_a_process_that_was_killed_after_the_last_byte(corpus, server, tmp_path):
    (tmp_path / ".train.tsv.part").write_bytes(PAIRS)
    (tmp_path / ".train.tsv.part.tag").write_text(f'"{sha1(PAIRS).hexdigest()}"')
    fetched(tmp_path)
    assert server.ranges == [f"bytes={len(PAIRS)}-", None]


def test_a_part_of_unknown_origin_is_not_continued(corpus, server, tmp_path):
    (tmp_path / ".train.tsv.part").write_bytes(b"something else")
    fetched(tmp_path)
    assert server.ranges == [None]


def test_a_missing_file_and_no_network(corpus, server, tmp_path):
    server.files.clear()
    with pytest.raises(Failed, match=r"/pairs: the server answers 404 Not Found$"):
        fetch("small", tmp_path / "data")
    server.shutdown()
    server.server_close()
    with pytest.raises(Failed, match=r"cannot be reached \(.+\); check the network") as caught:
        fetch("small", tmp_path / "data")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_what_was_not_fetched_is_left_alone(corpus, tmp_path):
    (tmp_path / "train.tsv").write_text("mine\tmine\n")
    with pytest.raises(UserError, match=r"holds train\.tsv, which was not fetched"):
        fetch("small", tmp_path)
    assert (tmp_path / "train.tsv").read_text() == "mine\tmine\n"


@pytest.mark.parametrize("record", ["", "[]", '{"train.tsv": {}}', '{"train.tsv": 3}', "[" * 9999])
def test_a_damaged_record_is_told(corpus, tmp_path, record):
    (tmp_path / RECORD).write_text(record)
    with pytest.raises(UserError, match=r"not a record of what was fetched; delete it$"):
        fetch("small", tmp_path)


def test_an_unknown_name(tmp_path):
    with pytest.raises(UserError, match=r"no corpus 'tatoeba' to fetch; did you mean tatoeba-fra-"):
        fetch("tatoeba", tmp_path)
