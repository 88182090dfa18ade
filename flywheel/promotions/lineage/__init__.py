"""Lineage: where each object came from and what was made of it, from room to room, in both directions.

    passport_kinds.py   the kinds of objects, and how one is named, shown and digested
    relations.py        every relation between two kinds, written once for both directions
    levels.py           the levels of one object: its relations, and what is reached through them within one turn

Limits: a relation is what is stored. What a program did with a trajectory that it exported is not known.
"""
