"""Content hashes differ when bytes do, and are the same when these are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tcmon.capture.measures import Measures, memory_hash  # noqa: E402

VALUES = st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=2, max_size=60)


def hash_on_device(tensor: object) -> str | None:
    measures = Measures(torch)
    found = measures._device_hash(tensor)
    measures.read()
    return measures.hash_text(found)


def tensor_of(bits: list[int]) -> object:
    return torch.tensor(bits, dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize("hashed", [memory_hash, hash_on_device])
@settings(max_examples=200, deadline=None)
@given(VALUES, st.data())
def test_another_value_or_order_is_another_hash(hashed: object, values: list[int], data: st.DataObject) -> None:
    assert callable(hashed)
    first = hashed(tensor_of(values))
    assert first == hashed(tensor_of(list(values)))
    place = data.draw(st.integers(0, len(values) - 1))
    changed = list(values)
    changed[place] ^= 1 << data.draw(st.integers(0, 30))
    assert hashed(tensor_of(changed)) != first
    other = data.draw(st.permutations(values))
    assert (hashed(tensor_of(other)) == first) == (other == values)


@pytest.mark.parametrize("hashed", [memory_hash, hash_on_device])
def test_the_hash_of_a_large_tensor_says_that_it_covers_a_sample(hashed: object) -> None:
    assert callable(hashed)
    large = torch.arange(1 << 20, dtype=torch.float32)
    whole = hashed(large)
    assert whole.startswith("~")
    large[0] = -1
    assert hashed(large) != whole
