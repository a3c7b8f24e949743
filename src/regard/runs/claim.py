"""The name of a new run: which folder it gets, and that no other process gets the same."""

import os
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
from regard.runs.holder import holder, sign


class Taken(UserError):
    """The name of a new run is not free. Says what to pass in Python."""

    folder: Path | None = None
    """The run that is there; None: another process is preparing it."""

    @classmethod
    def by(cls, folder: Path) -> Self:
        """The error that a run is in this folder already."""
        error = cls(
            f"{folder} already exists: pass resume=True to continue it, overwrite=True to replace "
            f"it, or another out="
        )
        error.folder = folder
        return error


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
        self.replaced = folder.with_name(f".{folder.name}.old")
        """Where a run that is overwritten goes, just before it is deleted."""
        self._lock = lock
        self._lock_file = self.file_of(folder)
        self._new_parent = new_parent

    @staticmethod
    def file_of(folder: Path) -> Path:
        """The lock file of a name."""
        return folder.with_name(f".{folder.name}.lock")

    @classmethod
    def take(cls, folder: Path, *, overwrite: bool = False) -> Self:
        """Claim exactly this name.

        Raises Taken if a run stands there, or another process is preparing one. overwrite: a run
        may stand there; it is deleted when the new one takes its place.
        """
        with storage.disk_faults_told(folder):
            new_parent = not folder.parent.exists()
            lock = cls._lock_in_parent(folder)
        lock_file = cls.file_of(folder)
        if lock is None:
            raise Taken(f"{folder}: another process is preparing this run{holder(lock_file)}")
        sign(lock_file)

        claim = cls(folder, lock, new_parent=new_parent)
        try:
            if folder.exists() and not overwrite:
                raise Taken.by(folder)
            if folder.exists() and not (folder / storage.MANIFEST).exists():
                raise UserError(
                    f"{folder} is not a run, so it is not overwritten: name another folder"
                )
            with storage.disk_faults_told(folder):
                for left in (claim.aside, claim.replaced):
                    if left.exists():
                        shutil.rmtree(left)
                claim.aside.mkdir()
        except BaseException:
            claim.give_back()
            raise
        return claim

    @classmethod
    def sweep_beside(cls, folder: Path) -> None:
        """Remove what killed processes left beside a run: half-made ones, and old ones."""
        lock_file = cls.file_of(folder)
        if not lock_file.exists():  # it goes last
            return
        try:
            lock = storage.lock(lock_file)
        except OSError:  # a parent that may not be written: what lies there harms nobody
            return
        if lock is None:  # not killed: it is preparing a run in this one's place
            return
        claim = cls(folder, lock, new_parent=False)
        if folder.exists():  # else a killed process had just moved it away
            shutil.rmtree(claim.replaced, ignore_errors=True)
        claim.give_back()

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

    def fill(self) -> None:
        """Put the folder aside into its place, in one rename; an old run there is deleted."""
        if self.folder.exists():
            os.rename(self.folder, self.replaced)
        os.rename(self.aside, self.folder)
        storage.sync(self.folder.parent)
        shutil.rmtree(self.replaced, ignore_errors=True)

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
