"""What `tests/bench_ingest.py` measures with: requests, a client, peers, processes."""
