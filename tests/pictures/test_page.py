import base64
import hashlib
import html
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.errors import UserError
from regard.pictures import page as pages
from regard.pictures.page import attention_page, write_page
from regard.records.attention import AttentionRecord
from regard.records.tree import Node

SOURCE = ["</script><script>alert(1)</script>", "$x_1$", "😀", "مرحبا", "\t"]
TARGET = ["<b>&amp;", "été", "</s>"]


def attention(*shape: int) -> np.ndarray:
    raw = np.exp(np.random.default_rng(0).normal(size=shape))
    return (raw / raw.sum(-1, keepdims=True)).astype(np.float32)


BLOCKS = {
    "cross": attention(2, 4, 3, 5),
    "encoder": attention(2, 4, 5, 5),
    "decoder": attention(2, 4, 3, 3),
}
NORMS = {name: attention(2, 4, weights.shape[-1]) for name, weights in BLOCKS.items()}
RECORD = AttentionRecord(SOURCE, TARGET, BLOCKS, NORMS, text_in="a", text_out="b")


def island(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


def chunk(page: str, key: str) -> bytes:
    found = re.search(rf'<script type="text/plain" id="{key}">(.*?)</script>', page)
    assert found
    return zlib.decompress(base64.b64decode(found[1]))


def unpacked(page: str, key: str, *shape: int) -> np.ndarray:
    codes = np.frombuffer(chunk(page, key), np.uint8, count=int(np.prod(shape))).reshape(shape)
    return (codes / island(page)["levels"]) ** 2


def bound(weights: np.ndarray, n: int) -> np.ndarray:
    """How far a weight may be from the one given: as the page's docstring says."""
    return np.sqrt(weights) / n + 1 / (4 * n * n) + 1e-6


def test_hostile_tokens_stay_in_the_island() -> None:
    title = "<img src=x onerror=alert(2)> {{DATA}} \ud800"
    record = AttentionRecord(
        SOURCE, TARGET, {"cross": BLOCKS["cross"]}, text_in="</script>", text_out="\u2028<!--"
    )
    page = attention_page(record, title=title)
    assert (
        page.count("<script") == page.count("</script>") == 2 + 2
    )  # the island, the program, and two layers
    for raw in ("alert(1)</", "<img", "<b>&amp;", "😀", "مرحبا", "<!--"):
        assert raw not in page
    assert "&lt;img src=x onerror=alert(2)&gt; {{DATA}} &#65533;" in page
    data = island(page)
    cross = data["blocks"][0]
    assert cross["columns"][1:] == ["$x_1$", "😀", "مرحبا", "␣"]
    assert cross["rows"] == TARGET
    assert data["in"] == "</script>"


def test_the_tab_tells_the_sentence() -> None:
    def tab(source: str, answer: str) -> str:
        record = AttentionRecord(SOURCE, TARGET, BLOCKS, text_in=source, text_out=answer)
        found = re.search("<title>(.*?)</title>", attention_page(record))
        assert found
        return html.unescape(found[1])

    assert tab("he is calm .", "il est calme .") == (
        "\u2068he is calm .\u2069 → \u2068il est calme .\u2069 · Attention"
    )
    assert tab("مرحبا", "<b>") == "\u2068مرحبا\u2069 → \u2068<b>\u2069 · Attention"
    assert len(tab("word\n" * 100, "mot " * 100)) < 110
    assert tab("", "") == "Attention"


def test_the_decoder_reads_what_was_written_one_step_before() -> None:
    decoder = island(attention_page(RECORD))["blocks"][2]
    assert decoder["rows"] == TARGET
    assert decoder["columns"] == ["<bos>", *TARGET[:-1]]
    assert decoder["headings"] == [
        "output tokens, each as it is generated",
        "tokens read so far, looked at",
    ]


def test_weights_come_back_as_near_as_promised() -> None:
    page = attention_page(RECORD)
    assert island(page)["levels"] == 255
    for name, weights in BLOCKS.items():
        for layer, given in enumerate(weights):
            assert (
                np.abs(unpacked(page, f"{name}-{layer}", *given.shape) - given) <= bound(given, 255)
            ).all()
            norms = np.frombuffer(chunk(page, f"{name}-{layer}"), "<f4", offset=given.size).reshape(
                4, -1
            )
            np.testing.assert_array_equal(norms, NORMS[name][layer])
        rolled = RECORD.matrix(name, "rollout")
        assert (
            np.abs(unpacked(page, f"{name}-rollout", *rolled.shape) - rolled) <= bound(rolled, 255)
        ).all()


def test_a_page_too_large_is_coarser_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cross = attention(4, 2, 60, 60)
    record = AttentionRecord(["a"] * 60, ["b"] * 60, {"cross": cross})
    fine = attention_page(record)
    monkeypatch.setattr(pages, "LIMIT", len(fine) - 3000)
    coarse = attention_page(record)
    n = island(coarse)["levels"]
    assert n < 255
    assert len(coarse) <= len(fine) - 3000
    assert (np.abs(unpacked(coarse, "cross-3", 2, 60, 60) - cross[3]) <= bound(cross[3], n)).all()
    assert f"in {n} steps" in island(coarse)["exact"]


def test_weights_out_of_range_are_clipped() -> None:
    odd = np.array([np.nan, -1.0, 2.0]).reshape(1, 1, 1, 3)
    assert chunk(
        attention_page(AttentionRecord(list("abc"), ["x"], {"cross": odd})), "cross-0"
    ) == bytes([0, 0, 255])


def test_evidence_keeps_its_signs() -> None:
    occlusion = np.random.default_rng(1).normal(size=(3, 5))
    occlusion[0, 0] = np.nan
    page = attention_page(RECORD, evidence={"occlusion": occlusion})
    block = island(page)["blocks"][3]
    assert block["label"] == "drop in log-probability if hidden"
    back = np.frombuffer(chunk(page, "occlusion-0"), "<i2").reshape(3, 5) * block["scale"]
    np.testing.assert_allclose(back, np.nan_to_num(occlusion), atol=block["scale"])


def test_words_are_those_of_the_record() -> None:
    spans = [(0, 2), (2, 4), (4, 8), (8, 8)]
    record = AttentionRecord(
        ["un", "do", " now", "<eos>"], ["x"], {"cross": attention(1, 1, 1, 4)}, text_in="undo now"
    )
    page = attention_page(
        AttentionRecord(
            **{**vars(record), "source_spans": spans, "target_spans": [(0, 1)], "text_out": "x"}
        )
    )
    assert island(page)["words"] == [[["undo", "now", "<eos>"], [0, 0, 1, 2]], [["x"], [0]]]
    assert island(attention_page(record))["words"] == [None, None]


def test_only_its_own_script_and_style_may_work() -> None:
    page = attention_page(RECORD)
    for tag, policy in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{policy} 'sha256-{digest}'" in page
    assert "content=\"default-src 'none'; " in page
    for absent in (
        "unsafe-inline",
        "://",
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
    ):
        assert absent not in page
    assert "not why the model chose" in page


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_from_their_ground(dark: bool) -> None:
    """WCAG's contrast of text, at least 4.5."""
    light_css, dark_css = re.findall(
        r":root \{(.*?)\}", Path(pages.__file__).with_name("page.css").read_text("utf-8"), re.S
    )[:2]
    css = dict(re.findall(r"--(\w+): (#\w+|[\d ]+);", light_css + (dark_css if dark else "")))

    def luminance(name: str) -> float:
        value = css[name].removeprefix("#")
        if css[name].startswith("#"):
            value = value if len(value) == 6 else "".join(2 * c for c in value)
            rgb = [int(value[i : i + 2], 16) for i in (0, 2, 4)]
        else:
            rgb = [int(part) for part in value.split()]
        linear = [
            (c / 255 / 12.92) if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4
            for c in rgb
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for text in ("ink", "quiet", "other", "glow"):
        for ground in ("paper", "card"):
            high, low = sorted((luminance(text), luminance(ground)), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def test_write_page(tmp_path: Path) -> None:
    place = write_page(tmp_path / "new" / "page.html", RECORD, title="T")
    assert place.read_text(encoding="utf-8") == attention_page(RECORD, title="T")
    with pytest.raises(UserError, match=r"\.html"):
        write_page(tmp_path / "page.png", RECORD)


def test_mistakes_are_told_in_words() -> None:
    with pytest.raises(UserError, match="needs a model with attention"):
        attention_page(AttentionRecord(SOURCE, TARGET, {}))
    with pytest.raises(UserError, match=r"expected \(layers, heads, 3, 5\)"):
        attention_page(AttentionRecord(SOURCE, TARGET, {"cross": BLOCKS["encoder"]}))
    with pytest.raises(UserError, match=r"occlusion.*3, 5"):
        attention_page(RECORD, evidence={"occlusion": np.zeros((5, 3))})
    with pytest.raises(UserError, match="no page for 'magic'"):
        attention_page(RECORD, evidence={"magic": np.zeros((3, 5))})
    with pytest.raises(UserError, match="must come after its parent"):
        attention_page(RECORD, tree=[Node("a", 0, 0, -1.0, -1.0, "chosen")])


def test_numbers_that_are_none_stay_json() -> None:
    record = AttentionRecord(SOURCE, TARGET, BLOCKS, candidates=[[("a", float("nan"))]] * 3)
    page = attention_page(
        record, tree=[Node("a", -1, 0, -np.inf, -np.inf, "chosen")], alternatives=[("b", -np.inf)]
    )
    assert "NaN" not in json.dumps(island(page))
    assert "Infinity" not in json.dumps(island(page))
