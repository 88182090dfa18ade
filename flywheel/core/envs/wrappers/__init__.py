"""Environments around other environments: a rubric in place of the own verifier, several as one."""
