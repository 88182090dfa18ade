"""The weights of a run: the policy that learns, and those that did best on validation."""
