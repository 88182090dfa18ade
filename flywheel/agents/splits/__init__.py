"""Which arm of an agent's split answers whom, decided in any process and the same in all.

`assignment` the coin, pure · `open_splits` whether a split holds at the moment · `met_units` who has met which arm ·
`assignment_tokens` what a program that calls its model itself shows for the arm that it was given
"""
