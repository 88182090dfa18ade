"""A release by steps.

`ramp_moves` every change of a ramp, by people and by the judge · `ramp_units` which sessions are final, and how they
went · `ramp_judging` the judge, who
renews the lease of the split
"""
