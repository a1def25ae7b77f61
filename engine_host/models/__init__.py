"""The model store and the import into it. Light: torch and transformers only load in the import's child process."""
