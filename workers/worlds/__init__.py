"""Worlds that are played elsewhere than in this process: in the sandbox, at somebody's server."""
