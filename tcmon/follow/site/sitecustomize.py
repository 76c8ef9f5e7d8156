"""Read by each Python that a followed program starts: gives way to the program's own, and waits for torch.

It leaves `sys.path` as it would be without it, and imports nothing that the interpreter has not loaded by then.
"""

import os
import sys


def _own_folder() -> str:
    return os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (pathlib would have to be imported)


def _give_way(folder: str) -> None:
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    sys.path_importer_cache.pop(folder, None)


def _run_the_other_one() -> None:
    """Run the sitecustomize that would have been found without this one, under its name."""
    specs = (finder.find_spec("sitecustomize", None) for finder in sys.meta_path)
    spec = next((each for each in specs if each is not None), None)
    if spec is None or spec.loader is None:
        return
    module = type(sys)("sitecustomize")
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


class _AwaitTorch:
    """The first finder of modules, until torch is looked for; it finds nothing."""

    def __init__(self, settings: str) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.path = list(sys.path)  # without the program's folder, which the interpreter adds later

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            self.start()

    def start(self) -> None:
        # As JSON would be, but without an import: version, where tcmon is, the rest.
        version, _, rest = self.settings.partition(":")
        where, _, rest = rest.partition(":")
        if version != sys.implementation.cache_tag:
            # The libraries that tcmon needs may be built for another Python.
            sys.stderr.write(f"tcmon: warning: {sys.executable} is not watched: tcmon runs under {version}\n")
            return
        program_path = sys.path
        sys.path = [*self.path, *(bytes.fromhex(entry).decode() for entry in where.split(","))]
        try:
            from tcmon.follow.process import begin
        except Exception as error:
            sys.stderr.write(f"tcmon: warning: process {os.getpid()} is not watched: {error}\n")
            return
        finally:
            sys.path = program_path
        begin(rest, self.pid)


def _main() -> None:
    _give_way(_own_folder())
    settings = os.environ.get("TCMON_FOLLOW")
    if settings:
        sys.meta_path.insert(0, _AwaitTorch(settings))
    _run_the_other_one()


_main()
