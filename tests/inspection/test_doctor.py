"""`regard doctor`: a good run passes; each kind of damage is named by the row that looks for it,
and nothing is changed.
"""

import hashlib
import json
import shutil
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.cli import app, main
from regard.data.batches import Batches
from regard.inspection import doctor as proofs
from regard.inspection.doctor import PROOFS, doctor
from regard.inspection.doctor import files as module
from regard.inspection.doctor.files import Case
from regard.recipes.reporter import Reporter
from regard.training import trainer as training

OWN, SAVED, DATA = (
    "config and tokenizer intact",
    "checkpoints intact",
    "training data intact",
)
WEIGHTS, RESUME, ONCE = "best checkpoint loads", "resuming is exact", "each pair once per epoch"


@pytest.fixture
def mine(run, tmp_path):
    """A copy, to be damaged."""
    return shutil.copytree(run.path, tmp_path / "mine")


def state(path):
    """Every file, with its bytes and when they were written."""
    files = sorted(p for p in path.rglob("*") if p.is_file())
    return {
        str(p): (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns) for p in files
    }


def examine(path, code):
    """Rows by name, by way of the command line; nothing in the folder may change."""
    before = state(path)
    done = CliRunner().invoke(app, ["doctor", str(path), "--json"], catch_exceptions=False)
    assert done.exit_code == code
    assert state(path) == before
    return {row.pop("name"): row for row in json.loads(done.stdout)}


def failed(rows):
    return [name for name, row in rows.items() if row["passed"] is False]


def flip(path, place=-1):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_a_good_run_passes(run):
    rows = examine(run.path, 0)
    assert len(rows) == len(PROOFS) == 19
    assert [name for name, row in rows.items() if not row["passed"]] == [
        "no look-ahead in the source"
    ]
    assert all(row["found"] and not row["advice"] for row in rows.values())
    assert rows[ONCE]["found"].startswith("60 pairs in 3 batches")
    assert rows[RESUME]["found"].startswith(
        "from step 6: 3 steps, a stop and 3 more give the same weights, optimizer state and log"
    )


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "progress.json"])
def test_a_flipped_bit_in_the_best_checkpoint(mine, name):
    folder = mine / "checkpoints" / (mine / "best").read_text().strip()
    flip(folder / name)
    rows = examine(mine, 1)
    assert failed(rows) == [SAVED, WEIGHTS]
    assert str(folder / name) in rows[SAVED]["found"]
    assert rows[SAVED]["advice"]
    assert rows[RESUME]["passed"]  # from the one before it


def test_every_damaged_checkpoint_is_named(mine):
    files = sorted(mine.glob("checkpoints/*/model.safetensors"))
    assert len(files) == 2
    for file in files:
        file.unlink()
    rows = examine(mine, 1)
    assert failed(rows) == [SAVED, WEIGHTS, RESUME]
    assert all(f"{file}: missing" in rows[SAVED]["found"] for file in files)


def test_an_edited_config(mine):
    config = mine / "config.toml"
    config.write_text(config.read_text().replace("warmup = 2", "warmup = 3"))
    rows = examine(mine, 1)
    assert failed(rows) == [OWN]
    assert "config.toml: its SHA-256" in rows[OWN]["found"]
    assert rows[SAVED]["passed"]
    assert rows[RESUME]["passed"] is None
    assert DATA in rows[RESUME]["found"]


def test_a_deleted_tokenizer(mine):
    (mine / "tokenizer.json").unlink()
    rows = examine(mine, 1)
    assert failed(rows) == [OWN]
    assert "tokenizer.json: missing" in rows[OWN]["found"]


@pytest.mark.parametrize("name", ["ids.bin", "lengths.bin"])
def test_damaged_data(mine, name):
    flip(mine / "data" / "train" / name, 0 if name == "ids.bin" else 8)
    rows = examine(mine, 1)
    assert failed(rows) == [DATA]
    assert str(mine / "data" / "train") in rows[DATA]["found"]
    assert rows[ONCE]["passed"] is rows[RESUME]["passed"] is None


def test_cut_data(mine):
    (mine / "data" / "train" / "ids.bin").write_bytes(b"")
    assert failed(examine(mine, 1)) == [DATA]


def test_data_of_which_pairs_were_left_out(tiny, tmp_path):
    """Longer ones than allowed, in many blocks: the sum is still proved, and damage still found."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(
        "".join(f"{'a ' * (40 if i % 9 == 0 else 3)}{i % 50}\t{i % 50}\n" for i in range(5000))
    )
    data = {"max_length": 20, "dev": 4, "test": 4, "batch_sentences": 500}
    out, quiet, text = tmp_path / "run", Reporter(quiet=True), {"tokenizer": "words"}
    run = regard.train(
        pairs,
        out=out,
        reporter=quiet,
        data=data,
        text=text,
        model=tiny["model"],
        train=tiny["train"],
    )
    assert len(regard.data.corpus.Corpus.open(out / "data" / "train")) < 4500
    assert module.data(Case(run.path, run=run))
    flip(out / "data" / "train" / "ids.bin", 6000)
    with pytest.raises(regard.UserError, match="SHA-256"):
        module.data(Case(run.path, run=run))


def test_a_run_that_is_being_trained(mine):
    run = regard.runs.run.Run.open(mine)
    with run.locked():
        rows = examine(mine, 1)
    assert failed(rows) == ["no training in progress"]


def test_a_run_without_checkpoints_starts_at_the_beginning(mine):
    shutil.rmtree(mine / "checkpoints")
    (mine / "best").unlink()
    (mine / "lock").unlink()
    rows = examine(mine, 0)
    assert "from step 0: " in rows[RESUME]["found"]


def test_resume_that_is_not_exact_is_found(mine, monkeypatch):
    """Such as one that forgets the sums since the last line of the log, or the optimiser's
    memory.
    """
    restore = training.Trainer.from_json

    def forgets(self, values):
        restore(self, values)
        self.totals.zero_()

    monkeypatch.setattr(training.Trainer, "from_json", forgets)
    with pytest.raises(regard.UserError, match="from step 6: log after 6 steps"):
        module.resumes(Case(mine))
    monkeypatch.setattr(training.Trainer, "from_json", restore)
    monkeypatch.setattr("regard.training.checkpoint.restore_optimizer", lambda *given: None)
    with pytest.raises(regard.UserError, match="weights, optimizer"):
        module.resumes(Case(mine))


def test_batches_that_are_wrong_are_found(mine, monkeypatch):
    indices, asked = Batches.indices, []

    def drifts(self, step):
        asked.append(step)
        return indices(self, step + len(asked) % 2)

    monkeypatch.setattr(Batches, "indices", drifts)
    for proof in (module.repeats, module.once):
        with pytest.raises(regard.UserError):
            proof(Case(mine))


@pytest.mark.parametrize("width", [80, 120])
def test_the_table(mine, width):
    flip(mine / "data" / "train" / "ids.bin", 0)
    damaged = sorted(mine.glob("checkpoints/*/progress.json"))[0]
    flip(damaged)
    done = CliRunner().invoke(app, ["doctor", str(mine)], env={"COLUMNS": str(width)})
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert [done.stdout.count(mark) for mark in "✓✗–→"] == [12, 2, 5, 2]
    assert str(damaged) in "".join(
        line.split("│")[3].strip() for line in lines if line.startswith("│")
    )  # over as many lines


def test_whatever_goes_wrong_is_a_row(mine, monkeypatch):
    """Such as a checkpoint of a version that counted other things; the other rows are told all the
    same.
    """
    monkeypatch.setattr(module, "load_checkpoint", lambda *given: [][1])
    rows = examine(mine, 1)
    assert failed(rows) == [RESUME]
    assert rows[RESUME]["found"].startswith("IndexError: ")


def test_help_has_an_example():
    assert "Example: " in CliRunner().invoke(app, ["doctor", "--help"]).stdout
    assert " doctor " in CliRunner().invoke(app, ["--help"]).stdout


def test_what_is_no_run_is_one_line(tmp_path, monkeypatch, capfd):
    for path in (tmp_path, tmp_path / "nothing"):
        monkeypatch.setattr("sys.argv", ["regard", "doctor", str(path)])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        assert len(capfd.readouterr().err.splitlines()) == 1


def test_exit_code_of_the_command(mine, monkeypatch, capfd):
    (mine / "tokenizer.json").unlink()
    monkeypatch.setattr("sys.argv", ["regard", "doctor", str(mine)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert "✗" in capfd.readouterr().out


def test_the_callers_threads_are_left_as_they_were(mine):
    before = torch.get_num_threads()
    run = regard.runs.run.Run.open(mine)
    run.change(replace(run.config, train=replace(run.config.train, threads=before + 1)))
    assert not [row.name for row in doctor(mine) if row.passed is False]
    assert torch.get_num_threads() == before


def test_a_proof_is_one_function(run, monkeypatch):
    few = {"opens": PROOFS["opens"]}
    monkeypatch.setattr(module, "PROOFS", few)
    monkeypatch.setattr(proofs, "PROOFS", few)

    @module.proof("the moon is full", "wait", "opens")
    def moon(case):
        raise regard.UserError(f"{case.path}: it is not")

    assert doctor(run.path)[-1] == module.Row(
        "the moon is full", False, f"{run.path}: it is not", "wait"
    )
