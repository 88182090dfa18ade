"""From what the fix ladder says to a run that is queued, stopped and let go on."""
