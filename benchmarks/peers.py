"""Regard beside other toolkits, each in its own virtual environment, timed in turn. One JSON line a
workload and peer.

python benchmarks/peers.py [--peers hf d2l ...] [--sets W1 W2 ...] [--rounds 5] [--busy]
    [--folder .peers] [options of run.py]

The workloads, the other workers and the clock are those of ../shared/peers (or $REGARD_PEERS), its
README says how they are taken; only the ratio counts: speed in units of torch.nn.Transformer's
(`torchnn`, always there), the median over the rounds. `clean` rounds are those in which nobody else
used the machine: with fewer than 3, do not believe the ratio, or use --busy. Workers of W3 keep 3.5
GB each: there torchnn and regard are timed anew beside two peers at a time, which 24 GB hold.
Missing environments are set up first, a gigabyte and up to three minutes each. Progress goes to
stderr, what a failing worker says to FOLDER/peerbench_NAME.err.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = ("torchnn", "hf", "d2l", "joeynmt", "onmt", "xtransformers")
FIRST = ("workload", "peer", "ratio", "clean")


def set_up(peer: str, kit: Path, folder: Path) -> bool:
    """Whether there is an interpreter for this peer, after trying to make one."""
    made = folder / peer / "bin" / "python"
    if not made.exists():
        print(f"setting up {peer} in {folder}", file=sys.stderr, flush=True)
        env = {"PY": sys.executable, **os.environ, "PEERS": str(folder)}
        subprocess.run(["bash", kit / "setup.sh", peer], env=env, stdout=sys.stderr)
    return made.exists()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument(
        "--sets",
        nargs="+",
        choices=("W1", "W2", "W2b", "W3", "W3b", "W4"),
        default=("W1", "W2", "W3"),
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--busy",
        action="store_true",
        help="one thread and its processor time: holds on a machine others use",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=HERE.parent / ".peers",
        help="of the environments; git should ignore it",
    )
    given, rest = parser.parse_known_args()
    kit = Path(os.environ.get("REGARD_PEERS") or HERE.parent.parent / "shared" / "peers").resolve()
    if not (kit / "run.py").exists():
        print(
            f"no peers to compare with: {kit} has no run.py; set REGARD_PEERS to the folder that "
            f"has",
            file=sys.stderr,
        )
        return 2
    tail = {
        "machine": platform.processor() or platform.machine(),
        "date": time.strftime("%Y-%m-%d"),
    }
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    there = {peer: set_up(peer, kit, folder) for peer in dict.fromkeys(("torchnn", *given.peers))}
    for peer in (peer for peer, fine in there.items() if not fine):
        print(json.dumps({"peer": peer, "error": "could not be set up"}), flush=True)
    others = [peer for peer, fine in there.items() if fine and peer != "torchnn"]
    paths = [str(HERE.parent / "src"), os.environ.get("PYTHONPATH")]
    env = {
        **os.environ,
        "PEERS": str(folder),
        "PY_REGARD": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    env |= {"TMPDIR": str(folder), **({"PB_THREADS": "1"} if given.busy else {})}
    failed = not all(there.values())
    with tempfile.TemporaryDirectory() as copy:  # a worker must lie beside common.py
        for file in (*kit.glob("*.py"), HERE / "peer_regard.py"):
            (Path(copy) / file.name).write_bytes(file.read_bytes())
        found = Path(copy) / "found.json"
        options = [
            "--reps",
            str(given.rounds),
            "--clock",
            "cpu" if given.busy else "wall",
            "--out",
            found,
            *rest,
        ]
        for name in given.sets:
            size = 2 if name in ("W3", "W3b") else len(PEERS)
            for first in range(0, max(1, len(others)), size):
                group = ",".join(["torchnn", "regard", *others[first : first + size]])
                found.unlink(missing_ok=True)
                command = [sys.executable, "run.py", "--peers", group, "--sets", name, *options]
                failed |= (
                    subprocess.run(command, env=env, cwd=copy, stdout=sys.stderr).returncode != 0
                )
                for record in json.loads(found.read_text())["records"] if found.exists() else []:
                    failed |= "NotImplemented" not in record.get("error", "NotImplemented")
                    print(
                        json.dumps(
                            {key: record[key] for key in FIRST if key in record} | record | tail
                        ),
                        flush=True,
                    )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
