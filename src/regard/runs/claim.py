"""The name of a new run: which folder it gets, and that no other process gets the same."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import BaseFileLock

from regard.errors import UserError
from regard.runs import storage


class Taken(UserError):
    """The name of a new run is not free."""


class Claim:
    """The name of a new run, held by one process.

    It is held from before the process reads its data until the run is there.

        with Claim.take(folder) as claim:
            ...  # write into claim.aside, an empty folder beside the run's place
            Run.create(claim, ...)

    `.NAME.lock` is locked meanwhile, and `.NAME.tmp` belongs to whoever holds that lock: what is
    found there belongs to a process that was killed, and is swept. No other name is ever touched.
    """

    def __init__(self, folder: Path, lock: BaseFileLock, *, new_parent: bool) -> None:
        self.folder = folder
        self.aside = folder.with_name(f".{folder.name}.tmp")
        self._lock = lock
        self._lock_file = self.file_of(folder)
        self._new_parent = new_parent

    @staticmethod
    def file_of(folder: Path) -> Path:
        """The lock file of a name."""
        return folder.with_name(f".{folder.name}.lock")

    @classmethod
    def take(cls, folder: Path) -> Self:
        """Claim exactly this name.

        Raises Taken if a run stands there, or another process is preparing one.
        """
        with storage.disk_faults_told(folder):
            new_parent = not folder.parent.exists()
            lock = cls._lock_in_parent(folder)
        if lock is None:
            raise Taken(f"{folder}: another process is preparing this run")

        claim = cls(folder, lock, new_parent=new_parent)
        try:
            if folder.exists():
                raise Taken(
                    f"{folder} already exists: continue it with --resume, "
                    f"or choose another folder with --out"
                )
            with storage.disk_faults_told(folder):
                if claim.aside.exists():
                    shutil.rmtree(claim.aside)
                claim.aside.mkdir()
        except BaseException:
            claim.give_back()
            raise
        return claim

    @classmethod
    def _lock_in_parent(cls, folder: Path) -> BaseFileLock | None:
        """Make the parent folder, and lock the name; None if another process has the lock."""
        while True:
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                return storage.lock(cls.file_of(folder))
            except FileNotFoundError:
                if folder.parent.exists():
                    raise
                # Another process gave up and took its empty parent folder away: make it again.

    @classmethod
    def take_next(cls, first: Path) -> Self:
        """Claim the first free name of NAME, NAME-2, NAME-3 …"""
        for folder in numbered(first):
            if folder.exists():
                continue
            try:
                return cls.take(folder)
            except Taken:
                continue
        raise AssertionError("numbers have no end")

    def give_back(self) -> None:
        """Remove what is left beside the run's place, and let others claim the name."""
        shutil.rmtree(self.aside, ignore_errors=True)
        with suppress(OSError):  # Windows deletes no open file; it means nothing where it stays
            self._lock_file.unlink(missing_ok=True)
        self._lock.release()
        if self._new_parent:
            with suppress(OSError):  # not empty: it is in use
                self.folder.parent.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.give_back()


def numbered(first: Path) -> Iterator[Path]:
    """NAME, NAME-2, NAME-3 …"""
    yield first
    for number in count(2):
        yield first.with_name(f"{first.name}-{number}")


def newest_numbered(first: Path) -> Path:
    """Of NAME, NAME-2, NAME-3 … the one with the highest number that exists; NAME if none does."""
    numbers = [1]
    for path in first.parent.glob("*"):
        name, _, number = path.name.rpartition("-")
        if name == first.name and number.isdecimal() and number.isascii():
            numbers.append(int(number))
    highest = max(numbers)
    return first if highest == 1 else first.with_name(f"{first.name}-{highest}")
