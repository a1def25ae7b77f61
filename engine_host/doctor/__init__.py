"""What is wrong, by rules over a record of what is measured. No vLLM, no network."""
