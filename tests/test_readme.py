"""The README keeps its word: its commands and its Python run as they stand, only shorter."""

import re
import shlex
import shutil
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language):
    """The fenced blocks of one language: every second piece between fences, by the word after its
    first fence.
    """
    inside = re.split(r"^```", README, flags=re.MULTILINE)[1::2]
    return [block.partition("\n")[2] for block in inside if block.partition("\n")[0] == language]


def test_the_commands(tmp_path, command):
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"a text {i}\tun texte {i}\n" for i in range(60)), encoding="utf-8"
    )
    (tmp_path / "in.txt").write_text("a text 1\n\na text 2\n", encoding="utf-8")
    (tmp_path / "notes.txt").write_text(
        "".join(f"The weather of day {i}.\n" for i in range(60)), encoding="utf-8"
    )
    shutil.copytree(Path(__file__).parents[1] / "experiments", tmp_path / "experiments")
    lines = [line.split("#")[0].strip() for block in blocks("") for line in block.splitlines()]
    words = [shlex.split(line) for line in lines if line.startswith("regard ")]
    assert len(words) >= 7, "the README shows the verbs"
    for _, *rest in words:
        rest = [word.replace("train.steps=5000", "train.steps=4") for word in rest]
        has_length = any(word.startswith(("train.steps", "--resume")) for word in rest)
        short = ["train.epochs=1"] if rest[0] == "train" and not has_length else []
        if rest[0] == "compare":
            short = ["--plan"]  # which trains nothing
        done = command(*rest, *short, cwd=tmp_path)
        assert done.returncode == 0, (rest, done.stderr)
    assert (tmp_path / "attention.png").exists()
    assert (tmp_path / "page.html").exists()


def test_the_table_names_what_exists():
    root = Path(__file__).parents[1]
    for name in re.findall(r"^\| `([^`]+)`", README.split("## Names")[0], flags=re.MULTILINE):
        assert (root / name).exists(), name


def test_a_minute_is_enough():
    """The first screen says what it is, for whom, why not other tools; the next what to type."""
    first, _, rest = README.partition("\n## Install and try\n")
    assert len(first.split()) < 260
    for word in ("file of pairs", "PyTorch", "people with", "students", "no GPU", "Why not"):
        assert word in first, word
    section = rest.partition("\n## ")[0]
    for line in (
        "pip install .",
        "regard demo",
        "regard train pairs.tsv",
        "regard translate runs/",
    ):
        assert line in section, line
    assert section.index("activate") < section.index("regard demo")  # else `regard` is not found
