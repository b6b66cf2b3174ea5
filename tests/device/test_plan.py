import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from golddiff.device.plan import USED_SHARE, SetSize, memory_plan
from golddiff.errors import ArgumentError

sizes = st.builds(
    SetSize,
    n=st.integers(1, 10**8),
    d=st.integers(1, 20_000),
    itemsize=st.sampled_from([1, 4]),
    proxy_values=st.integers(1, 768),
)

IMAGENET = SetSize(n=1_281_167, d=12_288, itemsize=1, proxy_values=768)


@given(sizes, st.integers(10**8, 2 * 10**11), st.integers(1, 256))
def test_a_plan_stays_within_its_share_and_serves_a_query_at_least(size, free, batch):
    try:
        plan = memory_plan(size, free, batch)
    except ArgumentError:
        return
    assert plan.total_bytes <= USED_SHARE * free
    assert 1 <= plan.queries <= batch
    assert plan.mask_bytes >= size.mask_bytes
    assert plan.resident == (plan.chunk_images == 0)
    assert plan.chunk_images <= size.n


@given(sizes, st.integers(10**8, 10**11))
def test_more_memory_never_plans_for_less(size, free):
    try:
        small = memory_plan(size, free)
    except ArgumentError:
        assume(False)
    large = memory_plan(size, 2 * free)
    assert large.resident >= small.resident
    if large.resident == small.resident:
        assert large.queries >= small.queries


def test_all_of_imagenet_lies_on_an_h200_and_is_streamed_to_24_gigabytes():
    there = memory_plan(IMAGENET, 139 << 30)
    assert there.resident
    assert there.queries == 64
    small = memory_plan(IMAGENET, 24 << 30)
    assert small.resident  # 15.7 GB of pixels
    tiny = memory_plan(IMAGENET, 16 << 30)
    assert not tiny.resident
    assert tiny.chunk_images > 1000


def test_too_little_memory_is_told_with_what_it_would_take():
    with pytest.raises(ArgumentError, match=r"device: 1\.0 GB are free, but 1,281,167 images"):
        memory_plan(IMAGENET, 10**9)
