"""How weights come and go: merged ones, downloads as one archive."""
