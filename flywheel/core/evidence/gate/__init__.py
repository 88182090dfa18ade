"""The gate, by what each guard says whether a candidate is worse, and what a set can show by it."""
