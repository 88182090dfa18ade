"""Terms of a loss that TRL has not: advantages by token, rows that are replayed, and the canaries of a reward model."""
