"""Pickling and processes that a program starts work as under python."""

from pathlib import Path

import pytest
from program_runs import both

PICKLE = """
import pickle, sys
class Thing:
    class Inner: pass
def function(): pass
if __name__ == "__main__":
    for value in (Thing(), Thing.Inner(), Thing, function):
        text = pickle.dumps(value)
        print(text, type(pickle.loads(text)))
    print(Thing.__module__, sys.modules[Thing.__module__].Thing is Thing)
"""

SPAWN = """
import multiprocessing, os, sys
class Thing:
    def __init__(self, n): self.n = n
def work(thing):
    seen = None if sys.argv[1] == "fork" else [m for m in sys.modules if m.startswith("tcmon")]
    return thing.n * 2, __name__, sys.argv, sys.path, __file__, __spec__ and __spec__.name, seen
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(1) as pool:
        print(pool.map(work, [Thing(1), Thing(2)]))
    process = context.Process(target=sys.exit, args=(3,))
    process.start()
    process.join()
    print(process.exitcode)
"""

LOADER = """
import sys, torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
class Numbers(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return i, get_worker_info().id, torch.initial_seed() % 1000
if __name__ == "__main__":
    torch.manual_seed(1)
    for context, workers in (("fork", 2), ("spawn", 1)):
        loader = DataLoader(Numbers(), batch_size=2, num_workers=workers, multiprocessing_context=context)
        for batch in loader:
            print(context, [column.tolist() for column in batch])
    print(torch.rand(3).tolist())
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    for place, source in (("pickling.py", PICKLE), ("spawning.py", SPAWN), ("loading.py", LOADER)):
        for folder in (work, work / "package", work / "folder" / place):
            folder.mkdir(parents=True, exist_ok=True)
        for path in (place, f"package/{place}", f"folder/{place}/__main__.py"):
            (work / path).write_text(source)
    return work


@pytest.mark.parametrize("program", ["pickling.py", "-m package.pickling", "folder/pickling.py"])
def test_classes_and_functions_of_main_are_pickled(program: str, work: Path) -> None:
    seen = both(*program.split(), cwd=work)
    assert seen.returncode == 0
    assert "__main__ True" in seen.stdout


@pytest.mark.parametrize("program", ["spawning.py", "-m package.spawning"])
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_started_by_multiprocessing_find_main(program: str, method: str, work: Path) -> None:
    seen = both(*program.split(), method, cwd=work)
    assert seen.returncode == 0
    assert seen.stdout.splitlines()[-1] == "3"


def test_workers_of_a_data_loader_give_the_same_data(work: Path) -> None:
    seen = both("loading.py", cwd=work)
    assert seen.returncode == 0
    assert "spawn" in seen.stdout
