"""Words and texts, as people read them and as they are compared."""
