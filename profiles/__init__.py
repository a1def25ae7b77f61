"""Tuning profiles: the typed schema, the TOML store and its errors. Knows no screen, no engine, no network.

Nothing is imported here, so that `import profiles` stays free of pydantic.
"""
