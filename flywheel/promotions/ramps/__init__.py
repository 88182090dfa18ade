"""A release by steps, and what follows it.

`ramp_moves` every change of a ramp, by people and by the judge · `ramp_units` which sessions of a ramp
are final · `ramp_judging` the judge, who renews the lease of the split · `claim_watching` what a promotion claims,
watched on the traffic that follows
"""
