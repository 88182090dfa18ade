"""The tasks of a run in the order of its turns, as the weights of their environments say."""

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from workers.trainers.online_tasks import environment_turns

weights = st.integers(0, 9).map(float)


@given(weights, weights, weights, weights, st.integers(1, 5), st.integers(1, 20))
def test_each_environment_has_its_share_of_every_part_of_the_run(
    first: float, last: float, other_first: float, other_last: float, per_batch: int, batches: int
) -> None:
    if not (first + other_first and last + other_last):
        return
    pairs = {"mail": [first, last], "tables": [other_first, other_last]}
    turns = environment_turns(pairs, per_batch, batches)
    assert len(turns) == per_batch * batches
    wanted = 0.0
    for batch in range(batches):
        gone = batch / max(1, batches - 1)
        mail, tables = (start + (end - start) * gone for start, end in pairs.values())
        own = Counter(turns[batch * per_batch : (batch + 1) * per_batch])
        assert mail or not own["mail"]
        assert tables or not own["tables"]
        wanted += per_batch * mail / (mail + tables)
        assert math.fabs(Counter(turns[: (batch + 1) * per_batch])["mail"] - wanted) <= 1
