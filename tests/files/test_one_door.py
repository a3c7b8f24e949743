"""Nobody writes a file but through regard.files."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import regard

ROOT = Path(regard.__file__).parent
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] != "files"]

METHODS = {
    *("write_text", "write_bytes", "touch", "tofile", "save", "savefig", "dump"),
    *("rename", "symlink_to", "hardlink_to", "imsave", "savez", "savez_compressed", "savetxt"),
}
"""Methods that write, whatever the object is; our own that are called so are named below."""
FUNCTIONS = {
    *("os.replace", "os.rename", "os.renames", "os.link", "os.symlink", "os.truncate", "os.mkfifo"),
    *("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree", "shutil.move"),
    *("tempfile.NamedTemporaryFile", "tempfile.mkstemp", "io.FileIO", "os.fdopen"),
    *("save_file", "save_model", "FileIO", "NamedTemporaryFile", "mkstemp", "copyfile", "copytree"),
    *("NamedFile", "FileHandler", "logging.FileHandler"),
}
OPENERS = {"open", "io.open", "gzip.open", "bz2.open", "lzma.open", "codecs.open", "tarfile.open"}
WRITING_FLAGS = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC")
ALLOWED = {
    # A link in a folder that the doctor has just made, so that it need not copy the data.
    ("inspection/doctor/files.py", "(copy / 'data').symlink_to"),
    # Standard output and error, opened again.
    ("display/streams.py", "io.FileIO"),
}


def writes(tree: ast.Module) -> Iterator[str]:
    """The calls that may write a file."""
    in_memory = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in ("BytesIO()", "io.BytesIO()")
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        spelled = ast.unparse(node.func)
        if spelled.startswith("files."):
            continue
        to_memory = node.args and ast.unparse(node.args[0]) in in_memory
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
        if spelled in FUNCTIONS or (is_method and not to_memory) or opens_to_write(node, spelled):
            yield spelled


def opens_to_write(call: ast.Call, spelled: str) -> bool:
    """Whether a call of some `open`, or of memmap, asks for more than reading."""
    text = ast.unparse(call)
    if spelled == "os.open":
        return any(flag in text for flag in WRITING_FLAGS) and "os.devnull" not in text
    if spelled in OPENERS:
        modes = call.args[1:2]
    elif spelled.endswith("memmap"):
        modes = call.args[2:3]
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "open":
        modes = [node for node in call.args[:1] if isinstance(node, ast.Constant)]
    elif spelled.endswith(("ZipFile", "TarFile")):
        modes = call.args[1:2]
    else:
        return False
    modes += [word.value for word in call.keywords if word.arg == "mode"]
    return any(
        not isinstance(mode, ast.Constant) or bool(set(str(mode.value)) & set("wax+"))
        for mode in modes
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_is_written_through_the_door(path):
    name = path.relative_to(ROOT).as_posix()
    found = [
        call for call in writes(ast.parse(path.read_text("utf-8"))) if (name, call) not in ALLOWED
    ]
    assert found == [], "write it with regard.files"


@pytest.mark.parametrize(
    "line",
    [
        'open(path, "w")',
        'open(path, mode="a")',
        "open(path, mode)",
        'path.open("xb")',
        'path.open(mode="r+")',
        'gzip.open(path, "wt")',
        "path.write_text(text)",
        "Path(path).write_bytes(text)",
        "path.touch()",
        'figure.savefig("a.png")',
        "np.save(path, x)",
        "torch.save(x, path)",
        "save_file(tensors, path)",
        "tokenizer.save(path)",
        "array.tofile(path)",
        "json.dump(x, file)",
        "os.open(path, os.O_WRONLY | os.O_CREAT)",
        "os.rename(a, b)",
        "shutil.copy(a, b)",
        'np.memmap(path, dtype, "w+", shape=shape)',
        "tempfile.NamedTemporaryFile()",
        'ZipFile(path, "w")',
    ],
)
def test_the_walk_sees_a_write(line):
    assert len(list(writes(ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "open(path)",
        'open(0, "rb", closefd=False)',
        'path.open("rb", buffering=0)',
        "Run.open(path)",
        "os.open(os.devnull, os.O_WRONLY)",
        "os.open(path, os.O_RDONLY)",
        "files.write_text(path, text)",
        "write_text(path, text)",
        "content = BytesIO()\nfigure.savefig(content)",
        "dataclasses.replace(config, a=1)",
        'np.memmap(path, dtype, "r", shape=shape)',
    ],
)
def test_the_walk_lets_reading_be(line):
    assert list(writes(ast.parse(line))) == []
