"""Which texts are nearly the same, and which failures are alike."""
