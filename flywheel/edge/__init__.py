"""What every room's pages do alike at the edge: how a request is read, and how it is answered."""
