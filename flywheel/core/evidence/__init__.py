"""Evidence from figures, and what may follow from it. The only part of the core that needs numpy and scipy."""
