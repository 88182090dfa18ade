"""A release by steps: its plan, by which signals it is judged, and the judgement after each session."""
