"""The page as people use it: in headless Chromium, from a file, with the network off."""

import itertools
import re
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.display import page_text
from regard.pictures.page import write_page
from regard.records.attention import AttentionRecord
from regard.records.tree import Node

try:
    from playwright import sync_api as playwright
except ImportError:
    playwright = None
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
LACKING = (
    "needs Playwright (pip install playwright) and Chromium on the PATH"
    if not (playwright and CHROMIUM)
    else ""
)
in_browser = pytest.mark.skipif(bool(LACKING), reason=LACKING)

RNG = np.random.default_rng(0)
SOURCE, TARGET = ["the", "un", "do", "ne", "cat", "<eos>"], ["le", "chat", "défait", "<eos>"]
TEXTS = {"text_in": "the undone cat", "text_out": "le chat défait"}
SPANS = {
    "source_spans": [(0, 3), (3, 6), (6, 8), (8, 10), (10, 14), (14, 14)],
    "target_spans": [(0, 2), (2, 7), (7, 14), (14, 14)],
}
LIKELY = [[(token, 0.7), ("other", 0.2), ("third", 0.05)] for token in TARGET]


def attention(*shape: int, sharp: float = 2.0) -> np.ndarray:
    raw = np.exp(sharp * RNG.normal(size=shape))
    raw = np.tril(raw) if shape[-1] == shape[-2] == len(TARGET) else raw
    return (raw / raw.sum(-1, keepdims=True)).astype(np.float32)


BLOCKS = {
    "cross": attention(2, 3, 4, 6),
    "encoder": attention(2, 3, 6, 6),
    "decoder": attention(2, 3, 4, 4),
}
NORMS = {
    name: RNG.uniform(0.2, 3, (2, 3, w.shape[-1])).astype(np.float32) for name, w in BLOCKS.items()
}
RECORD = AttentionRecord(SOURCE, TARGET, BLOCKS, NORMS, candidates=LIKELY, **TEXTS, **SPANS)
EVIDENCE = {"occlusion": RNG.normal(size=(4, 6)), "gradient": RNG.normal(size=(4, 6))}
TREE = [
    Node("le", -1, 0, -0.1, -0.1, "chosen"),
    Node("un", -1, 0, -2.5, -2.5, "kept"),
    Node("la", -1, 0, -4.0, -4.0, "dropped"),
    Node("chat", 0, 1, -0.2, -0.3, "chosen"),
    Node("chien", 1, 1, -0.5, -3.0, "ended"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a page; afterwards nothing was asked of the network, nothing was complained about, and
    no dialog appeared.
    """
    contexts, wrong = [], list[str]()

    def opened(
        place: Path | AttentionRecord,
        *,
        wait: bool = True,
        view: dict[str, Any] | None = None,
        **more: Any,
    ) -> Any:
        if isinstance(place, AttentionRecord):
            place = write_page(tmp_path / "page.html", place, **more)
        context = browser.new_context(**(view or {"viewport": {"width": 1200, "height": 900}}))
        context.set_offline(True)
        contexts.append(context)
        page = context.new_page()
        context.on(
            "request",
            lambda asked: (
                None if asked.url == place.as_uri() else wrong.append(f"request {asked.url[:80]}")
            ),
        )
        page.on(
            "console",
            lambda said: wrong.append(f"console {said.text}") if said.type == "error" else None,
        )
        page.on("pageerror", lambda error: wrong.append(f"error {error}"))
        page.on(
            "dialog", lambda dialog: (wrong.append(f"dialog {dialog.message}"), dialog.dismiss())
        )
        page.goto(place.as_uri(), wait_until="load" if wait else "commit")
        page.wait_for_selector("#maps[aria-busy=false]")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


def choose(page: Any, **values: str) -> None:
    for name, value in values.items():
        values = page.eval_on_selector_all(f"#{name} option", "all => all.map(o => o.value)")
        page.select_option(
            f"#{name}", index=values.index(value)
        )  # by value, Playwright also takes a label
        page.wait_for_selector("#maps[aria-busy=false]")


def said(page: Any, place: str = "said") -> str:
    return re.sub("[\u2068\u2069]", "", page.locator(f"#{place}").text_content())


def lights(page: Any, side: str) -> list[float]:
    return page.eval_on_selector_all(
        f"#{side} button", "all => all.map(b => +getComputedStyle(b).getPropertyValue('--light'))"
    )


MIDDLES = """() => {
  const canvas = document.getElementById("map"), pen = canvas.getContext("2d");
  const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
  const at = (x, y) => 4 * (Math.floor(y * devicePixelRatio) * canvas.width + Math.floor(x * devicePixelRatio));
  const pixel = (r, c) => at(left + (c + .5) * cell, above + (r + .5) * line);
  return names.rows.map((_, r) => names.columns.map((_, c) => [...data.slice(pixel(r, c), pixel(r, c) + 3)]));
}"""


def cells(page: Any) -> np.ndarray:
    """The colours in the middle of all cells of the heatmap: (rows, columns, RGB)."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    return np.array(page.evaluate(MIDDLES))


@in_browser
def test_a_token_is_picked_when_the_page_opens(show: Callable[..., Any]) -> None:
    page = show(RECORD)
    assert said(page).startswith("“le” looks most at ")
    assert max(lights(page, "columns")) == 1
    assert page.locator("#rows button.on").all_text_contents() == ["le"]
    assert said(page, "step-name") == "most likely at step 1"
    assert re.sub("[\u2068\u2069]", "", page.title()) == (
        "the undone cat → le chat défait · Attention"
    )


@in_browser
def test_right_to_left_texts_stand_behind_their_arrow(show: Callable[..., Any]) -> None:
    texts = {"text_in": "مرحبا بالعالم", "text_out": "שלום עולם"}
    page = show(AttentionRecord(SOURCE, TARGET, BLOCKS, NORMS, **texts))
    arrow = page.locator(".texts span").bounding_box()
    letters = page.evaluate(
        """() => {
          const range = document.createRange();
          range.selectNodeContents(document.getElementById("out"));
          return range.getBoundingClientRect().left;
        }"""
    )
    assert 0 <= letters - (arrow["x"] + arrow["width"]) < 30


@in_browser
def test_pointing_at_a_token_lights_what_it_looks_at(show: Callable[..., Any]) -> None:
    page = show(RECORD)
    seen = []
    for row in (0, 2):
        page.hover(f"#rows button:nth-child({row + 1})")
        weights = RECORD.matrix()[row]
        np.testing.assert_allclose(lights(page, "columns"), weights / weights.max(), atol=0.03)
        assert (
            f"“{TARGET[row]}” looks most at “{SOURCE[weights.argmax()]}” {100 * weights.max():.0f}"[
                :-1
            ]
            in said(page)
        )
        assert page.locator("#rows button.on").all_text_contents() == [TARGET[row]]
        grounds = page.eval_on_selector_all(
            "#columns button", "all => all.map(b => getComputedStyle(b).backgroundColor)"
        )
        alpha = [
            float(re.findall(r"[\d.]+", ground)[3])
            if ground.count(",") == 3 or "/" in ground
            else 1.0
            for ground in grounds
        ]
        assert np.argmax(alpha) == weights.argmax()
        seen.append(grounds)
    assert seen[0] != seen[1]
    page.hover("#columns button:nth-child(5)")
    column = RECORD.matrix()[:, 4]
    np.testing.assert_allclose(lights(page, "rows"), column / column.max(), atol=0.03)
    assert max(lights(page, "columns")) == 0
    assert f"“cat” is looked at most by “{TARGET[column.argmax()]}”" in said(page)


WAYS = [
    ("1", "mean"),
    ("0", "2"),
    ("1", "max"),
    ("all", "mean"),
    ("all", "1"),
    ("all", "max"),
    ("rollout", "mean"),
]


@in_browser
@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_is_said_is_what_numpy_says(show: Callable[..., Any], number: int) -> None:
    name, weights = list(BLOCKS.items())[number]
    page = show(RECORD)
    choose(page, block=str(number))
    for (layer, head), norm in itertools.product(WAYS, (False, True)):
        if norm and (layer == "rollout" or head == "max"):
            continue
        choose(page, layer="0")
        page.set_checked("#norm", norm)
        choose(page, head=head, layer=layer)
        how = (
            "rollout"
            if layer == "rollout"
            else "max"
            if head == "max"
            else "norm"
            if norm
            else "mean"
        )
        one = int(head) if head.isdigit() else None
        wanted = RECORD.matrix(
            name, how, layer=None if layer in ("all", "rollout") else int(layer), head=one
        )
        page.locator("#rows button").nth(weights.shape[2] - 1).dispatch_event("pointerover")
        shares = [float(share) for share in re.findall(r"([\d.]+) %", said(page))]
        np.testing.assert_allclose(
            shares, 100 * np.sort(wanted[-1])[::-1][:3], atol=0.6, err_msg=f"{layer} {head} {norm}"
        )


@in_browser
def test_words_instead_of_tokens(show: Callable[..., Any]) -> None:
    page = show(RECORD)
    page.check("#words")
    page.wait_for_selector("#maps[aria-busy=false]")
    assert page.locator("#columns button").all_text_contents() == ["the", "undone", "cat", "<eos>"]
    choose(page, head="max")
    page.hover("#rows button:nth-child(2)")
    shares = [float(share) for share in re.findall(r"([\d.]+) %", said(page))]
    np.testing.assert_allclose(
        shares, 100 * np.sort(RECORD.words().matrix(how="max")[1])[::-1][:3], atol=0.6
    )


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_heaviest_cell_is_the_strongest(show: Callable[..., Any], scheme: str) -> None:
    page = show(RECORD, view={"color_scheme": scheme})
    pictures = []
    for layer in (1, 0):
        choose(page, layer=str(layer))
        bright = cells(page).sum(-1).ravel()
        order = np.argsort(RECORD.matrix(layer=layer).ravel())
        steps = np.diff(bright[order].astype(int)) * (1 if scheme == "light" else -1)
        assert steps.max() <= 2  # never the other way round, but for rounding
        assert abs(int(bright[order[-1]]) - int(bright[order[0]])) > 300
        pictures.append(bright)
    assert (pictures[0] != pictures[1]).any()


@in_browser
def test_paper_is_light_and_has_no_controls(show: Callable[..., Any]) -> None:
    page = show(RECORD, view={"color_scheme": "dark"})
    heaviest = np.unravel_index(RECORD.matrix().argmax(), (4, 6))
    on_screen = cells(page)[heaviest].sum()
    page.emulate_media(media="print")
    for _ in range(40):  # the page hears of it with the next frame
        if page.evaluate("ink.text === '#23262b'"):
            break
        page.wait_for_timeout(50)
    assert cells(page)[heaviest].sum() < 250 < 500 < on_screen
    assert not page.locator("#block").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@in_browser
def test_a_panel_of_the_grid_chooses_its_head(show: Callable[..., Any]) -> None:
    page = show(RECORD)
    choose(page, layer="all", head="grid")
    panels = page.locator("#grid button")
    assert panels.count() == 6
    assert not page.locator("#view").is_visible()
    panels.nth(1).locator("canvas").hover(position={"x": 2, "y": 2})
    assert said(page).startswith("“le” looks at “the” with")
    assert float(re.findall(r"([\d.]+) %", said(page))[0]) == pytest.approx(
        100 * BLOCKS["cross"][0, 1, 0, 0], abs=0.6
    )
    panels.nth(5).click()
    page.wait_for_selector("#view:focus")
    assert (page.input_value("#layer"), page.input_value("#head")) == ("1", "2")
    assert (
        page.locator("#maps-name").text_content() == "cross: output looks at input, layer 2, head 3"
    )
    assert not page.locator("#grid").is_visible()


@in_browser
def test_hands_on_the_keyboard(show: Callable[..., Any]) -> None:
    page = show(RECORD, tree=TREE)
    reached = []
    for _ in range(13):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.parentElement.id")
        )
    wanted = [
        "block",
        "layer",
        "head",
        "words",
        "norm",
        "faint",
        "columns",
        "rows",
        "fit",
        "larger",
        "view",
        "dropped",
        "tree",
    ]
    assert [name for name in reached if name in wanted] == wanted
    assert (
        page.evaluate("getComputedStyle(document.querySelector('#view')).outlineStyle") is not None
    )

    page.focus("#rows button")
    page.keyboard.press("ArrowRight")
    assert said(page).startswith("“chat” looks most at")
    page.keyboard.press("End")
    assert said(page).startswith("“<eos>” looks most at")

    page.focus("#view")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    for key in ("Home", "ArrowUp", "ArrowUp", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    weight = float(re.findall(r"“chat” looks at “do” with ([\d.]+) %", said(page))[0])
    assert weight == pytest.approx(100 * RECORD.matrix()[1, 2], abs=0.6)
    size = page.locator("#sheet").bounding_box()["width"]
    page.keyboard.press("+")
    assert page.locator("#sheet").bounding_box()["width"] > size * 1.2
    page.keyboard.press("0")
    assert page.locator("#sheet").bounding_box()["width"] == pytest.approx(size)


@in_browser
def test_what_the_search_tried(show: Callable[..., Any]) -> None:
    page = show(
        RECORD, tree=TREE, alternatives=[("un chien", -1.5), ("la", -4.0)], notes=["Mind the gap."]
    )
    page.wait_for_selector("g.node")
    assert page.locator("g.node").count() == 4
    assert page.locator("g.chosen text:first-of-type").all_text_contents() == ["✓ le", "✓ chat"]
    room = (
        "all => all.map(t => t.parentNode.querySelector('rect').getBBox().width - "
        "t.getBBox().width)"
    )
    assert min(page.eval_on_selector_all("g.node text", room)) > 8
    page.check("#dropped")
    assert page.locator("g.node").count() == 5
    page.hover("g.ended")
    assert said(page, "path") == "“un chien” · log-probability −3.000 (5.0 %) · ended"
    page.mouse.move(0, 0)  # what scrolls under a resting pointer would be pointed at
    page.focus("g.node")
    page.keyboard.press("ArrowRight")
    assert said(page, "path") == "“le chat” · log-probability −0.300 (74.1 %) · chosen"
    assert len(page.locator("g.on").all()) == 2
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    assert said(page, "path").startswith("“un”")
    assert page.locator("#leaves li").count() == 3
    assert page.locator("#alternatives li").all_text_contents() == ["un chien −1.500", "la −4.000"]
    assert page.locator("#notes li").all_text_contents() == ["Mind the gap."]
    page.hover("#rows button:nth-child(2)")
    assert page.locator("#candidates li").all_text_contents() == [
        "chat70.0 %",
        "other20.0 %",
        "third5.0 %",
    ]
    assert not show(RECORD).locator("#beam").is_visible()


@in_browser
def test_evidence_for_and_against(show: Callable[..., Any]) -> None:
    page = show(RECORD, evidence=EVIDENCE)
    choose(page, block="3")
    colours, values = cells(page).astype(int), EVIDENCE["occlusion"]
    clear = np.abs(values) > 0.1 * np.abs(values).max()
    assert ((colours[..., 2] > colours[..., 0]) == (values > 0))[
        clear
    ].all()  # blue for, orange against
    page.hover("#rows button:nth-child(3)")
    most = np.abs(values[2]).argmax()
    assert (
        f"“{SOURCE[most]}” {'−' if values[2, most] < 0 else '+'}{abs(values[2, most]):.3f}"
        in said(page)
    )
    assert "drop in log-probability if hidden" in page.locator("#maps-name").text_content()
    page.check("#words")
    page.hover("#rows button:nth-child(3)")
    summed = np.add.reduceat(values[2], [0, 1, 4, 5])  # the, undone, cat, <eos>
    most = np.abs(summed).argmax()
    word = ["the", "undone", "cat", "<eos>"][most]
    assert f"most from: “{word}” {'−' if summed[most] < 0 else '+'}{abs(summed[most]):.3f}" in said(
        page
    )
    assert said(page, "maps-name").endswith("summed over the tokens of words")
    assert said(page, "columns-name") == "input tokens, each hidden in turn"


@in_browser
def test_each_view_keeps_its_layer_and_head(show: Callable[..., Any]) -> None:
    page = show(RECORD, evidence=EVIDENCE)

    def chosen() -> tuple[str, str]:
        return page.input_value("#layer"), page.input_value("#head")

    assert chosen() == ("1", "mean")
    choose(page, block="3")
    choose(page, block="0")
    assert chosen() == ("1", "mean")
    choose(page, layer="0", head="2")
    choose(page, block="4")
    choose(page, block="1")
    assert chosen() == ("0", "2")  # the one last looked at, where nothing was chosen yet
    choose(page, layer="all", head="max")
    choose(page, block="0")
    assert chosen() == ("0", "2")
    choose(page, block="1")
    assert chosen() == ("all", "max")


@in_browser
def test_value_norms_are_in_the_caption(show: Callable[..., Any]) -> None:
    page = show(RECORD)
    page.check("#norm")
    page.wait_for_selector("#maps[aria-busy=false]")
    assert (
        said(page, "maps-name")
        == "cross: output looks at input, layer 2, mean over heads, by value norm"
    )
    choose(page, layer="rollout")
    assert "norm" not in said(page, "maps-name")


@in_browser
@pytest.mark.parametrize(
    ("rows", "columns"), [(29, 29), (29, 4), (4, 29), (200, 60), (2, 300), (2, 3)]
)
def test_the_heatmap_fits(show: Callable[..., Any], rows: int, columns: int) -> None:
    words = {"text_in": "many words " * 150, "text_out": "viele Worte " * 150}
    page = show(
        AttentionRecord(
            ["in"] * columns, ["out"] * rows, {"cross": attention(1, 2, rows, columns)}, **words
        )
    )
    whole = (
        "(({ scrollWidth: w, clientWidth: x, scrollHeight: h, clientHeight: y }) => w <= x && h "
        "<= y)($('view'))"
    )
    size = page.evaluate("[cell, line]")
    assert page.evaluate(whole)
    assert min(size) >= 1
    assert size == [34, 34] or max(rows, columns) > 15
    page.click("#larger")
    assert max(rows, columns) < 15 or not page.evaluate(whole)
    page.click("#fit")
    assert page.evaluate(whole)
    assert page.evaluate("[cell, line]") == pytest.approx(size)
    for side in ("in", "out"):  # however long the other is
        assert page.locator(f"#{side}").bounding_box()["height"] > 40
        assert page.locator(f"#{side}").bounding_box()["y"] < 250
    assert page.locator("#limit").is_visible() == (max(rows, columns) > 128)


@in_browser
def test_it_fits_a_phone(show: Callable[..., Any]) -> None:
    page = show(RECORD, tree=TREE, view={"viewport": {"width": 320, "height": 640}})
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    choose(page, layer="all", head="grid")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


# --- 500 × 500 tokens, 8 × 8 heads, three blocks ---
def long(place: Path) -> Path:
    """Noise, which packs worse than what models do: softmax(normal × 2). Each layer has the heads
    of the last one, moved on.
    """
    tokens = [f"word{i % 97}" for i in range(500)]
    blocks = {}
    for name in ("cross", "encoder", "decoder"):
        raw = np.exp(2 * RNG.standard_normal((8, 500, 500), np.float32))
        raw = np.tril(raw) if name == "decoder" else raw
        raw /= raw.sum(-1, keepdims=True)
        blocks[name] = np.stack([np.roll(raw, layer, axis=0) for layer in range(8)])
    text = " ".join(tokens)
    record = AttentionRecord(
        tokens,
        tokens,
        blocks,
        text_in=text,
        text_out=text,
        candidates=[[("a", 0.5), ("b", 0.1)]] * 500,
    )
    fates = ("chosen", "kept", "kept", "dropped")
    tree = [
        Node("w", 4 * (t - 1) + (k % 3) if t else -1, t, -0.5, -0.5 * t, fates[k])
        for t in range(500)
        for k in range(4)
    ]
    return write_page(place, record, tree=tree)


REACT = """async (side) => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => {
    const after = new MessageChannel(); after.port1.onmessage = done; after.port2.postMessage(0); }));
  const times = [], box = document.getElementById("map").getBoundingClientRect();
  for (let k = 1; k <= 11; k++) {
    await frame();
    const begin = performance.now(), said = document.getElementById("said").textContent;
    if (side === "map") document.getElementById("map").dispatchEvent(
      new PointerEvent("pointermove", { bubbles: true, clientX: box.x + 200 + 20 * k, clientY: box.y + 200 + 11 * k }));
    else document.getElementById(side).children[(37 * k) % 500].dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
    await frame();
    times.push(performance.now() - begin);
    if (document.getElementById("said").textContent === said) throw new Error("nothing happened");
  }
  return times;
}"""
SWITCH = """async ([id, value]) => {
  const select = document.getElementById(id), maps = document.getElementById("maps"), begin = performance.now();
  select.value = value;
  select.dispatchEvent(new Event("change"));
  while (maps.getAttribute("aria-busy") !== "false") await new Promise((done) => setTimeout(done));
  return performance.now() - begin;
}"""


def test_a_long_page_is_small_and_quick(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Opened and drawn within 2 s; 50 ms to the end of the frame after a hover. Best of three:
    there may be other work.
    """
    place = long(tmp_path / "long.html")
    assert 10_000_000 < place.stat().st_size <= 20_000_000
    if LACKING:
        pytest.skip(f"small it is; to see how quick, it {LACKING}")
    show = request.getfixturevalue("show")
    opening, hovering, switching = [], [], []
    for _ in range(3):
        begin = time.perf_counter()
        page = show(place, wait=False)
        opening.append(time.perf_counter() - begin)
        assert (
            page.evaluate(
                "() => new Set(document.getElementById('map').getContext('2d').getImageData(300, "
                "300, 99, 99).data).size"
            )
            > 9
        )
        page.wait_for_load_state("load")
        hovering.append(
            max(
                statistics.median(page.evaluate(REACT, side)) for side in ("rows", "columns", "map")
            )
        )
        switching.append(
            max(page.evaluate(SWITCH, what) for what in (["layer", "2"], ["head", "3"]))
        )
        if opening[-1] < 2 and hovering[-1] < 50:
            break
    print(
        f"opening {min(opening):.2f} s, hovering {min(hovering):.0f} ms, another layer or head "
        f"{min(switching):.0f} ms"
    )
    assert min(opening) <= 2
    assert min(hovering) <= 50
    assert min(switching) <= 500
    page.focus("#view")
    for _ in range(5):
        page.keyboard.press("+")
    page.keyboard.press("End")
    assert "(500)" in said(page)  # the cell is scrolled to, and its name is still there
    assert page.evaluate("document.getElementById('view').scrollLeft") > 1000


# --- hostile strings ---
def hostile() -> list[str]:
    """200 strings that would run a script, or break out of the data, if any of them were ever
    markup or code.
    """
    deeds = [
        "window.pwned=1",
        "alert(1)",
        "fetch('//x.invalid')",
        "document.title=window.pwned=1",
        "location='//x.invalid'",
    ]
    shapes = r"""
    <script>{}</script> | </script><script>{}</script> | <img src=x onerror={}> | <svg onload={}> | <svg><script>{}</script></svg>
    "><img src=x onerror={}> | '><svg/onload={}> | javascript:{} | <a href=javascript:{}>x</a> | <body onload={}> | <!--<script>{}
    <iframe srcdoc='<script>{}</script>'> | --><script>{}</script> | ]]><script>{}</script> | <![CDATA[<script>{}</script>]]>
    {{{{constructor.constructor('{}')()}}}} | {{{{7*7}}}}{} | ${{{}}} | `${{{}}}` | ";{};// | ';{};// | \\";{};// | \\u0022;{};//
    </title><script>{}</script> | </style><script>{}</script> | </textarea><script>{}</script> | {{{{DATA}}}}{} | __proto__{}
    <math><mi//xlink:href='javascript:{}'> | <template><script>{}</script></template> | <details open ontoggle={}>
    <input autofocus onfocus={}> | <object data='data:text/html,<script>{}</script>'> | <base href='//x.invalid/{}'>
    <link rel=stylesheet href='//x.invalid/{}'> | <meta http-equiv=refresh content='0;url=javascript:{}'> | &lt;script&gt;{}
    """
    plain = [shape.strip() for line in shapes.strip().splitlines() for shape in line.split(" | ")]
    odd = ["\u2028{}\u2029", "\u202e{}\u202c", "\x00<script>{}</script>", "<scr\x00ipt>{}</script>"]
    return [shape.format(deed) for shape in plain + odd for deed in deeds][:200]


@in_browser
def test_hostile_strings_are_only_text(show: Callable[..., Any]) -> None:
    bad = hostile()
    assert len(set(bad)) == 200
    seen = [page_text(text) for text in bad]
    blocks = {
        "cross": attention(1, 2, 200, 200),
        "encoder": attention(1, 2, 200, 200),
        "decoder": attention(1, 2, 200, 200),
    }
    candidates = [[(token, 0.5), (bad[0], 0.1)] for token in bad]
    record = AttentionRecord(
        bad, bad[::-1], blocks, text_in=" ".join(bad), text_out="".join(bad), candidates=candidates
    )
    tree = [Node(token, i - 1, i, -0.1, -0.1 * i, "chosen") for i, token in enumerate(bad)]
    title = "</title><script>window.pwned=1</script>" + "".join(bad)
    page = show(
        record, title=title, tree=tree, alternatives=[(text, -1.0) for text in bad], notes=bad
    )
    nodes = page.evaluate("document.querySelectorAll('*').length")
    kinds = page.eval_on_selector_all("script", "all => all.map(s => s.type)")
    assert kinds == [
        "application/json",
        "text/plain",
        "",
        *["text/plain"] * 5,
    ]  # an empty type: the one program
    for side, i in itertools.product(("rows", "columns"), range(0, 200, 20)):
        page.locator(f"#{side} button").nth(i).dispatch_event("pointerover")
    choose(page, head="grid")
    page.evaluate(
        "document.querySelectorAll('g.node').forEach(g => g.dispatchEvent(new "
        "PointerEvent('pointerover', { bubbles: true })))"
    )
    page.evaluate("document.querySelector('details').open = true")
    page.wait_for_timeout(100)
    assert page.evaluate("typeof window.pwned") == "undefined"
    assert (
        page.locator(
            "img, iframe, object, embed, base, link, math, template, a, textarea, [onload], "
            "[onerror]"
        ).count()
        == 0
    )
    assert page.locator("script").count() == len(kinds)
    assert (
        page.evaluate("document.querySelectorAll('*').length") < nodes + 900
    )  # the tree and the grid, nothing else
    assert page.locator("#alternatives li bdi").all_text_contents() == seen
    assert page.locator("#in").text_content() == " ".join(seen)
