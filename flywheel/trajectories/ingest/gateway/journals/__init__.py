"""One call of the gateway from its first byte to a step of a trajectory.

`journal` what was seen, safe from `kill -9` · `journal_contents` what it says · `journal_traces`, `responses_answers`
the same as part of a trajectory
"""
