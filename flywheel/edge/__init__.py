"""The edge that every room's pages share: reading a request, and answering it."""
