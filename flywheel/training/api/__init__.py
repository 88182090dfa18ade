"""Training for programs: ask the ladder, build data, launch, follow, stop, go on."""
