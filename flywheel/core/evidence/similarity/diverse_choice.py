"""A few texts of many that differ most from each other, within a budget."""

from collections.abc import Sequence

from flywheel.core.digests import digest
from flywheel.core.evidence.similarity.near_duplicates import jaccard, shingles


def choose(texts: Sequence[str], costs: Sequence[int], *, budget: int, most: int, seed: int) -> list[int]:
    """Return the places of the chosen texts, in the order of choice; the same for the same texts and seed.

    The first is drawn by the seed. Each next one is the text whose nearest chosen one is farthest (greedy max-min over
    the Jaccard similarity of character shingles); what does not fit into what is left of the budget is passed over.
    """
    drawn = sorted(range(len(texts)), key=lambda place: digest([seed, texts[place]]))
    sets = {place: shingles(texts[place]) for place in drawn}
    likeness = dict.fromkeys(drawn, 0.0)
    chosen: list[int] = []
    while len(chosen) < most:
        fitting = [place for place in drawn if place not in chosen and costs[place] <= budget and likeness[place] < 1]
        if not fitting:
            break
        best = min(fitting, key=lambda place: likeness[place])  # the first drawn, of several
        chosen.append(best)
        budget -= costs[best]
        likeness = {place: max(near, jaccard(sets[place], sets[best])) for place, near in likeness.items()}
    return chosen
