"""The ledger: what is kept of requests, minutes and changes, in one SQLite file."""
