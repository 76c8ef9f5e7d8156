"""Runs a Python program in this process as ``python SCRIPT args`` or ``python -m MODULE args`` would.

The interpreter starts a program from C; this does the same from Python. What a program can still see of
tcmon is the stack below its own first frame (``inspect.stack()``; so RecursionError comes a few frames
earlier), ``sys.orig_argv``, and more entries in ``sys.modules``.
"""

import builtins
import marshal
import runpy
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, PathFinder, SourceFileLoader, SourcelessFileLoader
from importlib.util import MAGIC_NUMBER, decode_source, find_spec
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, Literal, NoReturn
from zipimport import ZipImportError, zipimporter

from tcmon.errors import TcmonError
from tcmon.namesakes import Namesakes


@dataclass(slots=True)
class Outcome:
    """How a program ended. ``exit_code`` is None after "interrupt": python then ends by the signal SIGINT."""

    reason: Literal["exit", "exception", "interrupt"]
    exit_code: int | None
    _raised: BaseException | None = None

    @property
    def by_exit(self) -> bool:
        """Whether SystemExit ended the program."""
        return isinstance(self._raised, SystemExit)

    def leave(self) -> NoReturn:
        """End the process as the program ended; nothing on the way up may catch what this raises."""
        raised, self._raised = self._raised, None
        try:
            if raised is None:
                sys.exit(self.exit_code)
            if isinstance(raised, KeyboardInterrupt):
                _show_no_more(raised)
            raise raised
        finally:
            del raised  # as in Program.run


class Program(ABC):
    """A program that this process runs, once."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self.name = name
        self._argv = list(argv)
        self._namesakes: Namesakes | None = None

    @property
    def label(self) -> str:
        """What to call the program: the name of its file or folder, or the module's full name."""
        return Path(_absolute(self.name)).name

    @abstractmethod
    def prepare(self) -> Outcome | None:
        """Find the program and run nothing of it; TcmonError where there is no such program.

        Returns the outcome where that was the program's end: a SyntaxError has been shown as by python.
        """

    def run(self) -> Outcome:
        """Run the program to its end. An uncaught exception has been shown when this returns."""
        namespace = self._enter()
        error = None
        try:
            self._execute(namespace)
        except BaseException as caught:
            error = caught
        # Not in the handler: in python, the program's excepthook finds no exception being handled either.
        outcome = _outcome(error)
        del error  # or it would live on in this frame, which its own traceback keeps
        self._tidy(namespace, outcome)
        return outcome

    def aside(self) -> AbstractContextManager[None]:
        """A block in which imports find tcmon's own modules, whatever the program has loaded."""
        return self._namesakes.aside() if self._namesakes else nullcontext()

    @abstractmethod
    def _folder(self) -> str | None:
        """What python puts at the front of ``sys.path``, if anything."""

    @abstractmethod
    def _execute(self, namespace: dict[str, Any]) -> None: ...

    def _tidy(self, namespace: dict[str, Any], outcome: Outcome) -> None:  # noqa: B027 (most have nothing to tidy)
        pass

    def _enter(self) -> dict[str, Any]:
        if (folder := self._folder()) is not None:
            self._namesakes = Namesakes(folder)
            self._namesakes.give_way()
            sys.path.insert(0, folder)
        sys.argv = self._argv
        main = sys.modules["__main__"] = ModuleType("__main__")
        namespace = vars(main)
        if sys.version_info < (3, 14):
            namespace["__annotations__"] = {}
        namespace["__builtins__"] = builtins
        namespace["__loader__"] = BuiltinImporter
        return namespace


class ScriptProgram(Program):
    """``python SCRIPT args`` where SCRIPT is a file of source or bytecode."""

    def __init__(self, script: str, args: Sequence[str] = ()) -> None:
        super().__init__(script, [script, *args])
        self._file = _absolute(script)
        self._loader: type[SourceFileLoader | SourcelessFileLoader] = SourceFileLoader
        self._code: CodeType | None = None

    def prepare(self) -> Outcome | None:
        try:
            content = Path(self._file).read_bytes()
        except (OSError, ValueError) as unread:
            why = getattr(unread, "strerror", None) or unread
            raise TcmonError(f"can't read {self.name!r} ({why}); give the path of a Python script") from None
        if self.name.endswith(".pyc") or content[:2] == MAGIC_NUMBER[:2]:
            self._loader = SourcelessFileLoader
            self._code = self._load(content)
            return None
        try:
            self._code = compile(content, self._file, "exec", dont_inherit=True)
            return None
        except Exception as caught:
            if (fault := _fault_as_text(content)) is not None:
                raise TcmonError(f"{self.name!r} isn't Python source: {fault}") from None
            error = caught.with_traceback(None)
        return _outcome(error)

    def _load(self, content: bytes) -> CodeType:
        if content[:4] != MAGIC_NUMBER:
            raise TcmonError(f"{self.name!r} is no bytecode of this Python; run its source instead")
        try:
            code = marshal.loads(content[16:])
        except (EOFError, TypeError, ValueError):
            code = None
        if not isinstance(code, CodeType):
            raise TcmonError(f"{self.name!r} is damaged bytecode; run its source instead")
        return code

    def _folder(self) -> str | None:
        return None if sys.flags.safe_path else str(Path(self._file).resolve().parent)

    def _execute(self, namespace: dict[str, Any]) -> None:
        assert self._code is not None, "prepare() first"
        code, self._code = self._code, None
        namespace["__file__"] = self._file
        namespace["__cached__"] = None
        namespace["__loader__"] = self._loader("__main__", self._file)
        try:
            exec(code, namespace)
        finally:
            for stream in (sys.stderr, sys.stdout):  # python flushes here, before it shows an exception
                try:
                    stream.flush()
                except Exception:
                    pass  # the interpreter tries again at its end, and tells

    def _tidy(self, namespace: dict[str, Any], outcome: Outcome) -> None:
        # As python does, before 3.14 only where SystemExit didn't take it past this; functions at exit may notice.
        if sys.version_info >= (3, 14) or not outcome.by_exit:
            namespace.pop("__file__", None)
            namespace.pop("__cached__", None)


class FolderProgram(Program):
    """``python FOLDER args``, FOLDER being a directory or a zip file with a ``__main__``."""

    def __init__(self, folder: str, args: Sequence[str] = ()) -> None:
        super().__init__(folder, [folder, *args])

    def prepare(self) -> None:
        if PathFinder.find_spec("__main__", [self._folder()]) is None:
            raise TcmonError(f"{self.name!r} has no __main__.py; give the path of a Python script")

    def _folder(self) -> str:
        return _absolute(self.name)

    def _execute(self, namespace: dict[str, Any]) -> None:
        _run_by_runpy("__main__", alter_argv=False)


class ModuleProgram(Program):
    """``python -m MODULE args``."""

    def __init__(self, module: str, args: Sequence[str] = ()) -> None:
        super().__init__(module, ["-m", *args])  # python shows "-m" until the module is found

    @property
    def label(self) -> str:
        return self.name

    def prepare(self) -> None:
        top = self.name.partition(".")[0]
        if not top:
            raise TcmonError(f"{self.name!r} is a relative module name; give the full one")
        # Only the first part: to find the others, python runs the packages that they are in.
        folder = self._folder()
        entries = [] if folder is None else [folder]
        sys.path[:0] = entries
        try:
            found = find_spec(top)
        except ValueError:  # loaded, but without a spec
            return
        finally:
            del sys.path[: len(entries)]
        if found is None:
            raise TcmonError(f"no module named {top!r}; is it in another folder, or not installed?")

    def _folder(self) -> str | None:
        return None if sys.flags.safe_path else _working_folder()

    def _execute(self, namespace: dict[str, Any]) -> None:
        _run_by_runpy(self.name, alter_argv=True)


def script_program(script: str, args: Sequence[str] = ()) -> Program:
    """The program that ``python SCRIPT args`` runs: a file, or what a directory or a zip file holds."""
    kind = FolderProgram if Path(script).is_dir() or _is_zip(script) else ScriptProgram
    return kind(script, args)


def _run_by_runpy(module: str, *, alter_argv: bool) -> None:
    # The function that the interpreter itself calls, so that tracebacks hold the same frames of runpy.
    try:
        runpy._run_module_as_main(module, alter_argv)  # type: ignore[attr-defined]
    except SystemExit as error:
        if not isinstance(error.__context__, runpy._Error):  # type: ignore[attr-defined]
            raise
        raise SystemExit(f"tcmon: error: {error.__context__}") from None


def _outcome(error: BaseException | None) -> Outcome:
    if error is None:
        return Outcome("exit", 0)
    if isinstance(error, SystemExit):
        return Outcome("exit", _exit_code(error), error)
    exit_of_hook = _show(error)
    if exit_of_hook is not None:
        return Outcome("exception", _exit_code(exit_of_hook), exit_of_hook)
    if isinstance(error, KeyboardInterrupt):
        return Outcome("interrupt", None, error)
    return Outcome("exception", 1)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _show(error: BaseException) -> SystemExit | None:
    """Do as the interpreter does with an uncaught exception. Returns the SystemExit of the program's hook."""
    error.__traceback__ = _without_own_frames(error.__traceback__)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.last_exc = error
    failure = _call_hook(error)
    if failure is None or isinstance(failure, SystemExit):
        return failure
    failure.__traceback__ = _without_own_frames(failure.__traceback__)
    for title, shown in (("Error in sys.excepthook:", failure), ("\nOriginal exception was:", error)):
        print(title, file=sys.stderr)
        sys.__excepthook__(type(shown), shown, shown.__traceback__)
    return None


def _call_hook(error: BaseException) -> BaseException | None:
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as failure:
        return failure
    return None


def _without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_globals is globals():
        traceback = traceback.tb_next
    return traceback


def _show_no_more(error: BaseException) -> None:
    # Only an exception that reaches the interpreter makes it end by SIGINT, but then it shows it, once more.
    hook, traceback = sys.excepthook, error.__traceback__

    def restore(*_: object) -> None:
        sys.excepthook = hook
        sys.last_traceback = error.__traceback__ = traceback

    sys.excepthook = restore


def _fault_as_text(content: bytes) -> str | None:
    # Python's own words differ here between a file and bytes.
    if b"\0" in content:
        return "it holds null bytes"
    try:
        decode_source(content)
    except (SyntaxError, UnicodeError) as error:
        return str(error)
    return None


def _is_zip(path: str) -> bool:
    try:
        zipimporter(path)
    except ZipImportError:
        return False
    return True


def _working_folder() -> str | None:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return None


def _absolute(path: str) -> str:
    # As python does it, which leaves "./" and "../" in __file__ and in tracebacks.
    folder = _working_folder()
    if path.startswith("/") or folder is None:
        return path
    return folder if path == "." else f"{folder}/{path}"
