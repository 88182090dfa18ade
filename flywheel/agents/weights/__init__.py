"""How weights come and go: from a hub, merged, and as downloads in one archive."""
