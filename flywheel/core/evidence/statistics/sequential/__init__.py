"""Statistics that hold while somebody looks after every session: harm, its size, shares as promised, a watch.

Each is an e-process or is read off one: a wealth that starts at 1 and does not grow on average while its hypothesis
holds, made by bets on what comes next from what was seen before. By Ville's inequality it ever reaches 1/alpha with a
chance of at most alpha, however often it is looked at (Ramdas, Grünwald, Vovk and Shafer 2023, arXiv 2210.01948).

Sessions are arrays of the same length in the order in which they became final: `arm` (1 for the candidate, 0 for live),
`share` (the chance with which each was put into the candidate's arm, between 0 and 1) and `failed` (the part of each
that failed, from 0 to 1). What is unknown is left out before. A state that is kept goes on as if all had been given at
once, to the last bit.
"""
