"""Two versions of an agent at once: which one answers a call, and copies of calls for one that answers nobody.

`arm_choice` the way of a call while a split holds · `answer_names` answers that a further call may name ·
`shadow_copies` copies that a candidate answers to nobody
"""
