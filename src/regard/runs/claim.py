"""The name of a new run: which folder it gets, and that no other process gets the same."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import BaseFileLock

from regard.errors import UserError
from regard.files import MANIFEST, disk_faults_told, move, remove
from regard.files.holder import holder, sign
from regard.files.lock import lock as lock_file

RESERVED = re.compile(r"\..+\.(lock|tmp|replaced)", re.DOTALL)
"""Names beside a run while it is prepared."""
FOLDERS_IN_USE_MOVE = os.name != "nt"  # Windows renames no folder in which a file is open


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

    `.NAME.lock` is locked meanwhile, and `.NAME.tmp` and `.NAME.replaced` belong to whoever holds
    that lock: what is found there belongs to a process that was killed, and is swept. These three
    are different for different names, and no run is called so (`RESERVED`), so that nothing of
    another name is ever touched. If the name is a link, they stand beside the folder itself.
    """

    def __init__(self, folder: Path, lock: BaseFileLock, *, new_parent: bool) -> None:
        self.folder = folder
        self._place = place_of(folder)
        self.aside = self._place.with_name(f".{self._place.name}.tmp")
        self.replaced = self._place.with_name(f".{self._place.name}.replaced")
        """Where a run that is overwritten goes, just before it is deleted."""
        self._lock = lock
        self._lock_file = self.file_of(folder)
        self._new_parent = new_parent
        self._overwrites = False
        self._old_run: BaseFileLock | None = None

    @staticmethod
    def file_of(folder: Path) -> Path:
        """The lock file of a name."""
        place = place_of(folder)
        return place.with_name(f".{place.name}.lock")

    @classmethod
    def take(cls, folder: Path, *, overwrite: bool = False) -> Self:
        """Claim exactly this name.

        Raises Taken if a run stands there, or another process is preparing one. overwrite: a run
        may stand there; it is deleted when the new one takes its place.
        """
        with disk_faults_told(folder):
            new_parent = not place_of(folder).parent.exists()
            lock = cls._lock_in_parent(folder)
        file = cls.file_of(folder)
        if lock is None:
            raise Taken(f"{folder}: another process is preparing this run{holder(file)}")
        sign(file)

        claim = cls(folder, lock, new_parent=new_parent)
        try:
            with disk_faults_told(folder):
                claim._sweep()
            if folder.exists() and not overwrite:
                raise Taken.by(folder)
            if folder.exists():
                claim._hold_old_run()
            with disk_faults_told(folder):
                claim.aside.mkdir()
        except BaseException:
            claim.give_back()
            raise
        return claim

    def _sweep(self) -> None:
        """Remove what a killed process left; a run that it was just replacing is put back."""
        remove(self.aside)
        was_run = (self.replaced / MANIFEST).exists() and not self.replaced.is_symlink()
        if was_run and not self._place.exists():
            move(self.replaced, self._place)
        remove(self.replaced)

    def _hold_old_run(self) -> None:
        """Let nobody train the run that will be replaced."""
        if not (self.folder / MANIFEST).exists():
            raise UserError(
                f"{self.folder} is not a run, so it is not overwritten: name another folder"
            )
        with disk_faults_told(self.folder):
            self._old_run = lock_file(self.folder / "lock")
        if self._old_run is None:
            who = holder(self.folder / "lock")
            raise UserError(f"{self.folder}: another process is training this run{who}")
        sign(self.folder / "lock")
        self._overwrites = True

    def _let_old_run_go(self) -> None:
        if self._old_run is not None:
            self._old_run.release()
            self._old_run = None

    @classmethod
    def sweep_beside(cls, folder: Path) -> None:
        """Remove what killed processes left beside a run: half-made ones, and old ones."""
        file = cls.file_of(folder)
        if not file.exists():  # it goes last
            return
        try:
            lock = lock_file(file)
        except OSError:  # a parent that may not be written: what lies there harms nobody
            return
        if lock is None:  # not killed: it is preparing a run in this one's place
            return
        claim = cls(folder, lock, new_parent=False)
        try:
            with disk_faults_told(folder):
                claim._sweep()
        finally:
            claim.give_back()

    @classmethod
    def _lock_in_parent(cls, folder: Path) -> BaseFileLock | None:
        """Make the parent folder, and lock the name; None if another process has the lock."""
        parent = place_of(folder).parent
        while True:
            parent.mkdir(parents=True, exist_ok=True)
            try:
                return lock_file(cls.file_of(folder))
            except FileNotFoundError:
                if parent.exists():
                    raise
                # Another process gave up and took its empty parent folder away: make it again.

    @classmethod
    def take_next(cls, first: Path) -> Self:
        """Claim the first free name of NAME, NAME-2, NAME-3 …"""
        for folder in numbered(first):
            if folder.exists() or folder.is_symlink():
                continue
            try:
                return cls.take(folder)
            except Taken:
                continue
        raise AssertionError("numbers have no end")

    def fill(self) -> None:
        """Put the folder aside into its place, in one rename; an old run there is deleted."""
        if not FOLDERS_IN_USE_MOVE:
            self._let_old_run_go()
        if self._overwrites:
            move(self._place, self.replaced)
        move(self.aside, self._place)
        shutil.rmtree(self.replaced, ignore_errors=True)

    def give_back(self) -> None:
        """Remove what is left beside the run's place, and let others claim the name."""
        self._let_old_run_go()
        shutil.rmtree(self.aside, ignore_errors=True)
        with suppress(OSError):  # Windows deletes no open file; it means nothing where it stays
            self._lock_file.unlink(missing_ok=True)
        self._lock.release()
        if self._new_parent:
            with suppress(OSError):  # not empty: it is in use
                self._place.parent.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.give_back()


def place_of(folder: Path) -> Path:
    """Where a folder really is, if its name is a link or has no name of its own, such as `..`."""
    is_named = folder.name not in ("", "..")
    place = folder if is_named and not folder.is_symlink() else Path(os.path.realpath(folder))
    if not place.name or RESERVED.fullmatch(place.name):
        raise UserError(f"{folder}: a run cannot have this name; choose another folder")
    return place


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
