"""Attempts that a policy learns from: whole episodes, played by the weights in training and handed to TRL."""
