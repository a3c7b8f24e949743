"""The command line, as a person or a script meets it."""

import functools
import json
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import pytest
from typer.testing import CliRunner

import regard
from regard.cli import app, main
from regard.cli.completion import setting_names
from regard.cli.lines import line_bursts
from regard.errors import UserError
from regard.inspection import page
from regard.recipes.reporter import Reporter

VERBS = [
    "demo",
    "train",
    "translate",
    "generate",
    "fill",
    "embed",
    "evaluate",
    "score",
    "show",
    "data",
    "presets",
    "runs",
    "settings",
]
FIELDS = (
    "loss perplexity token_accuracy exact_match bleu bleu_signature chrf ter sequence_error wer "
    "cer examples seconds tokens_per_second"
)


def call(*words: object) -> str:
    """Standard output of a command that should succeed, called in this process."""
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def refused(monkeypatch, capfd):
    """What `main` says about a mistake; it must be one line and exit code 2."""

    def check(*words: object) -> str:
        monkeypatch.setattr("sys.argv", ["regard", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        (line,) = capfd.readouterr().err.splitlines()
        return line

    return check


# help


def test_help_is_fast_and_lists_every_verb():
    """What makes a command slow is importing torch, so that is what is checked."""
    script = """
import sys
sys.argv = ["regard", "--help"]
from regard.cli import main
try:
    main()
finally:
    print("IMPORTED", *({"torch", "numpy", "matplotlib", "sacrebleu", "tokenizers", "pyarrow"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    page, imported = done.stdout.split("IMPORTED")
    assert imported.split() == []
    assert len(page.splitlines()) <= 24
    for verb in VERBS:
        assert f" {verb} " in page


@pytest.mark.parametrize(
    "verb", ["train", "translate", "evaluate", "score", "show attention", "data generate"]
)
def test_every_verb_has_an_example(verb):
    assert "Example: " in call(*verb.split(), "--help")


def test_help_alone_is_no_mistake(monkeypatch, capfd):
    for words in ([], ["show"], ["data"]):
        monkeypatch.setattr("sys.argv", ["regard", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capfd.readouterr()
        assert stopped.value.code == 0
        assert said.err == ""
        assert "Usage: " in said.out


@pytest.mark.parametrize("words", [[], ["train"], ["show", "attention"], ["data", "inspect"]])
def test_h_is_help(words):
    assert call(*words, "-h") == call(*words, "--help")


@pytest.mark.parametrize("words", [[], ["train"], ["show", "attention"]])
def test_a_flag_has_no_type(words, monkeypatch, capfd):
    monkeypatch.setattr("sys.argv", ["regard", *words, "--help"])
    with pytest.raises(SystemExit):
        main()
    assert "bool" not in capfd.readouterr().out.lower()


def test_version():
    assert call("--version") == f"regard {regard.__version__}\n"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("regard tr", ["train", "translate"]),
        ("regard train --preset d", ["d2l", "demo", "denoise"]),
        ("regard train copy train.st", ["train.steps=", "train.strategy=", "train.start_from="]),
        ("regard train arith", ["arithmetic"]),
        ("regard evaluate runs/de", ["runs/demo"]),
        ("regard evaluate ru", ["runs/"]),
    ],
)
def test_the_shell_completes(typed, offered, here):
    run = here / "runs" / "demo"
    run.mkdir(parents=True)
    (run / "config.toml").touch()
    (run / "manifest.json").touch()
    script = "import sys; sys.argv = ['regard']; from regard.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=180,
        env=os.environ
        | {
            "_REGARD_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(typed.split()) - 1),
        },
    )
    assert done.stdout.split() == offered


def test_the_choices_of_a_setting_are_completed():
    assert setting_names("train.metric=b") == ["train.metric=bleu"]
    assert setting_names("text.share=") == ["text.share=true", "text.share=false"]


# data


def test_generate_the_five_formulas():
    out = call("data", "generate", "arithmetic", "--count", 5, "--seed", 123456, "complexity=3")
    assert out == "649+864\t1513\n-940-819\t-1759\n954-2\t952\n-896-274\t-1170\n-762-954\t-1716\n"


def test_generate_refuses_what_is_no_option(refused):
    assert "complexity" in refused("data", "generate", "arithmetic", "complexitty=3")
    assert "did you mean arithmetic?" in refused("data", "generate", "arithmetics")
    assert "name=value" in refused("data", "generate", "arithmetic", "--cuont", "5")


TASKS = ["arithmetic", "phrases", "copy", "reverse", "sort", "dates", "listops"]


@pytest.fixture
def pairs_file(here):
    """Forty numbered pairs, a line without a tab, and a pair that is too long to train on."""
    lines = [f"number {n}\tnombre {n}\n" for n in range(40)]
    Path("pairs.tsv").write_text("".join([*lines, "alone\n", "a " * 300 + "\tb\n"]))
    return "pairs.tsv"


def test_data_list():
    assert all(task in call("data", "list") for task in TASKS)


@pytest.mark.parametrize("verb", ["train", "data inspect"])
def test_help_says_what_data_is(verb):
    assert "A built-in task" in call(*verb.split(), "--help")


def test_data_inspect(pairs_file):
    said = call("data", "inspect", pairs_file)
    assert "one column (line 41)" in said
    assert "`regard train` would choose" in said
    assert "have more than 256 tokens on a side and will be skipped" in said
    assert os.listdir() == ["pairs.tsv"]


def test_data_inspect_shows_three_pairs_as_they_are_trained_on(pairs_file):
    said = call("data", "inspect", pairs_file, "text.tokenizer=words")
    assert "3 training pairs, as text and as tokens" in said
    lines = [line.strip() for line in said.splitlines()]
    sources = [i for i, line in enumerate(lines) if line.startswith("source  number ")]
    assert len(sources) == 3
    for i in sources:
        number = lines[i].split()[-1]
        assert lines[i + 1] == f"number|{number}"
        assert lines[i + 2] == f"target  nombre {number}"
        assert lines[i + 3] == f"nombre|{number}"


def test_data_inspect_shows_lengths_as_bars(pairs_file, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    said = call("data", "inspect", pairs_file, "text.tokenizer=words")
    assert max(map(len, said.splitlines()[:20])) <= 60
    bars = [line for line in said.splitlines() if "%" in line and "│" in line]
    assert [line.split("│")[1].strip() for line in bars] == ["1", "2", "3 or more"]
    assert "97% ██████████████ " in bars[1]


def test_data_inspect_json(pairs_file):
    found = json.loads(call("data", "inspect", pairs_file, "text.tokenizer=words", "--json"))
    assert [(split["name"], split["pairs"]) for split in found["splits"]] == [
        ("train", 37),
        ("dev", 2),
        ("test", 2),
    ]
    assert found["skipped"] == ["pairs.tsv: skipped 1 line: one column (line 41)"]
    assert len(found["samples"]) == 3
    assert found["samples"][0]["source_tokens"] == found["samples"][0]["source"].split()
    assert sum(bar["source"] for bar in found["lengths"]) == 37
    assert found["lengths"][-1]["high"] is None
    assert found["too_long"] == pytest.approx(1 / 37)
    assert found["settings"]["model"]["width"] == 128
    assert any(reason.startswith("model: Transformer, 2+2 layers") for reason in found["plan"])


def test_inspect_shows_what_training_does(pairs_file, tiny):
    """The tokens are those of the run."""
    found = json.loads(call("data", "inspect", pairs_file, "--json"))
    run = regard.train(pairs_file, out="run", reporter=Reporter(quiet=True), **tiny)
    for sample in found["samples"]:
        ids = run.source.encode(sample["source"])
        assert run.source.token_texts(ids) == sample["source_tokens"]
    assert run.manifest["pairs"] == 36  # without the one that is too long


def test_data_list_and_generate_json():
    entries = json.loads(call("data", "list", "--json"))
    assert [entry["name"] for entry in entries][: len(TASKS)] == TASKS
    assert entries[0]["options"]["complexity"] == 3
    lines = call("data", "generate", "arithmetic", "--count", 2, "--seed", 123456, "--json")
    assert json.loads(lines.splitlines()[1]) == {"source": "-940-819", "target": "-1759"}


def test_presets():
    assert all(name in call("presets") for name in ("course", "d2l", "demo"))


def test_presets_json():
    entries = {entry["name"]: entry for entry in json.loads(call("presets", "--json"))}
    assert {"course", "d2l", "demo"} <= set(entries)
    assert entries["demo"]["what"]
    assert "model" in entries["demo"]["settings"]


# translate


def test_a_text_may_begin_with_a_dash(run):
    out = json.loads(call("translate", run.path, "-940-819", "--json"))
    assert out["source"] == "-940-819"
    assert call("translate", run.path, "-940-819").rstrip("\n") == out["text"]


def test_a_misspelt_option_is_no_text(run, refused):
    assert "no option --beem; did you mean --beam?" in refused(
        "translate", run.path, "1+1", "--beem", 3
    )
    assert "no option --quickly" in refused("translate", run.path, "1+1", "--quickly")
    assert "did you mean --heads?" in refused("show", "attention", run.path, "--haeds")


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminal")
def test_on_a_terminal_it_prompts_and_answers_line_by_line(run, request):
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", "translate", str(run.path)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(theirs)
    request.addfinalizer(process.kill)
    shown = b""

    def read_until(text):
        nonlocal shown
        while text not in shown:
            ready, _, _ = select.select([ours], [], [], 30)
            assert ready, f"waited for {text!r} after {shown!r}"
            shown += os.read(ours, 4096)
        before, _, shown = shown.partition(text)
        return before.decode().replace("\r", "")

    assert read_until(b"> ") == "Type a text and press Enter. To end, press Ctrl-D.\n"
    translator = regard.load(run)
    for text in ("1+1", "-94-2"):
        os.write(ours, f"{text}\n".encode())
        assert translator(text).text in read_until(b"\n> ")
    os.write(ours, b"\x04")
    assert process.wait(60) == 0
    os.close(ours)


def test_what_an_option_does_not_know_is_refused(run, refused):
    assert "--wait reads stdin" in refused("translate", run.path, "1+1", "--wait", 1, "--coverage")
    assert "--at prints" in refused(
        "translate", run.path, "1+1", "--at", 0, "--attention", "page.html"
    )


def test_answers_can_be_wished_for(run, refused):
    said = call("translate", run.path, "1+1", "--at", 0, "--nbest", 3)
    assert "probability" in said
    assert said.count("%") == 5
    assert "7" in call("translate", run.path, "1+1", "--must", "7")
    assert not set("0123456789") & set(
        call("translate", run.path, "1+1", *[f"--forbid={digit}" for digit in range(10)])
    )
    assert "'x' cannot be required" in refused("translate", run.path, "1+1", "--must", "x")
    assert call("translate", run.path, "1+1", "--with", run.path) == call(
        "translate", run.path, "1+1"
    )
    assert len(call("translate", run.path, "1+1", "--risk", 8).splitlines()) == 1
    assert (
        len(call("translate", run.path, "1+1", "--nbest", 3, "--set", "diversity=1").splitlines())
        == 3
    )
    assert "did you mean search.diversity?" in refused(
        "translate", run.path, "1+1", "--set", "diversty=1"
    )


def test_set_knows_search_settings_only(run, refused):
    """Not the options of `load`, which have names of their own."""
    text = run.path, "1+1"
    assert (
        refused("translate", *text, "--set", "beam=3")
        == "error: no setting search.beam; did you mean search.width?"
    )
    assert refused("translate", *text, "--set", "search.beam=3").endswith(
        "did you mean search.width?"
    )
    for name in ("checkpoint=best", "device=cpu", "parts=1", "run=x"):
        assert f"no setting search.{name.partition('=')[0]}" in refused(
            "translate", *text, "--set", name
        )
    assert "--set train.steps=3: only search settings" in refused(
        "translate", *text, "--set", "train.steps=3"
    )
    assert "search.width=0: must be from 1 to 10,000" in refused(
        "translate", "no run", "1+1", "--set", "width=0"
    )
    assert call("translate", *text, "--set", "width=3", "--set", "search.no_repeat=2")


def test_the_length_penalty_counts_for_every_beam(run):
    for beam in (1, 2):
        for penalty in (0.0, 0.5, 1.0):
            words = ["--beam", beam, "--set", f"search.length_penalty={penalty}", "--json"]
            found = json.loads(call("translate", run.path, "12+34", *words))
            logprobs = found["logprobs"]
            assert len(logprobs) > 1
            assert found["score"] == math.fsum(logprobs) / len(logprobs) ** penalty


def test_what_ranks_the_answers_is_told_by_its_name(run):
    drawn = json.loads(call("translate", run.path, "12+34", "--risk", 8, "--nbest", 3, "--json"))
    answers = [drawn, *drawn["alternatives"]]
    agreements = [answer["agreement"] for answer in answers]
    assert agreements == sorted(agreements, reverse=True)
    assert all(0 <= agreement <= 100 for agreement in agreements)
    assert all(answer["score"] < 0 for answer in answers)
    lines = call("translate", run.path, "12+34", "--risk", 8, "--nbest", 3).splitlines()
    assert [line.split("\t")[0] for line in lines] == [
        f"{agreement:.4f}" for agreement in agreements
    ]

    covered = json.loads(
        call("translate", run.path, "12+34", "--set", "coverage=0.5", "--nbest", 2, "--json")
    )
    sums = [
        answer["score"] + answer["coverage_penalty"]
        for answer in (covered, *covered["alternatives"])
    ]
    assert sums == sorted(sums, reverse=True)
    lines = call("translate", run.path, "12+34", "--set", "coverage=0.5", "--nbest", 2).splitlines()
    assert [line.split("\t")[0] for line in lines] == [f"{number:.4f}" for number in sums]


@pytest.fixture
def standard_input():
    """The writing end of a pipe from which this process reads its standard input."""
    reading, writing = os.pipe()
    before = os.dup(0)
    os.dup2(reading, 0)
    os.close(reading)
    with open(writing, "wb", buffering=0) as pipe:
        yield pipe
    os.dup2(before, 0)
    os.close(before)


@pytest.mark.parametrize("windows", [False, True])
def test_lines_are_grouped_as_they_come(standard_input, monkeypatch, windows):
    """On Windows `select` knows only sockets: there what has come is answered without waiting for
    more.
    """

    def refuse(*_):
        raise OSError(10038, "an operation was attempted on something that is not a socket")

    if windows:
        monkeypatch.setattr("select.select", refuse)
        monkeypatch.setattr("sys.platform", "win32")
    groups = line_bursts(None, lambda: 512)
    standard_input.write(b"1+1\n2+2\n3")
    assert next(groups) == [b"1+1", b"2+2"]
    standard_input.write(b"+3\n\n4+4")
    standard_input.close()
    assert list(chain.from_iterable(groups)) == [b"3+3", b"", b"4+4"]


def test_texts_or_a_file_not_both(run, here):
    (here / "in.txt").write_text("1+1\n")
    with pytest.raises(UserError, match=r"texts to translate and --input in\.txt: pass one"):
        call("translate", run.path, "2+2", "--input", "in.txt")


def test_several_texts_and_a_file(run, here):
    texts = ["1+1", "22+3", "-5-7"]
    out = call("translate", run.path, *texts)
    assert len(out.splitlines()) == 3
    Path("in.txt").write_bytes("\r\n".join(texts).encode())
    assert call("translate", run.path, "--input", "in.txt") == out
    assert call("translate", run.path, "--input", "in.txt", "--output", "out.txt") == ""
    assert Path("out.txt").read_text() == out


def test_an_empty_line_is_an_empty_line(run, here):
    lines = ["1+1", "", "22+3", "", ""]
    Path("in.txt").write_text("\n".join(lines) + "\n")
    out = call("translate", run.path, "--input", "in.txt").split("\n")
    assert len(out) == len(lines) + 1
    assert out[1] == out[3] == out[4] == out[5] == ""
    assert out[0] == call("translate", run.path, "1+1").rstrip("\n")


def test_json(run, here):
    Path("in.txt").write_text("1+1\n\n7-1\n")
    lines = call("translate", run.path, "--json", "--nbest", 2, "--input", "in.txt").splitlines()
    found = [json.loads(line) for line in lines]
    assert [each["source"] for each in found] == ["1+1", "", "7-1"]
    for each in found:
        assert {"text", "score", "tokens", "alternatives", "warnings"} <= set(each)
        assert "".join(each["tokens"]) == each["text"]
        assert [set(other) for other in each["alternatives"]] == [{"text", "score"}] * (
            1 if each["source"] else 0
        )


def test_nbest(run):
    lines = [
        line.split("\t")
        for line in call("translate", run.path, "--nbest", 3, "12+34", "5-5").splitlines()
    ]
    assert len(lines) == 6
    for group in (lines[:3], lines[3:]):
        scores = [float(score) for score, _ in group]
        assert scores == sorted(scores, reverse=True)
        assert len({text for _, text in group}) == 3


def test_how_to_draw_needs_drawing(run, refused):
    for words in (("--temperature", "2"), ("--top-k", "3"), ("--top-p", "0.5"), ("--seed", "1")):
        assert "need --sample or --risk" in refused("translate", str(run.path), "1+1", *words)
    assert call("translate", run.path, "1+1", "--risk", "3", "--seed", "1")


def test_the_name_of_a_page_is_looked_at_first(run, refused):
    assert "must end in .html" in refused(
        "translate", str(run.path), "1+1", "--attention", "page.png"
    )


def test_sample_repeats_with_its_seed(run):
    texts = ["12+34", "5-5", "77+88"]
    draws = [call("translate", run.path, "--sample", "--seed", seed, *texts) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_prefix_and_beam(run):
    assert call("translate", run.path, "12+34", "--prefix", "4").startswith("4")
    assert len(call("translate", run.path, "12+34", "5-5", "--beam", 3).splitlines()) == 2


def test_attention_page(run, here):
    call("translate", run.path, "12+34", "--attention", "page.html")
    page = Path("page.html").read_text()
    assert "12+34" in page
    assert "://" not in page.replace("http://www.w3.org", "")  # offline


def test_stream_answers_before_the_end(run):
    """Line in, line out: the answer comes while the pipe is still open."""
    words = [sys.executable, "-m", "regard", "translate", str(run.path)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        for text in ("1+1", "", "-940-819"):
            process.stdin.write(text + "\n")
            answer = process.stdout.readline()
            assert answer.endswith("\n")
            assert (answer == "\n") == (text == "")
        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait(20) == 0


def test_a_reader_of_pairs_may_leave():
    words = (
        f"{sys.executable} -m regard data generate copy --count 100000 | head -1; echo "
        f"${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[1] == "0"
    assert done.stderr == ""


@pytest.mark.parametrize(
    "source", ["--input in.txt", "< in.txt", "< <(cat in.txt; exec sleep 120 2> /dev/null)"]
)
def test_a_closed_pipe_ends_cleanly(run, tmp_path, source):
    """`regard translate … | head -1`, also while more input is still awaited."""
    (tmp_path / "in.txt").write_text("1+1\n" * 1500)
    words = (
        f"{sys.executable} -m regard translate {run.path} --json {source} | head -1; echo "
        f"${{PIPESTATUS[0]}}"
    )
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert time.monotonic() - began < 100
    assert done.stderr == ""
    answer, code = done.stdout.splitlines()
    assert json.loads(answer)["source"] == "1+1"
    assert code == "0"


def test_bytes_that_are_no_text(run, tmp_path):
    """A broken line in the middle, a NUL, a line of 2 MB: each line has its answer, and the next
    one comes.
    """
    lines = [b"1+1", b"2\xff+\xe9", b"3\x00+3", b"9" * 2_000_000, b"1+1", b"caf\xc3"]
    (tmp_path / "in.txt").write_bytes(b"\n".join(lines))
    words = [sys.executable, "-m", "regard", "translate", str(run.path)]
    for more in (["--json"], ["--input", "in.txt"]):
        with (tmp_path / "in.txt").open("rb") as source:
            done = subprocess.run(
                [*words, *more],
                cwd=tmp_path,
                stdin=source,
                capture_output=True,
                timeout=120,
                check=True,
            )
        out, said = done.stdout.decode().splitlines(), done.stderr.decode()
        assert len(out) == 6
        if "--json" in more:
            found = [json.loads(line) for line in out]
            assert [each["source"][:6] for each in found] == [
                "1+1",
                "2\ufffd+\ufffd",
                "3\0+3",
                "999999",
                "1+1",
                "caf\ufffd",
            ]
            for number in (2, 6):
                expected = (
                    f"line {number} is not valid UTF-8; invalid bytes were replaced by U+FFFD"
                )
                assert found[number - 1]["warnings"][0] == expected
            assert "UTF-8" not in str([found[i]["warnings"] for i in (0, 2, 3, 4)])
            assert found[3]["text"] == ""
            assert "not translated: 2,000,001 tokens without a space" in found[3]["warnings"][0]
            assert found[0]["text"] == found[4]["text"]
        else:
            assert "warning: '2\ufffd+\ufffd': line 2 is not valid UTF-8" in said


def test_an_argument_that_is_no_text(run):
    done = subprocess.run(
        [sys.executable, "-m", "regard", "translate", str(run.path), "1+1", b"caf\xe9", "--json"],
        capture_output=True,
        check=True,
    )
    one, other = (json.loads(line) for line in done.stdout.splitlines())
    assert other["source"] == "caf\ufffd"
    assert "line 2 is not valid UTF-8" in other["warnings"][0]
    assert "UTF-8" not in str(one["warnings"])


def test_a_paragraph_is_split(run, here):
    Path("in.txt").write_text("1+1\n12+34. 5-6.  77+88! 9-9.\n2+2\n")
    _, found, _ = (
        json.loads(line)
        for line in call("translate", run.path, "--json", "--input", "in.txt").splitlines()
    )
    assert "split into" in found["warnings"][0]
    assert found["source"] == "12+34. 5-6.  77+88! 9-9."
    call("translate", run.path, found["source"], "--attention", "page.html")
    assert "12+34" in Path("page.html").read_text()


def test_coverage(run, monkeypatch):
    (plain,) = call("translate", run.path, "--json", "12+34").splitlines()
    (found,) = call("translate", run.path, "--json", "12+34", "--coverage").splitlines()
    assert "coverage" not in json.loads(plain)
    assert 0 < json.loads(found)["coverage"] <= 1
    monkeypatch.setattr("regard.records.result.HARDLY", 100.0)
    done = json.loads(call("translate", run.path, "12+34 5", "--json", "--coverage"))
    assert "little attention (less than 100.0) on: 12+34 5" in done["warnings"]


def test_a_page_has_the_tree_of_its_own_answer(run, here):
    call("translate", run.path, "1+1", "--attention", "beam.html")
    call("translate", run.path, "1+1", "--prefix", "77", "--attention", "forced.htm")
    assert '"tree": [[' in Path("beam.html").read_text()
    forced = Path("forced.htm").read_text()
    assert '"tree": []' in forced
    assert "its tree is not shown" in forced


# evaluate


def test_evaluate(run):
    said = call("evaluate", run.path)
    assert "exact match" in said
    assert "BLEU" not in said  # the answers are single words


def test_evaluate_json(run):
    found = json.loads(call("evaluate", run.path, "--split", "dev", "--json"))
    assert list(found) == [*FIELDS.split(), "seen_in_training"]
    rates = ("token_accuracy", "exact_match", "sequence_error")
    assert all(0 <= found[name] <= 1 for name in rates)
    assert found["sequence_error"] == 1 - found["exact_match"]
    assert 0 <= found["chrf"] <= 100
    assert found["examples"] == 12
    assert found["bleu"] is None  # sums have one-word answers
    assert found["bleu_signature"] is None


def test_evaluate_against(run):
    found = json.loads(call("evaluate", run.path, "--against", run.path, "--json"))
    assert found.pop("against") | {"p": None} == {
        "a": found["exact_match"],
        "b": found["exact_match"],
        "difference": 0,
        "low": 0,
        "high": 0,
        "p": None,
        "metric": "exact_match",
    }
    assert list(found) == [*FIELDS.split(), "seen_in_training"]
    said = call("evaluate", run.path, "--against", run.path)
    assert "exact match 0.00 against 0.00: difference +0.00" in said


def test_the_better_run_has_the_higher_score_and_a_plus(run, here, monkeypatch):
    """The difference is this run's score minus the other's."""
    from regard.recipes import evaluation as recipes
    from regard.records.result import Result

    Path("test.tsv").write_text(
        "".join(f"{n}+{n}\tthe sum of {n} and {n} is {2 * n}\n" for n in range(10, 30))
    )
    truth = dict(line.split("\t") for line in Path("test.tsv").read_text().splitlines())
    shutil.copytree(run.path, here / "worse")
    load = recipes.load_translator

    def loaded(which, **more):
        translator = load(which, **more)
        words = 4 if str(which) == "worse" else 9
        answers = {text: " ".join(answer.split()[:words]) for text, answer in truth.items()}
        translator.translate = lambda texts: (
            Result(text, answers[text], [], 0.0, []) for text in texts
        )
        return translator

    monkeypatch.setattr(recipes, "load_translator", loaded)
    found = json.loads(call("evaluate", run.path, "test.tsv", "--against", "worse", "--json"))
    against = found["against"]
    assert against["a"] == pytest.approx(found["bleu"])
    assert against["a"] > against["b"]
    assert against["difference"] == against["a"] - against["b"]
    assert 0 < against["low"] <= against["difference"] <= against["high"]
    said = call("evaluate", run.path, "test.tsv", "--against", "worse").splitlines()[-1]
    assert (
        f"BLEU {against['a']:.2f} against {against['b']:.2f}: difference "
        f"+{against['difference']:.2f} (95% confidence interval +" in said
    )


# show


def test_show_curves(run, here):
    assert call("show", "curves", run.path) == "curves.png\n"
    assert call("show", "curves", run.path, run.path, "--out", "two.svg") == "two.svg\n"
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in Path("two.svg").read_text()


def test_show_attention(run, here):
    call("show", "attention", run.path, "1+1", "--heads", "--out", "heads.pdf")
    assert Path("heads.pdf").read_bytes().startswith(b"%PDF")


def test_show_attention_does_what_was_asked_for_and_no_more(run, here, monkeypatch):
    """One picture; evidence, which takes a reading of the text for each token, only for a page."""
    computed = []
    for name in ("occlusion", "gradient_times_input"):
        work = getattr(page, name)
        watched = functools.partial(
            lambda name, work, *words: computed.append(name) or work(*words), name, work
        )
        monkeypatch.setattr(page, name, watched)
    answer = regard.load(run)("-940-819").text
    assert call("show", "attention", run.path, "-940-819") == f"{answer}\nattention.png\n"
    assert os.listdir() == ["attention.png"]
    assert Path("attention.png").read_bytes().startswith(b"\x89PNG")
    assert computed == []
    said = call("show", "attention", run.path, "-940-819", "--out", "page.html")
    assert said == f"{answer}\npage.html\n"
    assert sorted(os.listdir()) == ["attention.png", "page.html"]
    assert "-940-819" in Path("page.html").read_text()
    assert computed == ["occlusion", "gradient_times_input"]
    regard.load(run)("-940-819").write_page(Path("plain.html"), evidence=False)
    assert len(computed) == 2
    assert '"occlusion"' in Path("page.html").read_text()
    assert '"occlusion"' not in Path("plain.html").read_text()


def test_show_positions(run, here):
    call("show", "positions", "--width", 32)
    call("show", "positions", run.path, "--out", "run.png")
    assert {path.name for path in here.glob("*.png")} == {"positions.png", "run.png"}


@pytest.mark.parametrize("name", ["rotary", "alibi"])
def test_show_positions_that_act_in_attention(name, here, refused):
    assert call("show", "positions", name, "--width", 8, "--length", 20) == "positions.png\n"
    assert Path("positions.png").read_bytes().startswith(b"\x89PNG")


def test_show_positions_says_what_there_is(here, refused):
    assert "did you mean rotary?" in refused("show", "positions", "rotray")
    assert "positions are learned, so they need a run" in refused("show", "positions", "learned")
    assert "must be even" in refused("show", "positions", "rotary", "--width", 7)


@pytest.mark.parametrize("position", ["none", "learned", "relative", "rotary", "alibi"])
def test_show_positions_of_a_run(position, tiny, here, refused):
    model = tiny["model"] | {"position": position}
    data = {"options": {"train": 20, "dev": 4, "test": 4}, "path": "copy"}
    train = tiny["train"] | {"steps": 2}
    settings = {"model": model, "train": train, "data": data, "text": {"tokenizer": "words"}}
    quiet = Reporter(quiet=True)
    regard.train(regard.Config(), out=here / "run", reporter=quiet, **settings)
    if position == "none":
        assert "run: this model has no positional encodings" in refused("show", "positions", "run")
    else:
        assert call("show", "positions", "run", "--out", "p.svg") == "p.svg\n"
        assert Path("p.svg").exists()


# mistakes and signals


def test_debug_shows_the_traceback(command, here):
    plain, debug = (
        command("evaluate", "nothing", cwd=here),
        command("evaluate", "nothing", "--debug", cwd=here),
    )
    assert plain.returncode == 2
    assert plain.stderr.count("\n") == 1
    assert "Traceback" in debug.stderr
    assert "UserError" in debug.stderr
    assert plain.stderr.removeprefix("error: ").strip() in debug.stderr


def test_an_unknown_option_is_one_line(command, here):
    done = command("evaluate", "nothing", "--splitt", "dev", cwd=here)
    assert done.returncode == 2
    assert "--splitt" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--steps", "5"], "no option --steps: write train.steps=5"),
        (["--steps=5"], "no option --steps: write train.steps=5"),
        (["--lr", "0.1"], "no option --lr: write train.rate=0.1"),
        (["--train.steps", "5"], "no option --train.steps: write train.steps=5"),
        (["--dropout", "0"], "no option --dropout: write text.dropout=0 or model.dropout=0"),
        (["steps=5"], "'steps=5' is not a setting: write train.steps=5"),
    ],
)
def test_an_option_that_is_a_setting(words, advice, refused, here):
    assert refused("train", "copy", *words) == f"error: {advice}"
    assert refused("data", "inspect", "copy", *words) == f"error: {advice}"


def test_interrupted_training_saves_and_goes_on(here, command):
    tiny = (
        "model.width=16 model.ffn=16 model.heads=2 model.encoder_layers=1 model.decoder_layers=1 "
        "search.width=1"
    )
    sizes = (
        "data.options.train=50 data.options.dev=5 data.options.test=5 train.epochs=0 "
        "train.tensorboard=off"
    )
    often = (
        "train.log_every=5 train.evaluate_every=1000000 train.save_every=1000000 "
        "train.steps=1000000"
    )
    words = [
        sys.executable,
        "-m",
        "regard",
        "train",
        "arithmetic",
        "--out",
        "mine",
        *tiny.split(),
        *sizes.split(),
        *often.split(),
    ]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        log, end = Path("mine/log.jsonl"), time.monotonic() + 120
        while not (log.exists() and log.read_text().count("\n") >= 2) and time.monotonic() < end:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "regard train arithmetic --out mine --resume" in said
    assert "Traceback" not in said
    (stopped,) = (
        int(path.name.removeprefix("step-")) for path in Path("mine/checkpoints").iterdir()
    )
    assert stopped >= 10

    done = command("train", "arithmetic", "--out", "mine", "--resume", f"train.steps={stopped + 7}")
    assert done.returncode == 0, done.stderr
    steps = [
        json.loads(line)["step"]
        for line in log.read_text().splitlines()
        if json.loads(line)["kind"] == "train"
    ]
    assert (
        steps == [*range(5, stopped + 7, 5), stopped + 7]
        if (stopped + 7) % 5
        else [*range(5, stopped + 8, 5)]
    )
    assert (
        sorted(path.name for path in Path("mine/checkpoints").iterdir())[-1]
        == f"step-{stopped + 7:08d}"
    )


def test_interrupted_translation_has_its_exit_code(run):
    words = [sys.executable, "-m", "regard", "translate", str(run.path)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, text=True, bufsize=1, **pipes) as process:
        process.stdin.write("1+1\n")
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert "Traceback" not in process.stderr.read()
