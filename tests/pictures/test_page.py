import base64
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.errors import UserError
from regard.pictures.page import attention_page, write_page
from regard.record import AttentionRecord

SOURCE = ["</script><script>alert(1)</script>", "$x_1$", "😀", "مرحبا", "\t"]
TARGET = ["<b>&amp;", "été", "</s>"]


def attention(*shape: int) -> np.ndarray:
    raw = np.exp(np.random.default_rng(0).normal(size=shape))
    return raw / raw.sum(-1, keepdims=True)


BLOCKS = {"cross": attention(2, 4, 3, 5), "encoder": attention(2, 4, 5, 5), "decoder": attention(1, 4, 3, 3)}

RECORD = AttentionRecord(SOURCE, TARGET, BLOCKS, text_in="a", text_out="b")


def island(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


def test_hostile_tokens_stay_in_the_island() -> None:
    title = "<img src=x onerror=alert(2)> {{DATA}}"
    page = attention_page(AttentionRecord(SOURCE, TARGET, BLOCKS, text_in="</script>", text_out="\u2028<!--"), title=title)
    assert page.count("<script") == page.count("</script>") == 2
    for raw in ("alert(1)</", "<img", "<b>&amp;", "😀", "مرحبا", "<!--"):
        assert raw not in page
    assert "&lt;img src=x onerror=alert(2)&gt; {{DATA}}" in page
    data = island(page)
    cross = data["blocks"][0]
    assert cross["columns"][1:] == ["$x_1$", "😀", "مرحبا", "␣"]
    assert cross["rows"] == TARGET
    assert data["in"] == "</script>"


def test_the_decoder_reads_what_was_written_one_step_before() -> None:
    decoder = island(attention_page(RECORD))["blocks"][2]
    assert decoder["rows"] == TARGET
    assert decoder["columns"] == ["<bos>", *TARGET[:-1]]
    assert decoder["headings"] == ["output tokens, each while it is written", "tokens read so far, looked at"]


def test_weights_survive_to_one_part_in_255() -> None:
    for block in island(attention_page(RECORD))["blocks"]:
        weights = np.frombuffer(base64.b64decode(block["weights"]), np.uint8).reshape(block["shape"]) / 255
        np.testing.assert_allclose(weights, BLOCKS[block["name"]], atol=1 / 255)


def test_weights_out_of_range_are_clipped() -> None:
    odd = np.array([np.nan, -1.0, 2.0]).reshape(1, 1, 1, 3)
    (block,) = island(attention_page(AttentionRecord(list("abc"), ["x"], {"cross": odd})))["blocks"]
    assert base64.b64decode(block["weights"]) == bytes([0, 0, 255])


def test_the_page_needs_nothing_from_outside() -> None:
    page = attention_page(RECORD)
    assert "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "innerHTML" not in page
    assert "prefers-color-scheme: dark" in page
    assert "not why the model chose" in page


def test_write_page(tmp_path: Path) -> None:
    place = write_page(tmp_path / "new" / "page.html", RECORD, title="T")
    assert place.read_text(encoding="utf-8") == attention_page(RECORD, title="T")
    with pytest.raises(UserError, match=r"\.html"):
        write_page(tmp_path / "page.png", RECORD)


def test_mistakes_are_told_in_words() -> None:
    with pytest.raises(UserError, match="needs a model that has some"):
        attention_page(AttentionRecord(SOURCE, TARGET, {}))
    with pytest.raises(UserError, match=r"expected \(layers, heads, 3, 5\)"):
        attention_page(AttentionRecord(SOURCE, TARGET, {"cross": BLOCKS["encoder"]}))


@pytest.mark.browser
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_a_browser_shows_it(tmp_path: Path) -> None:
    place = write_page(tmp_path / "page.html", AttentionRecord(SOURCE, TARGET, BLOCKS, text_in="<i>in</i>"))
    # What the keyboard does: reach the second output token.
    reach = "<script>document.getElementById('rows').children[1].focus()</script></body>"
    place.write_text(place.read_text(encoding="utf-8").replace("</body>", reach), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=2000"]
    command = ["chromium", *options, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", place.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "CONSOLE" not in done.stderr
    assert "“été” looks most at “" in done.stdout
    assert "&lt;i&gt;in&lt;/i&gt;" in done.stdout
    assert done.stdout.count("<canvas") == 1
    assert "cross: output looks at input, layer 2, mean of heads" in done.stdout
