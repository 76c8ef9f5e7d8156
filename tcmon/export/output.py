"""The file that an export writes: whole or not at all, and never over another one unasked."""

import gzip
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import BinaryIO, Final

from tcmon.errors import TcmonError
from tcmon.trace.reader import reason_of

STDOUT: Final = Path("-")

# Half the time of the default level, and hardly larger.
_LEVEL: Final = 5

type Write = Callable[[bytes], object]


def require_free(path: Path, *, force: bool) -> None:
    """Raise TcmonError when `path` can't be written, or only over another file and without `force`."""
    name = repr(str(path))
    if path.is_dir():
        raise TcmonError(f"{name} is a directory; name a file with -o")
    if not path.parent.is_dir():
        raise TcmonError(f"no such directory: {str(path.parent)!r}")
    if path.is_file() and not force:
        raise TcmonError(f"{name} exists; name another file with -o, or overwrite it with --force")


@contextmanager
def written(path: Path, *, force: bool) -> Iterator[Write]:
    """Writes to `path`, compressed if its name ends in .gz; `-` is standard output.

    A file takes its name only when it is complete. Raises TcmonError as `require_free`, and when writing fails.
    """
    if path == STDOUT:
        yield sys.stdout.buffer.write
        sys.stdout.buffer.flush()
        return
    require_free(path, force=force)
    try:
        if path.exists() and not path.is_file():  # a pipe, a device: nothing there to keep
            with path.open("wb") as file, _packed(file, path) as write:
                yield write
            return
        target = path.resolve()
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with temporary.open("xb") as file, _packed(file, path) as write:
                yield write
            _named(temporary, target, force=force)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise TcmonError(f"can't write {str(path)!r}: {reason_of(error)}") from None


@contextmanager
def _packed(file: BinaryIO, path: Path) -> Iterator[Write]:
    if path.suffix != ".gz":
        yield file.write
        return
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=_LEVEL) as packed:
        yield packed.write


def _named(temporary: Path, target: Path, *, force: bool) -> None:
    if not force:
        # Unlike a rename this fails where somebody else has made the file meanwhile.
        with suppress(PermissionError, NotImplementedError):
            target.hardlink_to(temporary)
            return
        require_free(target, force=False)
    temporary.replace(target)


@contextmanager
def written_folder(path: Path, *, force: bool, is_ours: Callable[[PurePath], bool]) -> Iterator[Path]:
    """A new folder to write files into, which becomes `path` when all are there.

    With `force` it takes the place of a folder that holds nothing but files whose paths in it `is_ours` says an export
    writes. Raises TcmonError when something else is there.
    """
    name = repr(str(path))
    if path == STDOUT:
        raise TcmonError("these are several files, so standard output can't take them; name a folder with -o")
    try:
        target = path.resolve()
        if not target.parent.is_dir():
            raise TcmonError(f"no such directory: {str(path.parent)!r}")
        if target.exists():
            if not force:
                raise TcmonError(f"{name} exists; name another folder with -o, or replace it with --force")
            if not target.is_dir() or not all(
                each.is_dir() or is_ours(each.relative_to(target)) for each in target.rglob("*")
            ):
                raise TcmonError(f"{name} holds other things than an export, so it is not replaced")
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        temporary.mkdir()
        try:
            yield temporary
            if target.exists():
                shutil.rmtree(target)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise TcmonError(f"can't write {name}: {reason_of(error)}") from None
