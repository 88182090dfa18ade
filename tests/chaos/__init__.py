"""Proof that ingest loses nothing, by code that knows only its contract: `python -m tests.chaos --help`.

installation   a real one in a home of its own, which can be hurt and heals
sending        a client that follows the OTLP rules of retrying
check          what must hold in the database afterwards
kills, repeats, full, malformed, clients   the trials
"""
