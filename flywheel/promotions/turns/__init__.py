"""An agent's turns of the wheel: what each is made of, and the draft with which the next one begins."""
