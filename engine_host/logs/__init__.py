"""Everything the host and its children print, as records."""
